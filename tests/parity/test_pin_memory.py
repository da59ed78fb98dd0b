"""Pinned memory: real with an accelerator, a warning and ordinary memory without one."""

import warnings

import pytest
import torch

from tests.parity.datasets import Mapped, Numbers, Stream, collate_sentences, sentence
from tests.parity.equality import assert_same, reference
from tests.parity.samples import SAMPLES

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])
WITH_ACCELERATOR = torch.accelerator.is_available()


def told(loader):
    """Return the batches of an epoch and the texts of the warnings about pinning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    return batches, [str(w.message) for w in caught if "pin" in str(w.message)]


@both
def test_batches_are_the_same(loader_class, num_workers):
    dataset = Mapped(SAMPLES["nested"], 6)
    batches, texts = told(loader_class(dataset, batch_size=2, num_workers=num_workers, pin_memory=True))
    assert_same(batches, reference(dataset, batch_size=2))
    assert all(batch["views"][0].is_pinned() == WITH_ACCELERATOR for batch in batches)
    missing = [
        "no accelerator is found" in text and "'pin_memory' argument is set as true" in text for text in texts
    ]
    assert missing == ([] if WITH_ACCELERATOR else [True])


@both
def test_streams_and_single_samples(loader_class, num_workers):
    batches, _ = told(loader_class(Stream(4, shard=True), num_workers=num_workers, pin_memory=True))
    assert [batch.item() for batch in batches] == [0, 1, 2, 3]
    samples, _ = told(
        loader_class(
            Mapped(SAMPLES["tuple_of_str"], 3), batch_size=None, num_workers=num_workers, pin_memory=True
        )
    )
    assert_same(samples, reference(Mapped(SAMPLES["tuple_of_str"], 3), batch_size=None))


@both
def test_a_batch_of_its_own_type_pins_itself(loader_class, num_workers):
    loader = loader_class(
        Mapped(sentence, 4),
        batch_size=2,
        num_workers=num_workers,
        pin_memory=True,
        collate_fn=collate_sentences,
    )
    batches, _ = told(loader)
    assert [batch.pinned for batch in batches] == [WITH_ACCELERATOR] * 2


def test_a_device_by_name_is_deprecated(loader_class):
    batches, texts = told(loader_class(Numbers(2), batch_size=2, pin_memory=True, pin_memory_device="cuda"))
    assert_same(batches, [torch.tensor([0, 1])])
    assert any("pin_memory_device is deprecated" in text and "'cuda'" in text for text in texts)


@both
def test_no_word_about_it_unless_asked_for(loader_class, num_workers):
    _, texts = told(loader_class(Numbers(2), batch_size=2, num_workers=num_workers, pin_memory_device="cuda"))
    assert texts == []


def test_persistent_workers(loader_class):
    loader = loader_class(Numbers(4), batch_size=2, num_workers=2, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        batches, _ = told(loader)
        assert_same(batches, [torch.tensor([0, 1]), torch.tensor([2, 3])])
