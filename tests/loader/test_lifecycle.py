"""From the first iterator to the last: closing, dropping, leaving early, forking, threads, errors on the way."""

import gc
import multiprocessing
import os
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import headrace as hr
from tests.descriptors import none_left_open
from tests.loader.helpers import (
    Squares,
    assert_same,
    descendants,
    drain,
    flat,
    index_of,
    recipe,
    targets,
    wait_until,
)


def make(size=40, **options):
    options = {"batch_size": 4, "num_workers": 2, "seed": 6, "shuffle": True, **options}
    return hr.DataLoader(recipe(size), **options)


def test_leaving_a_with_block_stops_the_workers():
    with make() as loader:
        next(iter(loader))
        assert len(descendants()) == 2
    assert descendants() == []


def test_closing_twice_is_closing():
    loader = make()
    loader.close()
    loader.close()
    loader = make()
    drain(loader)
    loader.close()
    loader.close()


def test_a_closed_loader_says_so():
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    for use in (lambda: next(iterator), lambda: iter(loader), lambda: list(loader)):
        with pytest.raises(hr.LoaderClosed, match="closed"):
            use()
    assert loader.state_dict()["position"] == 4
    assert len(loader) == 10


@pytest.mark.parametrize("dataset", ["recipe", "torch", "inline"])
@pytest.mark.parametrize("moment", ["unused", "during", "after"])
def test_a_dropped_loader_leaves_nothing(dataset, moment):
    def use():
        if dataset == "recipe":
            loader = make(cache="1MiB")
        elif dataset == "inline":
            loader = make(num_workers=0)
        else:
            loader = hr.DataLoader(Squares(40), batch_size=4, num_workers=2, persistent_workers=True)
        if moment != "unused":
            iterator = iter(loader)
            next(iterator)
        if moment == "after":
            drain(iterator)
        return weakref.ref(loader)

    use()
    gc.collect()
    with none_left_open():
        assert use()() is None, "no cycle and no registry keeps it"
        assert wait_until(lambda: not descendants(), 10)


def test_descriptors_do_not_pile_up():
    def once():
        with make(20) as loader:
            for _ in range(2):
                drain(loader)
            next(iter(loader))
        list(hr.DataLoader(Squares(20), batch_size=4, num_workers=2))

    once()
    with none_left_open():
        for _ in range(5):
            once()


def test_an_epoch_can_be_left_early():
    with make() as loader:
        whole = [targets(loader) for _ in range(3)]
        loader.set_epoch(0)
        for _ in range(3):
            for step, _batch in enumerate(loader):
                if step == 1:
                    break
        loader.set_epoch(0)
        assert [targets(loader) for _ in range(3)] == whole
        pids = set(descendants())
        next(iter(loader))
        targets(loader)
        assert set(descendants()) == pids, "the same workers go on"


