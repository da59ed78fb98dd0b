"""Ranks and jobs of one machine: no more threads prepare at once than may, each gets its batches, slow reads are
bridged."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

import headrace as hr
from headrace.core.memory import usable_cpus
from headrace.engine.permits import Permits
from headrace.engine.roster import DECIDED_AT, LIMIT, MOST, Roster
from headrace.engine.seat import Seat
from headrace.host import seating
from tests.loader.helpers import flat, targets, wait_until

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def roster(tmp_path, monkeypatch) -> Roster:
    """One of this test's own."""
    made = Roster.at(str(tmp_path / "roster"))
    monkeypatch.setattr(seating, "_roster", lambda key: made)
    return made


def samples(size: int, *, decode=None, latency: float = 0.0) -> hr.Recipe:
    source = hr.synthetic.source(size, shape=(8, 8), classes=size, latency=latency)
    return hr.Recipe(source, decode=decode or hr.synthetic.decode(cost=0.002))


def train(rank: int, world: int, results, hold) -> None:
    """One rank of a job."""
    with hr.DataLoader(
        samples(240), batch_size=4, shuffle=True, seed=3, rank=rank, world_size=world
    ) as loader:
        found = targets(loader)
        results.put((rank, found, loader.stats().threads))
        hold.wait(60)


