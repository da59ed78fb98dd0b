"""Workers that are killed, at any moment and as often as you like: every epoch is exact all the same."""

import faulthandler
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import headrace as hr
from headrace.loader import staffing
from tests.faults.helpers import SOAK, killing, recipe
from tests.loader.helpers import (
    Squares,
    assert_same,
    descendants,
    drain,
    flat,
    index_of,
    is_dead,
    kill,
    targets,
    wait_until,
)


def make(source_recipe, **options):
    options = {"batch_size": 16, "shuffle": True, "seed": 2, "num_workers": 2, **options}
    return hr.DataLoader(source_recipe, **options)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cache", [None, 30_000], ids=["plain", "cached"])
def test_random_kills_with_fast_samples(seed, cache):
    source = recipe(320)
    with make(source, num_workers=0) as loader:
        expected = [drain(loader) for _ in range(3)]
    kills = 0
    with make(source, cache=cache) as loader:
        with killing(loader, seed, 0.03) as hit:
            deadline = time.monotonic() + 60
            while len(hit) < 25 * SOAK and time.monotonic() < deadline:
                for epoch in range(3):
                    loader.set_epoch(epoch)
                    assert_same(drain(loader), expected[epoch])
            kills = len(hit)
        assert kills >= 25
        assert loader.bad_samples == []
        loader.set_epoch(1)
        assert_same(drain(loader), expected[1]), "and after the kills"
        if cache:
            assert loader.stats().cache["decoded"].bytes <= cache


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_kills_with_slow_samples(seed):
    def slow(data):
        time.sleep(0.004)
        return np.frombuffer(data, np.uint8)[:16].copy()

    with make(recipe(200, slow, latency=0.001)) as loader, killing(loader, seed, 0.15) as hit:
        while len(hit) < 15 * SOAK:
            assert sorted(flat(targets(loader))) == list(range(200))
        assert loader.bad_samples == []


def test_random_kills_of_a_torch_datasets_workers():
    loader = hr.DataLoader(Squares(300), batch_size=7, num_workers=2, shuffle=True, persistent_workers=True)
    with killing(loader, 5, 0.06) as hit:
        while len(hit) < 25 * SOAK:
            seen = []
            for values, labels in loader:
                assert torch.equal(values, labels**2)
                seen += labels.tolist()
            assert sorted(seen) == list(range(300))
    loader.close()


@pytest.mark.slow
def test_random_kills_where_a_batch_moves_to_a_larger_slot():
    def decode(data):
        return np.full(10 ** (index_of(data) % 5), index_of(data), np.int32)

    def ragged(samples):
        return [torch.as_tensor(value) for value, _ in samples]

    with (
        make(recipe(120, decode), batch_size=3, collate_fn=ragged) as loader,
        killing(loader, 8, 0.05) as hit,
    ):
        while len(hit) < 20 * SOAK:
            seen = []
            for batch in loader:
                for value in batch:
                    index = int(value[0])
                    assert value.shape == (10 ** (index % 5),)
                    assert (value == index).all()
                    seen.append(index)
            assert sorted(seen) == list(range(120))


def test_all_workers_killed_at_once():
    with make(recipe(200)) as loader:
        iterator = iter(loader)
        found = [next(iterator)[1].tolist()]
        pids = [worker.pid for worker in loader._epochs.session.host.workers]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:  # (else the first one's successor may do the rest before the second is missed)
            assert wait_until(lambda pid=pid: is_dead(pid))
        found += targets(iterator)
        assert sorted(flat(found)) == list(range(200))
        assert loader.stats().restarts == 2
        assert len(descendants()) == 2


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_any_signal_between_two_epochs(sign):
    quiet = {"worker_init_fn": lambda worker: faulthandler.disable()}
    with make(recipe(100), **quiet) as loader:
        drain(loader)
        kill(loader._epochs.session.host.workers[0].pid, sign)
        # (an epoch that was prepared before needs no worker any more, and so does not miss one)
        for _ in range(20):
            assert sorted(flat(targets(loader))) == list(range(100))
            if loader.stats().restarts:
                break
        assert loader.stats().restarts == 1
        assert loader.bad_samples == []


def test_sigint_does_not_reach_workers():
    with make(recipe(100)) as loader:
        iterator = iter(loader)
        next(iterator)
        for worker in loader._epochs.session.host.workers:
            os.kill(worker.pid, signal.SIGINT)
        assert len(list(iterator)) == 6
        assert loader.stats().restarts == 0


def test_killed_during_start_up():
    """A worker that dies in its first moments is replaced like any other."""
    died = torch.zeros(2, dtype=torch.int64).share_memory_()

    def init(worker):
        died[worker] += 1
        if died[worker] == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with make(recipe(60), worker_init_fn=init) as loader:

        def epoch():  # (the first one's successor may do a whole one before the second is missed)
            assert sorted(flat(targets(loader))) == list(range(60))
            return died.tolist() == [2, 2]

        assert wait_until(epoch)
        assert loader.stats().restarts == 2
    assert died.tolist() == [2, 2]