def test_leaving_right_away_many_times():
    with make(400, batch_size=8) as loader:
        for _ in range(30):
            next(iter(loader))
        loader.set_epoch(1)
        assert sorted(flat(targets(loader))) == list(range(400))
        assert loader.stats().restarts == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_at_once(num_workers):
    with make(num_workers=num_workers) as loader:
        epochs = [targets(loader) for _ in range(4)]
        loader.set_epoch(0)
        first, second = iter(loader), iter(loader)
        mixed = [[], []]
        for _ in range(10):
            mixed[0].append(next(first)[1].tolist())
            mixed[1].append(next(second)[1].tolist())
        assert mixed == epochs[:2]
        for iterator in (first, second):
            with pytest.raises(StopIteration):
                next(iterator)
        assert targets(loader) == epochs[2], "neither leaves its draws to those who follow"
        assert targets(loader) == epochs[3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_inside_a_loop(num_workers):
    with make(12, num_workers=num_workers, shuffle=False) as loader:
        seen = [(outer[1].tolist(), [inner[1].tolist() for inner in loader]) for outer in loader]
    inner = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert seen == [(batch, inner) for batch in inner]


def test_one_loader_inside_another():
    with make(12) as train, make(8, shuffle=False) as validate:
        for _ in train:
            assert flat(targets(validate)) == list(range(8))
        assert len(descendants()) == 4


def test_an_iterator_keeps_its_loader_alive():
    iterator = iter(make())
    gc.collect()
    assert len(list(iterator)) == 10
    with pytest.raises(StopIteration):
        next(iterator)


def test_iterating_in_another_thread():
    found = []

    def run():
        with make() as loader:
            found.append(targets(loader))
            found.append(targets(loader))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    with make() as loader:
        assert found == [targets(loader), targets(loader)]


def test_a_loader_may_move_between_threads():
    with make() as loader:
        whole = targets(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        found = [next(iterator)[1].tolist()]

        def rest():
            found.extend(batch[1].tolist() for batch in iterator)

        thread = threading.Thread(target=rest)
        thread.start()
        thread.join(60)
        assert found == whole


def fork(function):
    """Run a function in a child of a plain fork, which ends as a script does; returns its exit status."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            # What a script's end does: drop objects, run exit handlers. pytest's own must not run.
            gc.collect()
            multiprocessing.util._exit_function()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_forked_child_does_not_disturb_the_workers(num_workers):
    with make(200, num_workers=num_workers, cache="1MiB") as loader:
        whole = drain(loader)
        loader.set_epoch(0)
        holder = [iter(loader)]
        found = [[tensor.clone() for tensor in next(holder[0])] for _ in range(3)]

        def child():
            holder.clear()
            gc.collect()

        assert fork(child) == 0
        assert fork(loader.close) == 0
        found += drain(holder[0])
        assert_same(found, whole)
        assert loader.stats().restarts == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_forked_child_may_load_for_itself(num_workers):
    with make(num_workers=num_workers) as loader:
        whole = targets(loader)
        iterator = iter(loader)
        next(iterator)

        def child():
            with pytest.raises(hr.LoaderClosed, match="forked"):
                next(iterator)
            loader.set_epoch(0)
            loader._epochs.live = None
            assert targets(loader) == whole
            loader.close()

        assert fork(child) == 0
        assert len(list(iterator)) == 9


def test_workers_are_not_left_with_the_files_of_others():
    """The end of a worker's link must show at once, whatever other loaders were started since."""
    with make() as first, make() as second:
        next(iter(first)), next(iter(second))
        pids = [worker.pid for worker in first._epochs.session.host.workers]
        first.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_an_exception_in_the_loop_stops_nothing():
    with make() as loader:
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
        assert len(targets(loader)) == 10


def test_errors_of_a_dataset_carry_the_workers_traceback():
    class Broken(Squares):
        def __getitem__(self, index):
            raise KeyError("name of the key")

    with pytest.raises(KeyError) as caught:
        list(hr.DataLoader(Broken(), batch_size=4, num_workers=2))
    text = str(caught.value)
    assert "Caught KeyError in DataLoader worker process" in text
    assert "in __getitem__" in text
    assert "name of the key" in text


class Awkward(Exception):
    """Cannot be made from a message alone."""

    def __init__(self, one, two):
        super().__init__(one, two)


@pytest.mark.parametrize(
    "error",
    [Awkward(1, 2), ValueError("x" * 5_000_000), SystemExit(4), MemoryError()],
    ids=lambda e: type(e).__name__,
)
def test_errors_of_every_kind_arrive(error):
    class Broken(Squares):
        def __getitem__(self, index):
            raise error

    with pytest.raises(Exception, match=type(error).__name__):
        list(hr.DataLoader(Broken(), batch_size=4, num_workers=1))


def test_a_local_exception_class_arrives_by_name():
    class Local(Exception):
        pass

    class Broken(Squares):
        def __getitem__(self, index):
            raise Local("here")

    with pytest.raises(Exception, match="Local") as caught:
        list(hr.DataLoader(Broken(), batch_size=4, num_workers=1))
    assert "here" in str(caught.value)


def test_worker_init_fn_that_fails_says_so():
    def init(worker):
        raise OSError("no licence for this dataset")

    for loader in (make(worker_init_fn=init), hr.DataLoader(Squares(), num_workers=2, worker_init_fn=init)):
        with pytest.raises(OSError, match="no licence"):
            list(loader)
        loader.close()


def sleepy(seconds, victim):
    def decode(data):
        if index_of(data) == victim:
            time.sleep(seconds)
        return np.zeros(2)

    return hr.Recipe(hr.synthetic.source(20, classes=20), decode=decode)


@pytest.mark.parametrize("victim", [0, 9], ids=["first", "later"])
def test_a_timeout_is_an_error_after_which_waiting_may_go_on(victim):
    with hr.DataLoader(sleepy(0.8, victim), batch_size=4, num_workers=1, timeout=0.2) as loader:
        iterator, found, late = iter(loader), [], []
        while True:
            try:
                found.append(next(iterator)[1].tolist())
            except RuntimeError as error:
                late.append(str(error))
            except StopIteration:
                break
        assert set(late) == {"DataLoader timed out after 0.2 seconds"}
        assert flat(found) == list(range(20))


def test_no_timeout_while_batches_come():
    with hr.DataLoader(sleepy(0.3, 5), batch_size=4, num_workers=1, timeout=30) as loader:
        assert flat(targets(loader)) == list(range(20))


class Uneven(IterableDataset):
    """Each worker's part has another length; slow ones must not change the order."""

    def __init__(self, lengths, slow=None):
        self.lengths, self.slow = lengths, slow

    def __iter__(self):
        worker = get_worker_info().id
        for number in range(self.lengths[worker]):
            if worker == self.slow:
                time.sleep(0.02)
            yield worker * 100 + number


@pytest.mark.parametrize("lengths", [(1, 7, 4), (9, 0, 2), (3, 3, 8)], ids=str)
def test_iterable_batches_come_in_turn_whoever_is_slow(lengths):
    expected, left = (
        [],
        {worker: list(range(worker * 100, worker * 100 + n)) for worker, n in enumerate(lengths)},
    )
    while any(left.values()):
        expected += [numbers.pop(0) for numbers in left.values() if numbers]
    for slow in (None, 0, 1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loader = hr.DataLoader(Uneven(lengths, slow), batch_size=None, num_workers=3)
        assert list(loader) == expected


def test_an_iterable_epoch_begins_at_its_beginning():
    class Count(IterableDataset):
        def __iter__(self):
            return iter(range(20))

    loader = hr.DataLoader(Count(), batch_size=4, num_workers=1, persistent_workers=True)
    next(iter(loader))
    assert flat(batch.tolist() for batch in loader) == list(range(20))
    loader.set_epoch(0)
    next(iter(loader))
    loader.set_epoch(0)
    assert flat(batch.tolist() for batch in loader) == list(range(20))
    loader.close()


def test_threads_of_torch_are_not_used_up_by_workers():
    def threads(data):
        return np.array(torch.get_num_threads())

    counted = hr.Recipe(hr.synthetic.source(8), decode=threads)
    with hr.DataLoader(counted, batch_size=4, num_workers=2) as loader:
        assert {int(n) for batch in loader for n in batch} == {1}
    assert torch.get_num_threads() >= 1
