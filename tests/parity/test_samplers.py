"""Samplers and batch samplers decide the order exactly, whatever they yield."""

import itertools
import os

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tests.parity.datasets import Batched, Keyed, Mapped, Numbers
from tests.parity.equality import assert_matches_reference, assert_same, error_from

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


class Countdown:
    """A sampler that is no Sampler, knows no length and runs as a generator."""

    def __init__(self, start):
        self.start = start

    def __iter__(self):
        yield from range(self.start, -1, -1)


SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(10)),
    "random": lambda: RandomSampler(range(10), generator=seeded()),
    "random_replacement": lambda: RandomSampler(
        range(10), replacement=True, num_samples=13, generator=seeded()
    ),
    "random_fewer": lambda: RandomSampler(range(10), num_samples=4, generator=seeded()),
    "random_more": lambda: RandomSampler(range(10), num_samples=17, generator=seeded()),
    "weighted": lambda: WeightedRandomSampler([0.1, 5, 3, 0, 1], 9, generator=seeded()),
    "weighted_once": lambda: WeightedRandomSampler(
        [0.1, 5, 3, 0.2, 1], 4, replacement=False, generator=seeded()
    ),
    "subset": lambda: SubsetRandomSampler([9, 2, 2, 5], generator=seeded()),
    "distributed": lambda: DistributedSampler(range(10), num_replicas=3, rank=1, seed=5),
    "distributed_in_order": lambda: DistributedSampler(range(10), num_replicas=3, rank=2, shuffle=False),
    "list": lambda: [3, 1, 4, 1, 5, 9, 2, 6],
    "tuple": lambda: (8, 8, 8),
    "range": lambda: range(9, 0, -2),
    "array": lambda: np.array([3, 1, 4]),
    "tensor": lambda: torch.tensor([3, 1, 4]),
    "empty": lambda: [],
}


