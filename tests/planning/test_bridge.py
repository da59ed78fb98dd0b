"""More batches ahead for reads that take long, as many as they last for, and no more."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Bridge
from headrace.planning.bridge import Queueing


def run(
    bridge: Bridge,
    batches: int,
    *,
    step: float,
    took: float,
    slow: float = 0.0,
    every: int = 0,
    room: int = 64,
):
    """Batches taken every ``step`` seconds; one in ``every`` takes ``slow`` seconds to fetch, which holds it up."""
    now, found = 0.0, 0
    for at in range(batches):
        late = bool(every) and at % every == every - 1
        now += step + (0.5 * slow if late else 0.0)
        found = bridge.taken(now, slow if late else took, room)
    return found


def test_what_is_fetched_in_a_step_needs_nothing():
    assert run(Bridge(), 200, step=0.05, took=0.02) == 0
    assert run(Bridge(), 200, step=0.05, took=0.0) == 0, "all from the cache"


def test_a_slow_read_is_bridged_by_as_many_steps_as_it_takes():
    for slow in (0.2, 0.5, 1.0):
        found = run(Bridge(), 400, step=0.05, took=0.01, slow=slow, every=20)
        assert slow / 0.05 - 1 <= found <= 1.2 * slow / 0.05 + 1


def test_a_slow_read_among_the_first_batches_is_bridged_from_the_first_look():
    assert run(Bridge(), 16, step=0.05, took=0.01, slow=0.5, every=7) >= 9


def test_a_loop_that_others_hold_up_is_as_fast_as_it_could_be():
    """Ranks in lockstep wait for each other. What storage could bring is not known from that."""
    bridge, now, found = Bridge(), 0.0, 0
    for at in range(16):
        now += 0.05 if at % 3 else 0.4
        found = bridge.taken(now, 0.01 if at % 7 else 0.5, 64)
    assert found >= 9


def test_one_in_a_thousand_is_not_worth_memory():
    assert run(Bridge(), 999, step=0.05, took=0.01, slow=1.0, every=1000) == 0


def test_memory_is_a_limit():
    assert run(Bridge(), 400, step=0.01, took=0.01, slow=2.0, every=20, room=7) <= 7
    assert run(Bridge(), 400, step=0.01, took=0.01, slow=2.0, every=20, room=0) == 0
    assert run(Bridge(), 400, step=0.001, took=0.01, slow=20.0, every=20, room=10_000) <= 64


def test_it_is_over_when_storage_is_fast_again():
    bridge = Bridge()
    assert run(bridge, 300, step=0.05, took=0.01, slow=0.5, every=10) > 5
    assert run(bridge, 4000, step=0.05, took=0.01) == 0


@given(st.integers(0, 2**32), st.floats(1e-4, 1.0), st.floats(1e-4, 5.0), st.integers(0, 100))
def test_never_less_than_none_nor_more_than_room(seed, step, took, room):
    chance, bridge, now = random.Random(seed), Bridge(), 0.0
    for _ in range(120):
        now += step * chance.expovariate(1.0)
        assert 0 <= bridge.taken(now, took * chance.expovariate(1.0), room) <= room


def test_what_other_ranks_have_met_is_bridged_before_it_comes():
    bridge = Bridge()
    found = [bridge.taken(0.05 * at, 0.01, 64, elsewhere=lambda: 0.5) for at in range(1, 40)]
    assert found[-1] >= 9
    assert bridge.slow < 0.05, "others are told what was seen here"


def test_what_nobody_meets_any_more_is_forgotten():
    bridge = Bridge()
    for at in range(1, 40):
        bridge.taken(0.05 * at, 0.01, 64, elsewhere=lambda: 0.5)
    found = [bridge.taken(0.05 * at, 0.01, 64, elsewhere=lambda: 0.01) for at in range(40, 1500)]
    assert found[-1] == 0


USUAL = 3


class Line:
    """A line that brings so many batches a second, one after the other; and some meet a slow read besides."""

    def __init__(
        self, seed: int, rate: float, *, latency: float = 0.0, slow: float = 0.0, share: float = 0.0
    ) -> None:
        self.chance, self.rate, self.latency = random.Random(seed), rate, latency
        self.slow, self.share, self.free = slow, share, 0.0
        self.there: list[float] = []

    def ask(self, now: float) -> None:
        self.free = max(self.free, now) + self.work() / self.rate
        slow = self.chance.uniform(0.7, 1.3) * self.slow if self.chance.random() < self.share else 0.0
        self.there.append(max(self.free + self.latency, now + slow))

    def work(self) -> float:
        return max(0.1, self.chance.gauss(1.0, 0.3))

    def wait(self, batch: int) -> float:
        return self.there[batch]


class SharedLine(Line):
    """All that were asked for come at the same time, each with its part of the rate: some at once, then long none."""

    def __init__(self, seed: int, rate: float) -> None:
        super().__init__(seed, rate)
        self.now, self.left = 0.0, {}

    def ask(self, now: float) -> None:
        while self.left and self.step(now):
            pass
        self.now = now
        self.left[len(self.there)] = self.work()
        self.there.append(0.0)

    def step(self, until: float) -> bool:
        """Go on until one is there, if that is not too late."""
        first, least = min(self.left.items(), key=lambda item: item[1])
        seconds = least * len(self.left) / self.rate
        part = min(seconds, until - self.now) / len(self.left) * self.rate
        self.left = {batch: work - part for batch, work in self.left.items()}
        if self.now + seconds > until:
            return False
        self.now += seconds
        self.there[first] = self.now
        del self.left[first]
        return True

    def wait(self, batch: int) -> float:
        while batch in self.left:
            self.step(float("inf"))
        return self.there[batch]


def epoch(storage: Line, batches: int, *, step: float, bridge: Bridge | None = None):
    """A loop that takes batches in order. Returns how many were ahead beside the usual ones after each, and the
    seconds of all."""
    now, ahead, asked = 0.0, [0], []
    for at in range(batches):
        while len(asked) < at + USUAL + ahead[-1]:
            asked.append(now)
            storage.ask(now)
        ended = storage.wait(at)
        now = max(now, ended)
        ahead.append(bridge.taken(now, ended - asked[at], 64) if bridge else 0)
        now += step
    return ahead, now


SEEDS = pytest.mark.parametrize("seed", range(8))


@SEEDS
@pytest.mark.parametrize("line", [Line, SharedLine])
def test_a_line_that_is_the_limit_is_no_slow_read(line, seed):
    """The more were ahead, the longer batches took, and the more were kept ahead: all that memory held."""
    ahead, seconds = epoch(line(seed, 20), 1500, step=0.001, bridge=Bridge())
    assert sum(ahead) / len(ahead) < 20 and max(ahead) <= 32
    assert seconds < 1.04 * epoch(line(seed, 20), 1500, step=0.001)[1], "and hardly anything is lost"


@SEEDS
def test_a_line_as_fast_as_the_loop_is_none_either(seed):
    ahead, _ = epoch(Line(seed, 20), 2000, step=0.05, bridge=Bridge())
    assert max(ahead) <= 8


@SEEDS
def test_far_storage_behind_such_a_line_gets_what_fills_it(seed):
    ahead, seconds = epoch(Line(seed, 20, latency=0.5), 2000, step=0.01, bridge=Bridge())
    assert seconds < 1.1 * 2000 / 20, "the line is full"
    assert ahead[-1] <= 32


@SEEDS
def test_slow_reads_behind_such_a_line_are_bridged(seed):
    found = [
        epoch(Line(seed, 20, slow=1.0, share=0.03), 2000, step=0.01, bridge=b)[1] for b in (Bridge(), None)
    ]
    assert found[0] < 1.1 * 2000 / 20 < 1.2 * 2000 / 20 < found[1]


def test_storage_that_becomes_slower_is_bridged():
    """Batches take longer than those before, and not because of others: it is looked at, and seen."""
    bridge, now, found = Bridge(), 0.0, []
    for at in range(2400):
        took = (0.01 if at < 200 else 0.2) if at % 10 else 1.0
        now += 0.05
        found.append(bridge.taken(now, took, 64))
    assert 18 <= found[199] <= 26
    assert 18 <= found[-1] <= 26
    assert found[-1] == max(found[-200:]), "it is not looked at for ever"


def test_half_of_them_are_looked_at_and_it_is_seen_that_storage_is_slower():
    bridge, now, found = Bridge(), 0.0, []
    for at in range(1500):
        now += 0.05
        found.append(bridge.taken(now, 0.2 if at < 300 else 0.8, 64))
    assert 3 <= found[299] <= 6
    assert 15 <= found[-1] <= 20


def test_a_slow_read_among_batches_that_wait_for_each_other_is_as_slow_as_it_is():
    queueing = Queueing()
    for _ in range(40):
        queueing.without(0.1, 0)
    found = [queueing.without(3.0 if at == 20 else 0.3, 5) for at in range(40)]
    assert max(found) == pytest.approx(3.0 - 0.2)
    assert sorted(found)[-2] <= 0.1 + 1e-9


def test_what_the_loop_does_between_epochs_is_no_step():
    found = []
    for pause in (0.0, 1000.0):
        bridge, now = Bridge(), 0.0
        for at in range(40):
            if at == 12:
                bridge.leave_out()
                now += pause
            now += 0.05
            found.append(bridge.taken(now, 0.5, 64))
    assert found[:40] == found[40:] and found[39] > 5
