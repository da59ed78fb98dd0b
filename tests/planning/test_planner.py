"""The planner of a job's cache, told what a made-up machine would measure."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.planning import Means, Measured, Plan, Planner, Terms, bottleneck
from headrace.planning.search import search

MEANS = Means(cpus=2, hands=2, fetchers=2)
START = (0.0, 1.0, 0.0)
MB = 1e6


@dataclasses.dataclass
class Machine:
    """Runs a job in the model's own way, and measures."""

    storage: float = 20 * MB
    decode: float = 800e-6
    augment: float = 200e-6
    encoded: float = 35_000
    decoded: float = 550_000
    augmented: float = 150_000
    samples: int = 4000
    cache: float = 150 * MB
    loop: float = 10e-6
    """Seconds that the job itself takes over a sample."""

    def known(self) -> Terms:
        return Terms(self.samples, 1.0, 0.0, 0.0, self.cache, prepare=1.0, augment=1.0)

    def terms(self) -> Terms:
        return Terms(
            self.samples, self.encoded, self.decoded, self.augmented, self.cache,
            prepare=2 / (self.decode + self.augment), augment=2 / self.augment, storage=self.storage,
            ingest=1 / self.loop,
        )  # fmt: skip

    def second(self, split: tuple[float, float, float], seconds: float = 1.0) -> Measured:
        """What is measured in a second with a cache that has settled."""
        at = np.array([split])
        work = bottleneck.demands(self.terms(), at)
        delivered = int(seconds * bottleneck.throughput(self.terms(), at)[0])
        stored = work["storage"][0] * self.storage / self.encoded
        decoded = (2 * work["cpu"][0] - self.augment) / self.decode
        fetched = int(delivered * stored)
        return Measured(
            seconds=seconds,
            delivered=delivered,
            waited=seconds - delivered * self.loop,
            fetched=fetched,
            fetched_bytes=int(fetched * self.encoded),
            fetch=2 * fetched * self.encoded / self.storage,
            wait_fetch=seconds if work["storage"][0] >= work["cpu"][0] else 0.0,
            decoded=int(delivered * decoded),
            decode=delivered * decoded * self.decode,
            prepared=delivered,
            augment=delivered * self.augment,
            cpu=delivered * (decoded * self.decode + self.augment),
        )


def settle(planner: Planner, machine: Machine, looks: int = 12) -> list[Plan]:
    """Look again and again; the plans that were made."""
    plans = []
    for _ in range(looks):
        measured = machine.second(planner.plan.split)
        plan = planner.look(measured, MEANS, decoded=machine.decoded, augmented=machine.augmented)
        if plan is not None:
            plans.append(plan)
    return plans


def good(planner: Planner, machine: Machine) -> float:
    """What the plan gives, to the best that there is."""
    (now,) = bottleneck.throughput(machine.terms(), np.array([planner.plan.split]))
    return float(now / search(machine.terms()).throughput)


@pytest.mark.parametrize(
    ("machine", "form"),
    [
        (Machine(storage=20 * MB, cache=150 * MB), 0),
        (Machine(storage=1000 * MB, cache=1500 * MB), 1),
    ],
    ids=["slow storage", "slow CPU"],
)
def test_the_form_that_helps_most_gets_most(machine: Machine, form: int) -> None:
    planner = Planner(machine.known(), START)
    settle(planner, machine)
    assert np.argmax(planner.plan.split) == form
    assert good(planner, machine) > 0.95


def test_nothing_is_decided_before_enough_was_seen() -> None:
    machine = Machine()
    planner = Planner(machine.known(), START)
    little = machine.second(START, seconds=0.05)
    assert planner.look(little, MEANS, decoded=machine.decoded, augmented=machine.augmented) is None
    assert planner.terms is None
    assert planner.look(machine.second(START), MEANS, augmented=machine.augmented) is None, "size unknown"


def test_a_slow_job_has_its_plan_too() -> None:
    """At no look is enough seen, but over some of them."""
    machine = Machine(storage=0.5 * MB, decode=0.1, augment=0.01, cache=100 * MB)
    planner = Planner(machine.known(), START)
    assert machine.second(START).prepared < 20
    settle(planner, machine)
    assert planner.plan.split != START
    assert good(planner, machine) > 0.93