@pytest.mark.parametrize("way", ["killed", "exits"])
def test_workers_that_always_die_at_start_end_in_an_error(way):
    def init(worker):
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)

    for loader in (
        make(recipe(20), worker_init_fn=init),
        hr.DataLoader(Squares(), num_workers=2, worker_init_fn=init),
    ):
        with pytest.raises(hr.WorkerDied, match="SIGKILL" if way == "killed" else "status 7"):
            list(loader)
        loader.close()


class Deadly(Squares):
    """Kills its worker at one index: always, or only the first times."""

    def __init__(self, size, victim, times):
        super().__init__(size)
        self.victim, self.left = victim, torch.tensor([times]).share_memory_()

    def __getitem__(self, index):
        if index == self.victim and self.left.item() > 0:
            self.left -= 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("times", [1, 2])
def test_a_torch_dataset_that_is_killed_by_chance_goes_on(times):
    loader = hr.DataLoader(Deadly(40, 17, times), batch_size=4, num_workers=2)
    assert flat(labels.tolist() for _, labels in loader) == list(range(40))
    assert loader.stats().restarts == times


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_torch_dataset_that_always_kills_ends_in_an_error(num_workers):
    loader = hr.DataLoader(Deadly(40, 17, 10**6), batch_size=4, num_workers=num_workers)
    iterator, found = iter(loader), []
    with pytest.raises(hr.WorkerDied, match=r"SIGKILL.*out-of-memory.*Batch 4 of epoch 0"):
        for _, labels in iterator:
            found += labels.tolist()
    assert found == list(range(16))
    with pytest.raises(hr.LoaderClosed, match="make a new one"):
        next(iterator)
    assert wait_until(lambda: not descendants(), 10)


class Stream(IterableDataset):
    """Never ends."""

    def __iter__(self):
        number = 0
        while True:
            yield number
            number += 1


def test_an_iterable_datasets_worker_that_dies_is_an_error():
    loader = hr.DataLoader(Stream(), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    os.kill(loader._epochs.session.host.workers[1].pid, signal.SIGKILL)
    with pytest.raises(hr.WorkerDied, match="iterable dataset") as caught:
        for _ in range(1000):
            next(iterator)
    assert "SIGKILL" in str(caught.value)
    assert "state_dict()" in str(caught.value)
    assert next(iter(loader)).tolist() == [0, 1, 2, 3], "a new iteration starts afresh"
    loader.close()


def test_a_state_taken_amid_kills_is_exact():
    source = recipe(240)
    with make(source, num_workers=0) as loader:
        whole = targets(loader)
    done = 0
    state = None
    while done < len(whole):
        with make(source) as loader, killing(loader, done, 0.03):
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            for _ in range(3):
                assert next(iterator)[1].tolist() == whole[done]
                done += 1
            state = loader.state_dict()
            del iterator


def test_a_stopped_worker_holds_up_nobody_for_good():
    with make(recipe(400), batch_size=8) as loader:
        iterator = iter(loader)
        found = [next(iterator)[1].tolist()]
        pid = loader._epochs.session.host.workers[0].pid
        os.kill(pid, signal.SIGSTOP)
        later = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
        later.start()
        try:
            found += targets(iterator)
        finally:
            later.join()
        assert sorted(flat(found)) == list(range(400))
        assert loader.stats().restarts == 0


def test_a_stopped_worker_does_not_keep_a_loader_from_closing():
    loader = make(recipe(100))
    next(iter(loader))
    pid = loader._epochs.session.host.workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    loader.close()
    assert wait_until(lambda: not descendants(), 10)


def test_a_stuck_worker_ends_in_a_timeout_and_can_be_closed():
    def stuck(data):
        if index_of(data) == 37:
            threading.Event().wait()
        return np.zeros(2)

    loader = make(recipe(100, stuck), shuffle=False, batch_size=8, timeout=2)
    found = []
    with pytest.raises(RuntimeError, match=r"timed out after 2 seconds"):
        for _, labels in loader:
            found += labels.tolist()
    # What stands before the stuck batch was delivered; but for what the stuck worker had claimed before and was so
    # slow to fetch that it began another order beside it. No more batches than that are under way.
    assert found == list(range(len(found)))
    assert 16 <= len(found) <= 32
    loader.close()
    assert wait_until(lambda: not descendants(), 10)


def test_a_replaced_worker_has_as_many_threads_as_the_others(monkeypatch):
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 4)

    def where(data):
        time.sleep(0.01)
        return np.array([os.getpid(), threading.get_native_id()])

    with make(recipe(6000, where), num_workers=2, batch_size=10) as loader:
        iterator = iter(loader)
        while loader.stats().gil_held < 0:
            next(iterator)
        assert loader.stats().threads == 2
        old = {worker.pid for worker in loader._epochs.session.host.workers}
        kill(min(old))
        fresh: set[tuple[int, int]] = set()
        for batch, _ in iterator:
            fresh |= {(process, thread) for process, thread in batch.tolist() if process not in old}
            if len(fresh) == 2:
                break
        assert len({process for process, _ in fresh}) == 1
        assert len(fresh) == 2
        assert len({worker.pid for worker in loader._epochs.session.host.workers} - old) == 1