@both
@pytest.mark.parametrize("kind", SAMPLERS)
def test_sampler_gives_the_exact_order(loader_class, kind, num_workers):
    expected = [int(index) for index in SAMPLERS[kind]()]
    loader = loader_class(Numbers(10), batch_size=3, sampler=SAMPLERS[kind](), num_workers=num_workers)
    assert len(loader) == -(-len(expected) // 3)
    assert [batch.tolist() for batch in loader] == [expected[i : i + 3] for i in range(0, len(expected), 3)]


@pytest.mark.parametrize("kind", ["random", "weighted", "distributed", "list"])
def test_sampler_with_drop_last_and_without_batches(loader_class, kind):
    expected = [int(index) for index in SAMPLERS[kind]()]
    whole = loader_class(Numbers(10), batch_size=3, drop_last=True, sampler=SAMPLERS[kind]())
    assert len(whole) == len(expected) // 3
    assert [batch.tolist() for batch in whole] == [
        expected[i : i + 3] for i in range(0, len(expected) - 2, 3)
    ]
    single = loader_class(Numbers(10), batch_size=None, sampler=SAMPLERS[kind]())
    assert len(single) == len(expected)
    assert list(single) == expected


@both
def test_random_sampler_goes_on_with_its_generator(loader_class, num_workers):
    sampler = RandomSampler(range(10), generator=seeded())
    expected = [list(sampler), list(sampler)]
    loader = loader_class(
        Numbers(10),
        batch_size=None,
        sampler=RandomSampler(range(10), generator=seeded()),
        num_workers=num_workers,
    )
    assert [list(loader), list(loader)] == expected


@both
def test_distributed_sampler_follows_set_epoch(loader_class, num_workers):
    def order(rank, epoch):
        sampler = DistributedSampler(range(11), num_replicas=2, rank=rank, shuffle=True, seed=3)
        sampler.set_epoch(epoch)
        return list(sampler)

    samplers = [DistributedSampler(range(11), num_replicas=2, rank=rank, seed=3) for rank in (0, 1)]
    loaders = [loader_class(Numbers(11), batch_size=4, sampler=s, num_workers=num_workers) for s in samplers]
    for epoch in range(3):
        seen = []
        for rank, (sampler, loader) in enumerate(zip(samplers, loaders, strict=True)):
            sampler.set_epoch(epoch)
            assert len(loader) == 2
            mine = torch.cat(list(loader)).tolist()
            assert mine == order(rank, epoch)
            seen += mine
        assert set(seen) == set(range(11))
    assert order(0, 0) != order(0, 1)


@both
def test_sampler_without_length(loader_class, num_workers):
    loader = loader_class(Numbers(10), batch_size=4, sampler=Countdown(9), num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert [batch.tolist() for batch in loader] == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    with pytest.raises(TypeError, match="len"):
        len(loader)


@both
def test_a_generator_as_sampler_lasts_one_epoch(loader_class, num_workers):
    loader = loader_class(Numbers(10), batch_size=2, sampler=(i for i in (5, 6, 7)), num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == [[5, 6], [7]]
    assert list(loader) == []


@both
def test_an_endless_sampler_is_read_as_needed(loader_class, num_workers):
    class Endless:
        def __iter__(self):
            yield from itertools.islice(itertools.cycle(range(3)), 1_000)
            raise AssertionError("read far ahead of what was asked for")

    iterator = iter(loader_class(Numbers(3), batch_size=2, sampler=Endless(), num_workers=num_workers))
    assert [batch.tolist() for batch in itertools.islice(iterator, 5)] == [
        [0, 1],
        [2, 0],
        [1, 2],
        [0, 1],
        [2, 0],
    ]


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(0, None), (1, 1), (2, 1), (2, 3)])
def test_a_batch_sampler_is_read_no_further_than_prefetched(loader_class, num_workers, prefetch_factor):
    read = []

    class Watched:
        def __iter__(self):
            for start in range(0, 60, 2):
                read.append((start, os.getpid()))
                yield [start, start + 1]

    loader = loader_class(
        Numbers(60), batch_sampler=Watched(), num_workers=num_workers, prefetch_factor=prefetch_factor
    )
    ahead = num_workers * (prefetch_factor or 0)
    for delivered, _ in enumerate(loader, 1):
        assert delivered <= len(read) <= min(delivered + ahead, 30)
    assert len(read) == 30
    assert {pid for _, pid in read} == {os.getpid()}, "samplers run in the process that iterates"


@both
def test_keys_of_any_kind(loader_class, num_workers):
    items = {"cat": 0, "dog": 1, ("a", 2): 2, 3.5: 3, None: 4, frozenset({1}): 5}
    keys = ["dog", None, ("a", 2), frozenset({1}), "cat", 3.5]
    expected = [[1, 4, 2, 5], [0, 3]]
    loader = loader_class(Keyed(items), batch_size=4, sampler=keys, num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == expected
    loader = loader_class(Keyed(items), batch_sampler=[keys[:4], keys[4:]], num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == expected
    loader = loader_class(Keyed(items), batch_size=None, sampler=keys, num_workers=num_workers)
    assert list(loader) == [1, 4, 2, 5, 0, 3]


@both
def test_slices_as_keys_fetch_whole_batches(loader_class, num_workers):
    table = torch.arange(20).reshape(10, 2)
    parts = [slice(0, 4), slice(4, 8), slice(8, 10)]
    loader = loader_class(table, batch_size=None, sampler=parts, num_workers=num_workers)
    assert_same(list(loader), [table[part].clone() for part in parts])


@both
def test_lists_as_keys_without_batches(loader_class, num_workers):
    """Bulk reading: a batch sampler given as sampler, and no batching by the loader."""
    dataset = Mapped(lambda i: i, 10)
    dataset.__class__ = type(
        "Bulk", (Mapped,), {"__getitem__": lambda self, indices: torch.tensor(indices) * 2}
    )
    sampler = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    loader = loader_class(dataset, batch_size=None, sampler=sampler, num_workers=num_workers)
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


BATCH_SAMPLERS = {
    "list_of_lists": lambda: [[0, 1, 2], [3], [4, 5, 6, 7, 8], [9, 0]],
    "tuples": lambda: ((0, 1), (2, 3, 4)),
    "arrays": lambda: np.arange(10).reshape(5, 2),
    "batch_sampler": lambda: BatchSampler(RandomSampler(range(10), generator=seeded()), 3, drop_last=True),
    "over_a_list": lambda: BatchSampler([1, 1, 2], 2, drop_last=False),
    "empty": lambda: [],
}


@both
@pytest.mark.parametrize("kind", BATCH_SAMPLERS)
def test_batch_sampler_gives_the_exact_batches(loader_class, kind, num_workers):
    expected = [[int(index) for index in batch] for batch in BATCH_SAMPLERS[kind]()]
    loader = loader_class(Numbers(10), batch_sampler=BATCH_SAMPLERS[kind](), num_workers=num_workers)
    assert len(loader) == len(expected)
    assert loader.batch_size is None
    assert [batch.tolist() for batch in loader] == expected


def test_batch_sampler_may_change_from_epoch_to_epoch(loader_class):
    class Growing(Sampler):
        epoch = 0

        def __iter__(self):
            yield from [[i] * self.epoch for i in range(2)]

        def __len__(self):
            return 2

    sampler = Growing()
    loader = loader_class(Numbers(3), batch_sampler=sampler)
    for epoch in (1, 2, 3):
        sampler.epoch = epoch
        assert [batch.tolist() for batch in loader] == [[0] * epoch, [1] * epoch]


@both
def test_batch_sampler_with_many_samples_in_one_call(loader_class, num_workers):
    options = {"batch_sampler": [[4, 2], [1], [0, 3, 4]]}
    assert_matches_reference(loader_class, Batched(5), num_workers=num_workers, **options)


@both
def test_an_error_in_a_sampler_arrives_as_it_is(loader_class, num_workers):
    def broken():
        yield from (0, 1, 2)
        raise LookupError("no more indices")

    loader = loader_class(Numbers(10), batch_size=2, sampler=broken(), num_workers=num_workers)
    caught = error_from(lambda: list(loader))
    assert type(caught) is LookupError
    assert caught.args == ("no more indices",)


@both
def test_an_index_out_of_range(loader_class, num_workers):
    loader = loader_class(Mapped(int, 3), batch_size=2, sampler=[0, 7], num_workers=num_workers)
    caught = error_from(lambda: list(loader))
    assert type(caught) is IndexError
    assert "index 7 is outside of 3 samples" in str(caught)
