"""What every policy keeps: each job gets each of its samples exactly once per epoch, whatever happens around it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core import bits as bitset
from headrace.core.bits import Bits
from headrace.sampling import SAMPLERS, CacheView, Dependent, Remaining, Sampler

MAKERS = {**SAMPLERS, "dependent, short window": lambda: Dependent(window=5)}
LIMIT = 400
SEEDS = st.integers(0, 2**32)


def random_bits(size: int, seed: int, density: float) -> Bits:
    """A set that looks like nothing in particular."""
    return Bits.of(size, np.flatnonzero(np.random.default_rng(seed).random(size) < density))


def place_of(sample: int, view: CacheView) -> int:
    """How a sample enters: the first set that has it ready, or a miss, or pending."""
    for rank, ready in enumerate(view.ready):
        if bitset.test(ready, np.array([sample]))[0]:
            return rank
    return len(view.ready) + int(bitset.test(view.pending, np.array([sample]))[0])


class Jobs(RuleBasedStateMachine):
    """Jobs that come, draw, go, start over, lose batches, in any order; and a twin that is told the same."""

    make = staticmethod(SAMPLERS["auto"])

    def __init__(self) -> None:
        super().__init__()
        self.size = 100
        self.sides: list[tuple[Sampler, Remaining]] = [(self.make(), Remaining(self.size)) for _ in range(2)]
        self.needed: dict[int, set[int]] = {}
        self.given: dict[int, list[int]] = {}
        self.key = 0

    def all_sides(self, name: str, *args: object) -> None:
        for _, remaining in self.sides:
            getattr(remaining, name)(*args)

    def some_job(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.needed)))

    @rule(
        job=st.integers(0, 5), seed=SEEDS, density=st.sampled_from([0.0, 0.05, 0.6, 1.0]), told=st.booleans()
    )
    def join_or_begin(self, job: int, seed: int, density: float, told: bool) -> None:
        bits = random_bits(self.size, seed, density)
        self.all_sides("begin" if job in self.needed else "join", job, bits)
        if told:  # a sampler that was not told that an epoch ended early must be exact, too
            for sampler, _ in self.sides:
                sampler.forget(job)
        self.needed[job], self.given[job] = set(bits.ids().tolist()), []

    @precondition(lambda self: self.needed)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        job = self.some_job(data)
        for sampler, remaining in self.sides:
            remaining.leave(job)
            sampler.forget(job)
        del self.needed[job], self.given[job]

    @rule(more=st.integers(1, 90))
    def grow(self, more: int) -> None:
        self.size = min(self.size + more, LIMIT)
        self.all_sides("grow", self.size)

    @precondition(lambda self: self.needed)
    @rule(data=st.data(), share=st.floats(0, 1), alien=st.booleans())
    def put_back(self, data: st.DataObject, share: float, alien: bool) -> None:
        """A batch was lost; or the job finds that it needs samples it never had."""
        job = self.some_job(data)
        ids = self.given[job][: int(share * len(self.given[job]))]
        self.given[job] = self.given[job][len(ids) :]
        if alien:
            ids = sorted({*ids, self.size - 1} - set(self.given[job]))
        self.all_sides("put_back", job, np.array(ids, np.int64))
        self.needed[job] |= set(ids)

    @precondition(lambda self: self.needed)
    @rule(data=st.data(), seed=SEEDS)
    def take(self, data: st.DataObject, seed: int) -> None:
        """The job got samples by other means."""
        job = self.some_job(data)
        ids = random_bits(self.size, seed, 0.1).ids()
        self.all_sides("take", job, ids)
        self.given[job] += sorted(self.needed[job] & set(ids.tolist()))
        self.needed[job] -= set(ids.tolist())

    @precondition(lambda self: self.needed)
    @rule(
        data=st.data(),
        seed=SEEDS,
        sets=st.integers(0, 3),
        density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        pending=st.sampled_from([0.0, 0.2, 1.0]),
        count=st.integers(0, 30),
        times=st.integers(1, 4),
        near=st.sampled_from([0.0, 0.3, 1.0]),
    )
    def draw(
        self,
        data: st.DataObject,
        seed: int,
        sets: int,
        density: float,
        pending: float,
        count: int,
        times: int,
        near: float,
    ) -> None:
        job = self.some_job(data)
        peers = data.draw(st.lists(st.sampled_from(sorted(self.needed)), unique=True))
        view = CacheView(
            tuple(random_bits(self.size, seed + rank, density).words for rank in range(sets)),
            random_bits(self.size, seed + 7, pending).words,
            tuple(peer for peer in peers if peer != job),
            near=random_bits(self.size, seed + 8, near).words if near else None,
        )
        for _ in range(times):
            self.draw_once(job, count, view)

    def draw_once(self, job: int, count: int, view: CacheView) -> None:
        self.key += 1
        draws = [sampler.draw(remaining, job, count, view, self.key) for sampler, remaining in self.sides]
        assert draws[0].dtype == np.int64
        assert draws[0].tolist() == draws[1].tolist(), "a draw is a pure function"
        drawn = draws[0].tolist()
        assert len(drawn) == min(count, len(self.needed[job]))
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= self.needed[job]
        places = [place_of(sample, view) for sample in drawn]
        assert places == sorted(places)
        self.needed[job] -= set(drawn)
        self.given[job] += drawn

    @invariant()
    def books_agree(self) -> None:
        for _, remaining in self.sides:
            for job, needed in self.needed.items():
                assert remaining.left(job) == len(needed)

    def teardown(self) -> None:
        """Every epoch can be drawn to its end, by jobs in turn."""
        nothing = Bits.empty(self.size).words
        while any(self.needed.values()):
            for job in sorted(self.needed):
                peers = tuple(peer for peer in self.needed if peer != job)
                self.draw_once(job, 3 + 5 * job, CacheView((nothing,), nothing, peers))
        for job, given in self.given.items():
            assert len(set(given)) == len(given), f"job {job} got a sample twice"


@pytest.mark.parametrize("name", MAKERS)
def test_exactly_once_whatever_happens(name: str) -> None:
    machine = type("Jobs", (Jobs,), {"make": staticmethod(MAKERS[name])})
    case = machine.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
    case().runTest()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_registry_knows_samplers_by_their_names(name: str) -> None:
    assert SAMPLERS[name]().name == name


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("jobs", [1, 3, 70])
def test_whole_epochs_of_jobs_at_different_speeds(name: str, jobs: int) -> None:
    """Also with more jobs than a word has bits."""
    sampler, remaining = MAKERS[name](), Remaining(300)
    datasets = [random_bits(300, job, 1.0 if job % 2 else 0.5) for job in range(jobs)]
    for job, bits in enumerate(datasets):
        remaining.join(job, bits)
    nothing = Bits.empty(300).words
    epochs = [0] * jobs
    given: list[list[int]] = [[] for _ in range(jobs)]
    key = 0
    while min(epochs) < 2:
        for job in range(jobs):
            if epochs[job] == 2:
                continue
            peers = tuple(peer for peer in range(jobs) if peer != job and epochs[peer] < 2)
            view = CacheView((datasets[key % jobs].words,), nothing, peers)
            given[job] += sampler.draw(remaining, job, 20 + 30 * (job % 3), view, key).tolist()
            key += 1
            if not remaining.left(job):
                assert sorted(given[job]) == datasets[job].ids().tolist()
                given[job] = []
                epochs[job] += 1
                remaining.begin(job, datasets[job])
                sampler.forget(job)


@pytest.mark.parametrize("name", MAKERS)
def test_another_key_is_another_draw(name: str) -> None:
    draws = set()
    for key in range(20):
        sampler, remaining = MAKERS[name](), Remaining(1000)
        remaining.join(0, Bits.full(1000))
        nothing = Bits.empty(1000).words
        drawn = sampler.draw(remaining, 0, 20, CacheView((nothing,), nothing, ()), key)
        draws.add(tuple(sorted(drawn.tolist())))
    assert len(draws) == 20
