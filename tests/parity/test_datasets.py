"""Every kind of map-style dataset, torch's own wrappers first."""

import os
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from tests.parity.datasets import Batched, Keyed, Mapped, Numbers, Stream, identity
from tests.parity.equality import assert_matches_reference, assert_same, error_from
from tests.parity.samples import SAMPLES

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])

KINDS = {
    "tensor_dataset": lambda: TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7.0)),
    "tensor_dataset_single": lambda: TensorDataset(torch.arange(7)),
    "subset": lambda: Subset(Mapped(SAMPLES["dict"], 20), [3, 19, 3, 0, 7]),
    "subset_of_batched": lambda: Subset(Batched(20), [3, 19, 0, 7, 5]),
    "subset_of_subset": lambda: Subset(Subset(Numbers(20), range(0, 20, 2)), [9, 1, 4]),
    "concat": lambda: ConcatDataset([Numbers(3), Numbers(4, offset=100), [7, 8]]),
    "stack_tuple": lambda: StackDataset(Numbers(7), Mapped(SAMPLES["tensor"], 7)),
    "stack_dict": lambda: StackDataset(number=Numbers(7), text=Mapped(SAMPLES["str"], 7)),
    "stack_of_batched": lambda: StackDataset(Batched(7), Numbers(7)),
    "split": lambda: random_split(Numbers(17), [7, 10], torch.Generator().manual_seed(3))[0],
    "list": lambda: [1, 2, 3, 4, 5, 6, 7],
    "tuple": lambda: ("a", "b", "c"),
    "range": lambda: range(10, 17),
    "text": lambda: "characters",
    "tensor": lambda: torch.arange(14.0).reshape(7, 2),
    "tensor_of_scalars": lambda: torch.arange(7),
    "array": lambda: np.arange(14).reshape(7, 2),
    "array_of_scalars": lambda: np.linspace(0, 1, 7, dtype=np.float32),
    "dict_by_index": lambda: {i: -i for i in range(7)},
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(loader_class, kind, num_workers):
    assert_matches_reference(loader_class, KINDS[kind](), batch_size=3, num_workers=num_workers)


@both
@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 3}, {"batch_size": None}, {"batch_size": 3, "drop_last": True}]
)
def test_empty(loader_class, num_workers, options):
    loader = loader_class(Numbers(0), num_workers=num_workers, **options)
    assert len(loader) == 0
    assert list(loader) == []
    assert list(loader) == []


def test_empty_and_shuffled_is_refused(loader_class):
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        loader_class(Numbers(0), batch_size=2, shuffle=True)


@both
def test_a_dataset_that_cannot_be_pickled(loader_class, num_workers, tmp_path):
    """By default workers inherit the dataset, whatever it holds."""
    file = tmp_path / "numbers"
    file.write_bytes(bytes(range(6)))

    class Local:
        def __init__(self):
            self.lock = threading.Lock()
            self.file = file.open("rb")
            self.parts = (part for part in "abc")

        def __getitem__(self, index):
            with self.lock:
                return os.pread(self.file.fileno(), 1, index)

        def __len__(self):
            return 6

    dataset = Local()
    batches = list(loader_class(dataset, batch_size=4, num_workers=num_workers, multiprocessing_context=None))
    assert_same(batches, [[b"\0", b"\1", b"\2", b"\3"], [b"\4", b"\5"]])
    dataset.file.close()


@both
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_index_is_a_plain_int(loader_class, num_workers, shuffle):
    dataset = Mapped(lambda index: type(index).__qualname__, 4)
    for options in ({"batch_size": 2}, {"batch_size": None}):
        names = list(
            loader_class(dataset, shuffle=shuffle, num_workers=num_workers, collate_fn=identity, **options)
        )
        assert {name for batch in names for name in ([batch] if isinstance(batch, str) else batch)} == {"int"}


def test_each_sample_is_asked_for_once_and_in_order(loader_class):
    asked = []

    class Recording(Numbers):
        def __getitem__(self, index):
            asked.append((index, threading.get_ident()))
            return index

    iterator = iter(loader_class(Recording(7), batch_size=2))
    assert asked == [], "nothing is prepared before the first batch is asked for"
    here = threading.get_ident()
    next(iterator)
    assert asked == [(0, here), (1, here)]
    assert_same(list(iterator), [torch.tensor([2, 3]), torch.tensor([4, 5]), torch.tensor([6])])
    assert asked == [(i, here) for i in range(7)]


@pytest.mark.parametrize(
    ("num_workers", "persistent_workers", "seen"), [(0, False, True), (2, False, True), (2, True, False)]
)
def test_a_change_between_epochs(loader_class, num_workers, persistent_workers, seen):
    dataset = Numbers(4)
    loader = loader_class(
        dataset, batch_size=2, num_workers=num_workers, persistent_workers=persistent_workers
    )
    assert_same(list(loader), [torch.tensor([0, 1]), torch.tensor([2, 3])])
    dataset.offset = 10
    assert_same(list(loader), [torch.tensor([0, 1]) + 10 * seen, torch.tensor([2, 3]) + 10 * seen])


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_a_dataset_that_grows_between_epochs(loader_class, options):
    items = [0, 1, 2]
    loader = loader_class(items, batch_size=2, **options)
    assert (len(loader), len(list(loader))) == (2, 2)
    items += [3, 4]
    assert len(loader) == 3
    assert_same(list(loader), [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4])])


def test_a_shuffled_dataset_that_grows_between_epochs(loader_class):
    items = [0, 1, 2]
    loader = loader_class(items, batch_size=None, shuffle=True)
    assert sorted(loader) == [0, 1, 2]
    items += [3, 4]
    assert sorted(loader) == [0, 1, 2, 3, 4]


def test_a_dataset_without_length(loader_class):
    dataset = Keyed({0: "zero", 1: "one", 2: "two"})
    loader = loader_class(dataset, batch_size=2, sampler=[2, 0, 1])
    assert len(loader) == 2
    assert_same(list(loader), [["two", "zero"], ["one"]])
    with pytest.raises(TypeError, match="len"):
        list(loader_class(dataset, batch_size=2))
    with pytest.raises(TypeError, match="len"):
        list(loader_class(dataset, batch_size=2, shuffle=True))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_subset_of_a_stream_is_refused(loader_class, num_workers):
    loader = loader_class(Subset(Stream(5), [0, 1]), batch_size=2, num_workers=num_workers)
    assert type(error_from(lambda: list(loader))) is NotImplementedError


@both
@pytest.mark.slow
def test_a_very_large_number_of_small_batches(loader_class, num_workers):
    size = 1_000 if num_workers else 20_000
    count = 0
    for count, batch in enumerate(loader_class(Numbers(size), batch_size=1, num_workers=num_workers), 1):
        assert batch.tolist() == [count - 1]
    assert count == size


@both
def test_one_very_large_batch(loader_class, num_workers):
    (batch,) = loader_class(Numbers(30_000), batch_size=100_000, num_workers=num_workers)
    assert torch.equal(batch, torch.arange(30_000))