def test_a_shift_is_made_up_for_and_then_it_is_quiet() -> None:
    machine = Machine(storage=1000 * MB, cache=400 * MB)
    planner = Planner(machine.known(), START)
    settle(planner, machine)
    assert good(planner, machine) > 0.95
    machine.storage = 10 * MB
    settle(planner, machine)
    assert good(planner, machine) > 0.95
    assert not settle(planner, machine), "it does not swing"


def test_what_cannot_be_measured_any_more_is_remembered() -> None:
    """With everything decoded in the cache nothing is fetched or decoded."""
    machine = Machine(cache=3000 * MB)
    planner = Planner(machine.known(), START)
    cold = dataclasses.replace(machine, cache=1.0).second(START)
    planner.look(cold, MEANS, decoded=machine.decoded, augmented=machine.augmented)
    assert planner.plan.split == START
    before = planner.terms
    sums = msgspec.structs.replace(
        machine.second(START), fetched=0, fetched_bytes=0, fetch=0.0, decoded=0, decode=0.0
    )
    for _ in range(12):
        planner.look(sums, MEANS, decoded=machine.decoded, augmented=machine.augmented)
    assert before is not None and planner.terms is not None
    assert planner.terms.storage == pytest.approx(before.storage, rel=0.01)
    assert planner.terms.encoded == pytest.approx(before.encoded, rel=0.01)
    assert planner.plan.split == START


machines = st.builds(
    Machine,
    storage=st.floats(5 * MB, 2000 * MB),
    decode=st.floats(50e-6, 5e-3),
    augment=st.floats(20e-6, 2e-3),
    encoded=st.floats(5_000, 200_000),
    decoded=st.floats(100_000, 2_000_000),
    cache=st.floats(20 * MB, 4000 * MB),
    loop=st.floats(1e-6, 2e-3),
)


@given(machines)
@pytest.mark.slow
def test_a_plan_is_about_as_good_as_the_best_and_stays(machine: Machine) -> None:
    planner = Planner(machine.known(), START)
    settle(planner, machine)
    if planner.terms is not None:
        assert good(planner, machine) > 0.93
    split = planner.plan.split
    settle(planner, machine)
    assert planner.plan.split == split


def test_what_was_known_before_makes_the_first_plan() -> None:
    machine = Machine()
    planner = Planner(machine.known(), START)
    settle(planner, machine)
    again = Planner(machine.known(), START, planner.terms)
    assert again.plan.split == planner.plan.split != START
    little = machine.second(again.plan.split, seconds=0.01)
    assert again.look(little, MEANS) is None, "too little to change anything"
    assert again.terms == planner.terms


@pytest.mark.slow
@given(machines, machines)
# (the loop takes longest, and what little is fetched is waited for by whoever is to prepare it)
@example(
    Machine(storage=5 * MB, decode=1 / 256, augment=1 / 512),
    Machine(augment=2e-5, encoded=14_750, decoded=820_586, cache=3_137_824_461, loop=1 / 512),
)
def test_what_was_known_before_may_be_far_off(before: Machine, now: Machine) -> None:
    """Sizes belong to the recipe, and stay; all else may have changed. The first epoch fetches, and shows it."""
    before = dataclasses.replace(
        before, encoded=now.encoded, decoded=now.decoded, cache=now.cache, samples=now.samples
    )
    planner = Planner(now.known(), START, before.terms())
    settle(planner, dataclasses.replace(now, cache=1.0), looks=2)
    settle(planner, now)
    assert good(planner, now) > 0.93
    split = planner.plan.split
    settle(planner, now)
    assert planner.plan.split == split


def test_stages_that_were_never_seen_apart_are_not_told_apart() -> None:
    """With all of the cache for encoded samples, what reads an image may augment it in one go: that is decoding."""
    machine = Machine(storage=5 * MB, cache=100 * MB)
    planner = Planner(machine.known(), START, machine.terms())
    assert planner.plan.split == (1.0, 0.0, 0.0)
    sums = machine.second(planner.plan.split)
    together = msgspec.structs.replace(
        sums, decode=sums.decode + 0.99 * sums.augment, augment=0.01 * sums.augment
    )
    planner.look(together, MEANS, augmented=machine.augmented)
    assert planner.terms is not None
    assert planner.terms.augment == pytest.approx(machine.terms().augment)
    assert planner.terms.prepare == pytest.approx(machine.terms().prepare, rel=0.01)
