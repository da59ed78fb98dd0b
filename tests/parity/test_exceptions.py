"""Errors in user code: the same type arrives, with the worker's traceback in its text."""

import threading

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.parity.datasets import Failing, Gate, Numbers
from tests.parity.equality import assert_same, error_from

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])


class TwoArguments(Exception):
    """An error that one text alone cannot make."""

    def __init__(self, code, detail):
        super().__init__(code, detail)
        self.code = code


class ByMessage(Exception):
    """An error that wants its text by name."""

    message = "declared"

    def __init__(self, code=0, *, message):
        super().__init__(message)
        self.code = code


class Plain(Exception):
    """An error of the user's own."""


def chained():
    try:
        raise OSError("disk is gone")
    except OSError as cause:
        error = ValueError("cannot read")
        error.__cause__ = cause
        return error


ERRORS = {
    "value": (lambda: ValueError("bad pixel"), ValueError, "ValueError: bad pixel"),
    "key": (lambda: KeyError("colour"), KeyError, "KeyError: 'colour'"),
    "index": (lambda: IndexError("too far"), IndexError, "IndexError: too far"),
    "type": (lambda: TypeError("no such type"), TypeError, "TypeError: no such type"),
    "os": (lambda: FileNotFoundError(2, "No such file", "/a.jpg"), FileNotFoundError, "No such file"),
    "assertion": (lambda: AssertionError(), AssertionError, "AssertionError"),
    "not_implemented": (lambda: NotImplementedError("later"), NotImplementedError, "later"),
    "own": (lambda: Plain("mine"), Plain, "Plain: mine"),
    "by_message": (lambda: ByMessage(3, message="named"), ByMessage, "named"),
    "two_arguments": (
        lambda: TwoArguments(404, "gone"),
        RuntimeError,
        "Caught TwoArguments in DataLoader worker",
    ),
    "unicode": (
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        RuntimeError,
        "UnicodeDecodeError",
    ),
    "chained": (chained, ValueError, "disk is gone"),
    "cannot_be_pickled": (lambda: ValueError(threading.Lock()), ValueError, "_thread.lock object"),
    "out_of_memory": (lambda: MemoryError("too large"), MemoryError, "too large"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_from_a_worker(loader_class, kind):
    make, expected, text = ERRORS[kind]
    caught = error_from(lambda: list(loader_class(Failing(2, {1: make}), batch_size=2, num_workers=1)))
    assert type(caught) is expected
    told = str(caught)
    assert f"Caught {type(make()).__name__} in DataLoader worker process 0.\nOriginal Traceback" in told
    assert "in __getitem__" in told
    assert "raise self.errors[index]()" in told
    assert text in told


@pytest.mark.parametrize("kind", ERRORS)
def test_from_this_process_as_it_is(loader_class, kind):
    made = ERRORS[kind][0]()
    caught = error_from(lambda: list(loader_class(Failing(2, {1: lambda: made}), batch_size=2)))
    assert caught is made


@both
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_iteration_goes_on_after_an_error(loader_class, num_workers, persistent_workers):
    dataset = Failing(9, {2: lambda: ValueError("two"), 7: lambda: Plain("seven")})
    options = {"persistent_workers": persistent_workers} if num_workers else {}
    loader = loader_class(dataset, batch_size=2, num_workers=num_workers, **options)
    for _ in range(2):
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        assert "two" in str(error_from(lambda: next(iterator), ValueError))  # noqa: B023
        assert next(iterator).tolist() == [4, 5]
        assert "seven" in str(error_from(lambda: next(iterator), Plain))  # noqa: B023
        assert next(iterator).tolist() == [8]
        with pytest.raises(StopIteration):
            next(iterator)


@both
def test_stop_iteration_in_a_map_dataset_ends_the_loop(loader_class, num_workers):
    loader = loader_class(Failing(8, {5: StopIteration}), batch_size=2, num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


@both
def test_in_a_collate_function(loader_class, num_workers):
    def broken_collate(samples):
        if 2 in samples:
            raise Plain("cannot be put together")
        return samples

    iterator = iter(
        loader_class(Numbers(6), batch_size=2, collate_fn=broken_collate, num_workers=num_workers)
    )
    assert next(iterator) == [0, 1]
    caught = error_from(lambda: next(iterator), Plain)
    assert "cannot be put together" in str(caught)
    if num_workers:
        assert "Caught Plain in DataLoader worker process" in str(caught)
        assert "in broken_collate" in str(caught)
    assert next(iterator) == [4, 5]


def test_in_worker_init_fn(loader_class):
    def broken_start(worker_id):
        raise Plain(f"worker {worker_id} cannot start")

    iterator = iter(loader_class(Numbers(8), batch_size=2, num_workers=2, worker_init_fn=broken_start))
    caught = error_from(lambda: next(iterator), Plain)
    assert "Caught Plain in DataLoader worker process" in str(caught)
    assert "cannot start" in str(caught)
    assert "in broken_start" in str(caught)


def test_in_worker_init_fn_of_one_worker(loader_class, tmp_path):
    """The epoch does not go by as if all workers had started."""
    failed = tmp_path / "failed"

    def start(worker_id):
        if worker_id == 1:
            failed.touch()
            raise Plain("worker 1 cannot start")

    loader = loader_class(Gate(3_000, failed, closed=0), batch_size=1, num_workers=2, worker_init_fn=start)
    caught = error_from(lambda: list(map(int, loader)))
    assert type(caught) is Plain
    assert "worker process 1" in str(caught)


@both
def test_in_a_call_for_many_samples(loader_class, num_workers):
    class Broken(Numbers):
        def __getitems__(self, indices):
            raise Plain("not all of them")

    caught = error_from(lambda: list(loader_class(Broken(4), batch_size=2, num_workers=num_workers)))
    assert type(caught) is Plain
    assert "not all of them" in str(caught)


class BrokenStream(IterableDataset):
    """Each worker yields three numbers and raises at the fourth; worker 1 is fine when asked to be."""

    def __init__(self, healthy=()):
        self.healthy = healthy

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        yield from range(100 * worker, 100 * worker + 3)
        if worker not in self.healthy:
            raise Plain("the stream broke")
        yield from range(100 * worker + 3, 100 * worker + 8)


@both
@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_in_a_stream(loader_class, num_workers, batch_size):
    loader = loader_class(BrokenStream(), batch_size=batch_size, num_workers=num_workers)
    iterator, seen = iter(loader), []

    def read():
        while True:
            seen.append(next(iterator))

    caught = error_from(read, Plain)
    assert "the stream broke" in str(caught)
    assert ("Caught Plain in DataLoader worker process" in str(caught)) == (num_workers > 0)
    whole = 1 if batch_size == 2 else 3
    assert len(seen) == whole * max(num_workers, 1)
    if num_workers == 0:
        with pytest.raises(StopIteration):
            next(iterator)


def test_a_stream_goes_on_with_its_healthy_workers(loader_class):
    iterator = iter(loader_class(BrokenStream(healthy=[1]), batch_size=2, num_workers=2))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [100, 101]]
    error_from(lambda: next(iterator), Plain)
    assert [batch.tolist() for batch in iterator] == [[102, 103], [104, 105], [106, 107]]


@both
def test_at_the_start_of_a_stream(loader_class, num_workers):
    class Unopened(IterableDataset):
        def __iter__(self):
            raise Plain("cannot open")

    caught = error_from(lambda: list(loader_class(Unopened(), num_workers=num_workers)))
    assert type(caught) is Plain
    assert "cannot open" in str(caught)


@both
def test_a_new_epoch_after_an_error(loader_class, num_workers):
    dataset = Failing(4, {2: lambda: ValueError("once")})
    loader = loader_class(dataset, batch_size=2, num_workers=num_workers)
    error_from(lambda: list(loader), ValueError)
    dataset.errors = {}
    assert_same(list(loader), [torch.tensor([0, 1]), torch.tensor([2, 3])])