@pytest.mark.slow
def test_however_many_ranks_there_are_no_more_prepare_at_once_than_cpus(roster):
    results, hold, world = FORK.Queue(), FORK.Event(), 4
    ranks = [FORK.Process(target=train, args=(rank, world, results, hold)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    found = [results.get(timeout=120) for _ in ranks]
    assert len(roster.present()) == world, "each has a seat"
    hold.set()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    assert sorted(flat(flat([batches for _, batches, _ in found]))) == list(range(240))
    assert 0 < int(roster.header[MOST]) <= usable_cpus()
    assert roster.present() == [], "and gives it back"
    assert Permits(roster).held == 0


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_the_processors_to_the_others(roster):
    results, hold, world = FORK.Queue(), FORK.Event(), 3
    victim = FORK.Process(target=train, args=(0, world, results, hold))
    others = [FORK.Process(target=train, args=(rank, world, results, hold)) for rank in (1, 2)]
    for rank in (victim, *others):
        rank.start()
    assert wait_until(lambda: len(roster.present()) == world and int(roster.header[MOST]) > 0, 60)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    found = {rank: batches for rank, batches, _ in (results.get(timeout=120) for _ in others)}
    hold.set()
    assert set(found) >= {1, 2}
    for rank in others:
        rank.join(60)
    roster.bury()
    assert roster.present() == []


def test_a_session_that_fails_to_start_gives_its_seat_back(roster, monkeypatch):
    from headrace.loader import recipe_session

    def fail(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(recipe_session, "make_host", fail)
    loader = hr.DataLoader(samples(8), batch_size=4)
    with pytest.raises(OSError, match="no more processes"):
        next(iter(loader))
    assert roster.present() == []


def test_where_there_can_be_no_roster_a_job_is_for_itself(monkeypatch):
    from headrace.loader import staffing

    def fail(**_):
        raise OSError("too many open files")

    monkeypatch.setattr(staffing, "take_seat", fail)
    with hr.DataLoader(samples(40), batch_size=4) as loader:
        assert flat(targets(loader)) == list(range(40))


def test_training_and_validation_loaders_of_one_process(roster):
    with (
        hr.DataLoader(samples(60), batch_size=4, seed=1) as one,
        hr.DataLoader(samples(40), batch_size=4, seed=1) as two,
    ):
        for _ in range(2):
            assert flat(targets(one)) == list(range(60))
            assert flat(targets(two)) == list(range(40))
        assert len(roster.present()) == 2
    assert roster.present() == []


def test_user_code_waits_for_nobody(roster):
    """It may sleep, or wait for something that another thread of it has to do: no permit is held meanwhile."""
    roster.header[LIMIT] = 1
    blocker = Seat(roster, shares_turns=True)
    blocker.staffed(4, 1)
    assert Permits(roster).take(0) is not None
    recipe = hr.Recipe(
        hr.synthetic.source(40, shape=(4,), classes=40), decode=hr.deterministic(lambda data: np.zeros(2))
    )
    with hr.DataLoader(recipe, batch_size=4, num_workers=2) as loader:
        assert flat(targets(loader)) == list(range(40))


def test_fixed_staff_has_no_seat(roster, monkeypatch):
    monkeypatch.setenv("HEADRACE_STAFF", "fixed")
    with hr.DataLoader(samples(40), batch_size=4, rank=0, world_size=2) as loader:
        targets(loader)
        assert loader.stats().threads == 1
    assert int(roster.header[MOST]) == 0 and roster.present() == []


class Counting:
    """A source whose reads take a while; how many run at once in a worker is written to a file. The first ones wait
    until as many are under way as should be: on a busy machine, they would be over before the last one begins."""

    changed = threading.Condition()

    def __init__(self, path: str, seconds: float, wanted: int) -> None:
        self.path, self.seconds, self.wanted = path, seconds, wanted
        self.inner = hr.synthetic.source(400, shape=(4, 4), classes=400)
        self.now, self.most = 0, 0

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def read_many(self, indices):
        with self.changed:
            self.now += 1
            if self.now > self.most:
                self.most = self.now
                with open(f"{self.path}.{os.getpid()}", "w") as file:
                    file.write(str(self.most))
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most >= self.wanted, 10.0)
        time.sleep(self.seconds * len(indices))
        with self.changed:
            self.now -= 1
        return self.inner.read_many(indices)


@pytest.mark.parametrize("reads", [1, 3, 40])
def test_reads_at_once_are_as_many_as_was_said(tmp_path, monkeypatch, reads):
    monkeypatch.setenv("HEADRACE_READS", str(reads))
    recipe = hr.Recipe(Counting(str(tmp_path / "most"), 0.01, reads), decode=hr.synthetic.decode())
    with hr.DataLoader(recipe, batch_size=64, num_workers=1, prefetch_factor=3) as loader:
        assert flat(targets(loader)) == list(range(400))
    (file,) = tmp_path.glob("most.*")
    assert int(file.read_text()) == reads


class Tail:
    """A source one of whose reads in forty takes long."""

    def __init__(self) -> None:
        self.inner = hr.synthetic.source(2000, shape=(4, 4), classes=2000)

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def read_many(self, indices):
        time.sleep(sum(0.3 if index % 40 == 7 else 0.001 for index in indices.tolist()))
        return self.inner.read_many(indices)


@pytest.mark.parametrize("fixed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_more_batches_are_ahead_where_single_reads_take_long(monkeypatch, fixed):
    if fixed:
        monkeypatch.setenv("HEADRACE_STAFF", "fixed")
    recipe = hr.Recipe(Tail(), decode=hr.synthetic.decode())
    with hr.DataLoader(recipe, batch_size=8, num_workers=2) as loader:
        most = 0
        found = []
        for _, labels in loader:
            found += labels.tolist()
            bridge = loader._epochs.session._depth._bridge
            if bridge is not None:
                most = max(most, bridge.batches)
                assert loader._epochs.session.host.ahead > bridge.batches
            if len(found) == 1200:
                break
        assert found == list(range(1200))
        assert most > 4 if not fixed else bridge is None


@pytest.mark.slow
def test_what_a_process_did_before_its_loop_is_not_taken_from_preparing(roster):
    """It may have imported much, which takes a CPU for seconds."""
    begun = time.process_time()
    while time.process_time() < begun + 2.0:
        pass
    with hr.DataLoader(samples(400), batch_size=4, seed=1) as loader:
        for _ in loader:
            time.sleep(0.02)
            if roster.header[DECIDED_AT]:
                break
        assert roster.header[DECIDED_AT] > 0
        assert int(roster.header[LIMIT]) == usable_cpus()


@pytest.mark.slow
def test_orders_get_larger_where_samples_are_soon_done():
    """An order costs about as much as a few small images do."""
    recipe = samples(4000, decode=hr.synthetic.decode(cost=0.0))
    with hr.DataLoader(recipe, batch_size=16, shuffle=True, seed=1) as loader:
        assert sorted(flat(targets(loader))) == list(range(4000))
        session = loader._epochs.session
        assert session.host.coordinator.rows_per_order == 16
        assert sorted(flat(targets(loader))) == list(range(4000))
    with hr.DataLoader(recipe, batch_size=16, shuffle=True, seed=1, prefetch_factor=2) as loader:
        assert sorted(flat(targets(loader))) == list(range(4000))
        assert loader._epochs.session.host.coordinator.rows_per_order < 16, "how many are ahead was said"
