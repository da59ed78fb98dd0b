"""Iterators of one loader are independent, may be left at any point, and end once."""

import itertools
import pickle
import sys
import threading

import pytest
import torch.utils.data

from tests.parity.datasets import Mapped, Numbers
from tests.parity.equality import assert_same, error_from, reference

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])


def values(iterable):
    return [batch.tolist() for batch in iterable]


@both
def test_is_an_iterator(loader_class, num_workers):
    loader = loader_class(Numbers(5), batch_size=2, num_workers=num_workers)
    iterator = iter(loader)
    assert iter(iterator) is iterator
    assert len(iterator) == 3
    next(iterator)
    assert len(iterator) == 3, "the length of an iterator is that of the epoch"
    assert values(iterator) == [[2, 3], [4]]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_the_loader_itself_is_none(loader_class):
    with pytest.raises(TypeError, match="not an iterator"):
        next(loader_class(Numbers(5)))


@both
def test_side_by_side(loader_class, num_workers):
    loader = loader_class(Numbers(7), batch_size=2, num_workers=num_workers)
    pairs = list(zip(loader, loader, strict=True))
    assert [left.tolist() for left, _ in pairs] == [[0, 1], [2, 3], [4, 5], [6]]
    assert [right.tolist() for _, right in pairs] == [[0, 1], [2, 3], [4, 5], [6]]


@both
def test_nested(loader_class, num_workers):
    loader = loader_class(Numbers(4), batch_size=2, num_workers=num_workers)
    seen = [(outer.tolist(), inner.tolist()) for outer in loader for inner in loader]
    assert seen == list(itertools.product([[0, 1], [2, 3]], repeat=2))


@both
def test_two_iterators_at_different_places(loader_class, num_workers):
    loader = loader_class(Numbers(6), batch_size=2, num_workers=num_workers)
    first, second = iter(loader), iter(loader)
    assert first is not second
    assert next(first).tolist() == [0, 1]
    assert next(first).tolist() == [2, 3]
    assert next(second).tolist() == [0, 1]
    assert values(first) == [[4, 5]]
    assert values(second) == [[2, 3], [4, 5]]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 1}]
)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_left_early_then_a_new_epoch(loader_class, options, taken):
    loader = loader_class(Numbers(9), batch_size=2, **options)
    assert values(itertools.islice(iter(loader), taken)) == [[0, 1], [2, 3], [4, 5]][:taken]
    assert values(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


@both
def test_shuffled_iterators_at_once_see_every_sample(loader_class, num_workers):
    loader = loader_class(Numbers(20), batch_size=3, shuffle=True, num_workers=num_workers)
    pairs = list(zip(loader, loader, strict=True))
    for side in (0, 1):
        assert sorted(torch.cat([pair[side] for pair in pairs]).tolist()) == list(range(20))


@both
def test_two_loaders_over_one_dataset(loader_class, num_workers):
    dataset = Mapped(lambda i: torch.full((2,), i), 8)
    train = loader_class(dataset, batch_size=2, sampler=range(0, 8, 2), num_workers=num_workers)
    check = loader_class(dataset, batch_size=3, sampler=range(1, 8, 2), num_workers=num_workers)
    expected = reference(dataset, batch_size=3, sampler=range(1, 8, 2))
    for _ in train:
        assert_same(list(check), expected)


def test_persistent_workers_over_many_epochs(loader_class):
    loader = loader_class(Numbers(5), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(20):
        assert values(loader) == [[0, 1], [2, 3], [4]]


@both
def test_from_another_thread(loader_class, num_workers):
    loader = loader_class(Numbers(9), batch_size=2, num_workers=num_workers)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(values(loader))) for _ in range(2)]
    for thread in threads:
        thread.start()
        if loader_class is torch.utils.data.DataLoader:  # of two threads that fork at once one may hang there
            thread.join(60)
    for thread in threads:
        thread.join(60)
    assert seen == [[[0, 1], [2, 3], [4, 5], [6, 7], [8]]] * 2


def test_many_threads_begin_and_end_at_once(loader_class):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            loader = loader_class(Numbers(9), batch_size=2)
            seen = []
            threads = [threading.Thread(target=lambda: seen.append(values(loader))) for _ in range(4)]  # noqa: B023
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert seen == [[[0, 1], [2, 3], [4, 5], [6, 7], [8]]] * 4
    finally:
        sys.setswitchinterval(interval)


def test_an_iterator_handed_to_another_thread(loader_class):
    iterator = iter(loader_class(Numbers(9), batch_size=2, num_workers=2))
    assert next(iterator).tolist() == [0, 1]
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(values(iterator)))
    thread.start()
    thread.join(60)
    assert seen == [[2, 3], [4, 5], [6, 7], [8]]


def test_an_iterator_is_not_pickled(loader_class):
    iterator = iter(loader_class(Numbers(5), batch_size=2))
    assert isinstance(error_from(lambda: pickle.dumps(iterator)), NotImplementedError | TypeError)


def test_a_loader_is_pickled(loader_class):
    loader = pickle.loads(pickle.dumps(loader_class(Numbers(5), batch_size=2, num_workers=1)))
    assert (loader.batch_size, loader.num_workers, len(loader)) == (2, 1, 3)
    assert values(loader) == [[0, 1], [2, 3], [4]]
