"""The user's own collate functions, and the defaults when there is none."""

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.parity.datasets import (
    Batched,
    Mapped,
    Numbers,
    Sentence,
    Stream,
    collate_sentences,
    identity,
    sentence,
    whereabouts,
)
from tests.parity.equality import assert_matches_reference, assert_same, reference
from tests.parity.samples import SAMPLES

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]

both = pytest.mark.parametrize("num_workers", [0, 2])


class _Collator:
    """A collate function with state."""

    def __init__(self, shift):
        self.shift = shift

    def __call__(self, samples):
        return torch.tensor(samples) + self.shift


@both
def test_custom_objects(loader_class, num_workers):
    options = {"batch_size": 3, "collate_fn": collate_sentences}
    assert_matches_reference(loader_class, Mapped(sentence, 8), num_workers=num_workers, **options)


@both
def test_list_of_samples_as_they_are(loader_class, num_workers):
    dataset = Mapped(lambda i: (SAMPLES["nested"](i), None, i, torch.zeros(i)), 5)
    assert_matches_reference(
        loader_class, dataset, batch_size=2, collate_fn=identity, num_workers=num_workers
    )


@both
@pytest.mark.parametrize("kind", ["lambda", "closure", "partial", "object", "method"])
def test_every_kind_of_callable(loader_class, num_workers, kind):
    shift = 5

    def closure(samples):
        return torch.tensor(samples) + shift

    collate = {
        "lambda": lambda samples: torch.tensor(samples) + shift,
        "closure": closure,
        "partial": functools.partial(lambda by, samples: torch.tensor(samples) + by, shift),
        "object": _Collator(shift),
        "method": _Collator(shift).__call__,
    }[kind]
    batches = list(loader_class(Numbers(5), batch_size=2, collate_fn=collate, num_workers=num_workers))
    assert_same(batches, [torch.tensor([5, 6]), torch.tensor([7, 8]), torch.tensor([9])])


@both
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda samples: None, id="none"),
        pytest.param(lambda samples: {"n": len(samples)}, id="dict"),
        pytest.param(lambda samples: (samples, {1, 2}, frozenset({3}), 4 + 5j), id="tuple_kept"),
        pytest.param(lambda samples: np.array(samples), id="array_stays_array"),
        pytest.param(lambda samples: np.array([str(s) for s in samples]), id="string_array"),
        pytest.param(lambda samples: np.array([None, samples], dtype=object), id="object_array"),
        pytest.param(lambda samples: sum(samples), id="int"),
        pytest.param(lambda samples: "".join(map(str, samples)), id="str"),
        pytest.param(lambda samples: torch.tensor(samples).t().expand(3, -1).t(), id="strided"),
        pytest.param(lambda samples: torch.empty(0), id="zero_size"),
        pytest.param(lambda samples: torch.eye(3).to_sparse(), id="sparse"),
    ],
)
def test_whatever_it_returns_is_the_batch(loader_class, num_workers, made):
    assert_matches_reference(loader_class, Numbers(6), batch_size=3, collate_fn=made, num_workers=num_workers)


@both
def test_packed_sequences(loader_class, num_workers):
    dataset = Mapped(lambda i: torch.arange(5 - i, dtype=torch.float32), 4)
    collate = torch.nn.utils.rnn.pack_sequence
    assert_matches_reference(loader_class, dataset, batch_size=2, collate_fn=collate, num_workers=num_workers)


def test_the_same_tensor_twice_in_a_batch(loader_class):
    def twice(samples):
        made = torch.tensor(samples)
        return {"one": made, "two": made}

    for num_workers in (0, 2):
        assert_matches_reference(
            loader_class, Numbers(4), batch_size=2, collate_fn=twice, num_workers=num_workers
        )


def test_this_process_hands_over_the_objects_themselves(loader_class):
    samples = [object(), lambda: None, iter([])]
    (batch,) = loader_class(samples, batch_size=3, collate_fn=identity)
    assert all(given is made for given, made in zip(batch, samples, strict=True))


