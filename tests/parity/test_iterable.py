"""Iterable datasets: batches, sharding, the order over workers, lengths and the warning about them."""

import itertools
import os
import warnings

import pytest
import torch
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info

from tests.parity.datasets import Lopsided, Stream, identity, split_stream
from tests.parity.equality import assert_same, reference

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])


def in_turns(shards, batch_size, drop_last=False):
    """Batches of each shard, one shard after the other and round again, skipping those that ended."""
    step = batch_size or 1
    queues = [[shard[i : i + step] for i in range(0, len(shard), step)] for shard in shards]
    if drop_last:
        queues = [[batch for batch in queue if len(batch) == step] for queue in queues]
    rounds = itertools.zip_longest(*queues)
    batches = [batch for one_round in rounds for batch in one_round if batch is not None]
    return [sample for (sample,) in batches] if batch_size is None else batches


def values(loader):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


@pytest.mark.parametrize("size", [0, 1, 5, 12])
@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 5}, {"batch_size": 5, "drop_last": True}, {"batch_size": None}, {"batch_size": 3}],
)
def test_in_this_process(loader_class, size, options):
    loader = loader_class(Stream(size), **options)
    assert_same(list(loader), reference(Stream(size), **options))
    assert_same(list(loader), reference(Stream(size), **options))


@pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(None, False), (1, False), (1, True), (3, False), (3, True), (100, False)]
)
@pytest.mark.parametrize("shard", [False, True])
def test_workers_take_turns(loader_class, batch_size, drop_last, shard):
    loader = loader_class(Stream(11, shard=shard), batch_size=batch_size, drop_last=drop_last, num_workers=2)
    shards = [range(0, 11, 2), range(1, 11, 2)] if shard else [range(11)] * 2
    assert values(loader) == in_turns([list(part) for part in shards], batch_size, drop_last)


@pytest.mark.parametrize("sizes", [[0, 7], [7, 0], [1, 9], [9, 1], [0, 0]])
@pytest.mark.parametrize("batch_size", [2, None])
def test_workers_that_end_early_are_passed_over(loader_class, sizes, batch_size):
    loader = loader_class(Lopsided(sizes), batch_size=batch_size, num_workers=2)
    shards = [list(range(100 * i, 100 * i + size)) for i, size in enumerate(sizes)]
    assert values(loader) == in_turns(shards, batch_size)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_three_workers_of_different_length(loader_class):
    loader = loader_class(Lopsided([3, 11, 6]), batch_size=2, num_workers=3, prefetch_factor=1)
    shards = [list(range(100 * i, 100 * i + size)) for i, size in enumerate([3, 11, 6])]
    assert values(loader) == in_turns(shards, 2)


@both
def test_sharded_by_worker_init_fn(loader_class, num_workers):
    loader = loader_class(Stream(9), batch_size=2, num_workers=num_workers, worker_init_fn=split_stream)
    shards = [list(range(5)), list(range(5, 9))] if num_workers else [list(range(9))]
    assert values(loader) == in_turns(shards, 2)
    assert values(loader) == in_turns(shards, 2), "the dataset itself was not changed"


def test_persistent_workers_start_over(loader_class):
    loader = loader_class(Lopsided([1, 6]), batch_size=2, num_workers=2, persistent_workers=True)
    expected = in_turns([[0], [100, 101, 102, 103, 104, 105]], 2)
    for _ in range(3):
        assert values(loader) == expected


@both
def test_an_epoch_left_early_starts_over(loader_class, num_workers):
    loader = loader_class(Stream(9, shard=True), batch_size=2, num_workers=num_workers)
    whole = values(loader)
    for batch in loader:
        assert batch.tolist() == whole[0]
        break
    assert values(loader) == whole


