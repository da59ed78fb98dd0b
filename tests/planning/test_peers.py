"""Samples are asked of the node that has them, or read from storage: the faster way is found."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.planning.peers import STORAGE, Taken, Ways

SIZE = 100_000
Cost = Callable[[float, int], float]
"""Seconds of a request at a time, of so many bytes."""


class Drive:
    """One process that reads from a node or from storage, one request after the other."""

    def __init__(
        self,
        node: Cost,
        storage: Cost,
        *,
        seed: int = 0,
        noise: float = 0.0,
        refused: float = 0.0,
        told: float = 0.05,
    ) -> None:
        """``refused``: the share of requests that the node cannot answer, so that storage is read; ``told``: of those
        with which somebody else on the machine says what storage has taken it."""
        self.ways, self.now = Ways(), 0.0
        self._costs = {"n": node, STORAGE: storage}
        self._dice, self._noise = random.Random(seed), noise
        self._refused, self._told = refused, told
        self.by_node: list[bool] = []

    def run(self, requests: int) -> Drive:
        for _ in range(requests):
            samples = self._dice.randint(2, 16)
            by_node = self.ways.by_node("n", samples * SIZE, now=self.now)
            self.by_node.append(by_node)
            if by_node and self._dice.random() < self._refused:
                self._take(STORAGE, samples)
            elif by_node:
                self._take("n", samples)
                if self._dice.random() < self._told:
                    self._take(STORAGE, self._dice.choice((1, 4)))
            else:
                self._take(STORAGE, samples)
        return self

    def _take(self, way: str, samples: int) -> None:
        took = self._costs[way](self.now, samples * SIZE) * self._dice.lognormvariate(0.0, self._noise)
        self.now += took + 0.02
        self.ways.read(way, samples, samples * SIZE, took, now=self.now)

    def share(self, last: int) -> float:
        """Of the last so many requests, those that went to the node."""
        return sum(self.by_node[-last:]) / min(last, len(self.by_node))


def line(latency: float, rate: float) -> Cost:
    return lambda _, nbytes: latency + nbytes / rate


few = settings(max_examples=10)
costs = st.tuples(st.floats(0.1, 0.5), st.floats(5e6, 5e8))


@few
@given(costs, st.floats(2.5, 40), st.integers(0, 1 << 20), st.floats(0.0, 0.3))
def test_a_node_that_is_much_slower_than_storage_is_left(
    cost: tuple[float, float], times: float, seed: int, noise: float
) -> None:
    drive = Drive(line(times * cost[0], cost[1] / times), line(*cost), seed=seed, noise=noise).run(500)
    assert drive.share(500) < 0.4, "it takes a while until storage is known"
    assert drive.share(100) <= 0.05


@few
@given(costs, st.floats(0.05, 1.1), st.integers(0, 1 << 20), st.floats(0.0, 0.15))
def test_a_node_that_is_no_slower_is_asked(
    cost: tuple[float, float], times: float, seed: int, noise: float
) -> None:
    drive = Drive(line(times * cost[0], cost[1] / times), line(*cost), seed=seed, noise=noise).run(500)
    assert drive.share(500) > 0.98


@few
@given(costs, st.floats(1.0, 1000.0), st.integers(0, 1 << 20))
def test_a_node_is_not_left_while_nothing_is_known_of_storage(
    cost: tuple[float, float], times: float, seed: int
) -> None:
    ways, dice, now = Ways(), random.Random(seed), 0.0
    for _ in range(200):
        samples = dice.randint(1, 32)
        assert ways.by_node("n", samples * SIZE, now=now)
        took = times * (cost[0] + samples * SIZE / cost[1])
        now += took
        ways.read("n", samples, samples * SIZE, took, now=now)


@few
@given(costs, st.integers(0, 1 << 20), st.floats(0.0, 0.2))
def test_a_node_that_gets_slow_is_left_and_comes_back_when_it_is_fast(
    cost: tuple[float, float], seed: int, noise: float
) -> None:
    times = 0.5
    drive = Drive(lambda _, n: times * (cost[0] + n / cost[1]), line(*cost), seed=seed, noise=noise)
    drive.run(200)
    assert drive.share(200) == 1.0
    times = 8.0
    drive.run(200)
    assert drive.share(200) <= 0.15 and drive.share(50) <= 0.1
    times, changed = 0.5, drive.now
    while drive.run(1).share(20) != 1.0:
        most = 65 + 25 * 9 * (cost[0] + 16 * SIZE / cost[1])
        assert drive.now < changed + most, "it is left alone for a minute at most"
    assert drive.run(50).share(50) == 1.0


@few
@given(costs, st.integers(0, 1 << 20))
def test_storage_that_gets_slow_is_left(cost: tuple[float, float], seed: int) -> None:
    times = 0.2
    drive = Drive(line(*cost), lambda _, n: times * (cost[0] + n / cost[1]), seed=seed)
    drive.run(300)
    assert drive.share(100) <= 0.1
    times = 5.0
    assert drive.run(100).share(80) > 0.95


@few
@given(costs, st.floats(5, 1000), st.integers(0, 40), st.integers(0, 1 << 20))
def test_one_request_that_is_off_changes_nothing(
    cost: tuple[float, float], times: float, when: int, seed: int
) -> None:
    count = 0

    def node(_: float, nbytes: int) -> float:
        nonlocal count
        count += 1
        return (times if count == when else 1.0) * (cost[0] + nbytes / cost[1])

    drive = Drive(node, line(*cost), seed=seed, refused=0.2).run(200)
    assert all(drive.by_node)


@few
@given(costs, st.integers(0, 1 << 20))
def test_what_a_node_had_to_read_is_no_fault_of_its_own(cost: tuple[float, float], seed: int) -> None:
    """It takes what storage does and a little more; the same as for what it had, and it would be left."""
    ways, dice, now = Ways(), random.Random(seed), 0.0
    for _ in range(100):
        samples = dice.randint(2, 16)
        stored = cost[0] + samples * SIZE / cost[1]
        assert ways.by_node("n", samples * SIZE, now=now)
        ways.read(STORAGE, samples, samples * SIZE, stored, now=now)
        ways.read("n", samples, samples * SIZE, 1.9 * stored, now=now, kept=0)
        now += 3 * stored


@given(costs, st.lists(st.integers(1, 64), min_size=6, max_size=40))
def test_what_a_request_takes_is_known_for_other_sizes_too(
    cost: tuple[float, float], counts: list[int]
) -> None:
    taken = Taken()
    for samples in counts:
        taken.add(samples * SIZE, cost[0] + samples * SIZE / cost[1])
    for samples in counts[-16:]:
        assert taken.seconds(samples * SIZE) <= 1.35 * (cost[0] + samples * SIZE / cost[1])
    if taken.usual is None:
        assert taken.seconds(200 * SIZE) == pytest.approx(cost[0] + 200 * SIZE / cost[1])


@few
@given(costs, st.integers(0, 1 << 20))
def test_what_is_slower_by_milliseconds_does_not_matter(cost: tuple[float, float], seed: int) -> None:
    """However many times as slow it is: storage is everybody's."""
    storage = line(cost[0] / 100, 1e12)
    drive = Drive(line(cost[0] / 20, 1e12), storage, seed=seed, refused=0.1).run(200)
    assert all(drive.by_node)


def test_of_a_node_that_is_gone_nothing_is_known() -> None:
    ways = Ways()
    for at in range(20):
        ways.read(STORAGE, 4, 4 * SIZE, 0.001, now=float(at))
        ways.read("n", 4, 4 * SIZE, 1.0, now=float(at))
    assert not ways.by_node("n", 4 * SIZE, now=20.0)
    ways.only(["m"])
    assert ways.by_node("n", 4 * SIZE, now=20.0)
    assert ways.size == pytest.approx(SIZE)