@both
def test_without_batches_it_gets_one_sample(loader_class, num_workers):
    loader = loader_class(
        Numbers(3), batch_size=None, collate_fn=lambda sample: ("got", sample), num_workers=num_workers
    )
    assert_same(list(loader), [("got", 0), ("got", 1), ("got", 2)])


@both
def test_streams_are_collated_alike(loader_class, num_workers):
    loader = loader_class(
        Stream(5, shard=True),
        batch_size=2,
        collate_fn=lambda samples: ("got", samples),
        num_workers=num_workers,
    )
    expected = [[0, 1], [2, 3], [4]] if num_workers == 0 else [[0, 2], [1, 3], [4]]
    assert_same(list(loader), [("got", samples) for samples in expected])


def test_runs_where_the_samples_are_made(loader_class):
    for num_workers in (0, 1):
        made = loader_class(
            Mapped(whereabouts, 2),
            batch_size=2,
            num_workers=num_workers,
            collate_fn=lambda s: [*s, whereabouts(0)],
        )
        first, second, collating = next(iter(made))
        assert first["pid"] == second["pid"] == collating["pid"]
        assert (collating["info"] is None) == (num_workers == 0)


@both
def test_a_registered_type_is_collated(loader_class, num_workers, monkeypatch):
    def collate_sentences_by_map(samples, *, collate_fn_map=None):
        return collate_sentences(samples)

    monkeypatch.setitem(default_collate_fn_map, Sentence, collate_sentences_by_map)
    dataset = Mapped(lambda i: {"sentence": sentence(i), "id": i}, 5)
    assert_matches_reference(loader_class, dataset, batch_size=2, num_workers=num_workers)


def test_a_registered_type_overrides_the_default(loader_class, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, int, lambda samples, *, collate_fn_map=None: sum(samples))
    assert_same(list(loader_class(Numbers(4), batch_size=2)), [1, 5])
    assert_same(list(loader_class(Numbers(4), batch_size=2, num_workers=1)), [1, 5])


def test_default_is_there_to_be_called(loader_class):
    samples = [SAMPLES["nested"](i) for i in range(3)]
    assert_same(loader_class(samples, batch_size=2).collate_fn(samples), default_collate(samples))
    converted = loader_class(samples, batch_size=None).collate_fn(SAMPLES["ndarray"](1))
    assert_same(converted, torch.full((3, 2), 1.0))


@both
def test_many_samples_in_one_call(loader_class, num_workers):
    assert_matches_reference(loader_class, Batched(7), batch_size=3, num_workers=num_workers)
    assert reference(Batched(7), batch_size=3)[0][1] == ("list of 3",) * 3
    assert_matches_reference(loader_class, Batched(3), batch_size=None, num_workers=num_workers)


@both
def test_many_samples_in_one_call_may_be_fewer(loader_class, num_workers):
    class Skipping(Batched):
        def __getitems__(self, indices):
            return [(index, "kept") for index in indices if index % 3]

    assert_matches_reference(loader_class, Skipping(9), batch_size=3, num_workers=num_workers)


def test_no_call_for_many_when_it_is_none(loader_class):
    class Single(Batched):
        __getitems__ = None

    assert_matches_reference(loader_class, Single(4), batch_size=3)
    assert_matches_reference(loader_class, Single(4), batch_size=3, num_workers=1)


@both
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(loader_class, num_workers, layout):
    def collate(samples):
        return torch.nested.nested_tensor(samples, layout=layout), torch.arange(len(samples))

    dataset = Mapped(lambda i: torch.full((i % 3 + 1, 2), float(i)), 6)
    loader = loader_class(dataset, batch_size=3, collate_fn=collate, num_workers=num_workers)
    batches = list(loader)
    assert [batch.layout for batch, _ in batches] == [layout] * 2
    assert [[row.tolist() for row in batch.unbind()] for batch, _ in batches] == [
        [dataset[i].tolist() for i in (3 * b, 3 * b + 1, 3 * b + 2)] for b in range(2)
    ]