@both
def test_generators_and_endless_streams(loader_class, num_workers):
    class Endless(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            number = 0 if info is None else 1000 * info.id
            for later in range(number, number + 1_000):
                yield {"number": later, "text": f"n{later}"}
            raise AssertionError("read far ahead of what was asked for")

    iterator = iter(loader_class(Endless(), batch_size=2, num_workers=num_workers))
    taken = [batch["number"].tolist() for batch in itertools.islice(iterator, 4)]
    expected = (
        [[0, 1], [1000, 1001], [2, 3], [1002, 1003]] if num_workers else [[0, 1], [2, 3], [4, 5], [6, 7]]
    )
    assert taken == expected


def test_this_process_reads_only_what_a_batch_needs(loader_class):
    read = []

    class Recording(IterableDataset):
        def __iter__(self):
            for number in range(6):
                read.append((number, os.getpid()))
                yield number

    iterator = iter(loader_class(Recording(), batch_size=2))
    next(iterator)
    assert [number for number, _ in read] == [0, 1]
    next(iterator)
    assert [number for number, _ in read] == [0, 1, 2, 3]
    assert {pid for _, pid in read} == {os.getpid()}


def test_an_iterator_of_its_own_goes_on_from_epoch_to_epoch(loader_class):
    class Cursor(IterableDataset):
        def __init__(self):
            self.position = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.position += 1
            if self.position % 4 == 0:
                raise StopIteration
            return self.position

    dataset = Cursor()
    loader = loader_class(dataset, batch_size=2)
    assert values(loader) == [[1, 2], [3]]
    assert values(loader) == [[5, 6], [7]]
    assert dataset.position == 8, "without workers it is the caller's own dataset that is read"


@both
def test_chained_streams(loader_class, num_workers):
    chain = ChainDataset([Stream(3), Stream(14, start=10)])
    loader = loader_class(chain, batch_size=3, num_workers=num_workers)
    shard = [0, 1, 2, 10, 11, 12, 13]
    assert values(loader) == in_turns([shard] * max(num_workers, 1), 3)
    chain = Stream(3, length=3) + Stream(14, start=10, length=4)
    assert len(loader_class(chain, batch_size=3)) == 3


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"batch_size": 4}, 3),
        ({"batch_size": 4, "drop_last": True}, 2),
        ({"batch_size": None}, 10),
        ({}, 10),
        ({"batch_size": 20}, 1),
        ({"batch_size": 20, "drop_last": True}, 0),
        ({"batch_size": 4, "num_workers": 2}, 3),
    ],
)
def test_length_is_the_datasets(loader_class, options, length):
    assert len(loader_class(Stream(10, length=10), **options)) == length


def test_no_length_without_the_datasets(loader_class):
    loader = loader_class(Stream(10), batch_size=4)
    with pytest.raises(TypeError, match="this stream has no length"):
        len(loader)
    assert len(list(loader)) == 3


@both
def test_a_length_too_short_warns(loader_class, num_workers):
    loader = loader_class(Stream(6, shard=True, length=4), batch_size=1, num_workers=num_workers)
    assert len(loader) == 4
    with pytest.warns(UserWarning, match="Length of IterableDataset .* was reported to be 4") as caught:
        assert len(list(loader)) == 6
    told = [str(w.message) for w in caught if "Length of IterableDataset" in str(w.message)]
    assert "5 samples have been fetched" in told[0]
    assert ("worker" in told[0]) == (num_workers > 0), (
        "with workers the warning says that they may be the cause"
    )


@both
@pytest.mark.parametrize("asked", [False, True])
def test_no_warning_when_nobody_asked_or_the_length_is_right(loader_class, num_workers, asked):
    loader = loader_class(
        Stream(6, shard=True, length=6 if asked else 4), batch_size=1, num_workers=num_workers
    )
    if asked:
        assert len(loader) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 6


@both
def test_any_iterable_sample(loader_class, num_workers):
    class Words(IterableDataset):
        def __iter__(self):
            yield from ["one", None, {"two": 2}, (3, "three")]

    loader = loader_class(Words(), batch_size=3, collate_fn=identity, num_workers=num_workers)
    assert next(iter(loader)) == ["one", None, {"two": 2}]


def test_a_loader_inside_a_dataset(loader_class):
    class Outer(IterableDataset):
        def __iter__(self):
            for batch in loader_class(range(6), batch_size=2):
                yield batch.sum()

    for num_workers in (0, 1):
        assert values(loader_class(Outer(), batch_size=2, num_workers=num_workers)) == [[1, 5], [9]]


class Countdown(IterableDataset):
    """Its own iterator: ``iter()`` starts it over, and is noted."""

    def __init__(self, size):
        self.size = size
        self.left = 0
        self.starts = 0

    def __iter__(self):
        info = get_worker_info()
        self.starts += 1
        self.left = self.size + (info.id if info else 0)
        return self

    def __next__(self):
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        info = get_worker_info()
        return 1000 * (info.id if info else 0) + 100 * self.starts + self.left


@pytest.mark.parametrize(
    ("num_workers", "persistent"), [(0, False), (1, False), (3, False), (1, True), (3, True)]
)
@pytest.mark.parametrize(
    "options", [{"batch_size": 2}, {"batch_size": 2, "drop_last": True}, {"batch_size": None}]
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_an_iterator_of_its_own_starts_once_an_epoch(loader_class, num_workers, persistent, options):
    options = {**options, "num_workers": num_workers, "persistent_workers": persistent}
    loader, expected = (
        loader_class(Countdown(5), **options),
        torch.utils.data.DataLoader(Countdown(5), **options),
    )
    for _ in range(2):
        assert_same(list(loader), list(expected))
