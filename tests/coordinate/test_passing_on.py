"""Augmented samples are kept for others where augmenting takes long enough for the host to keep up."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.coordinate.costs import Took
from headrace.coordinate.passing_on import PassingOn
from headrace.core.forms import Form
from headrace.planning import Spent
from tests.coordinate.jobs import BYTES, Member, World, prepared

CPUS = 16


def took(world: World, seconds: float, *, busy: float = 1.0, rows: int = 5000) -> None:
    """Workers said that augmenting takes so long, of which a processor was busy for a part."""
    report = Took()
    spent = Spent(augment=seconds * rows, decode=seconds * rows, prepared=rows, cpu=2 * busy * seconds * rows)
    report.add(spent, rows)
    for shelf in world.state.pool.shelves.values():
        shelf.costs.add(report)


def two_jobs(budget: int = 1 << 27) -> tuple[World, list[Member]]:
    world = World()
    world.state.shared_split.cpus = CPUS
    members = [Member(world, np.arange(64), keys=("", "d", "a"), budget=budget) for _ in range(2)]
    for member in members:
        member.begin()
    return world, members


def passed_on(members: list[Member]) -> int:
    """Augmented samples that others took in an epoch, once all is decoded."""
    world = members[0].world
    world.drain()
    for member in members:
        member.check_epoch()
        member.begin()
    before = world.hits[Form.AUGMENTED]
    for member in members:
        while not member.over:
            member.go_on()
            for work in list(member.work.values()):
                member.finish(work, 0, len(work.forms), prepared)
    world.drain()
    return world.hits[Form.AUGMENTED] - before


@pytest.mark.parametrize(("seconds", "busy", "number"), [(1e-3, 1.0, 64), (2e-5, 1.0, 0), (1e-3, 0.02, 0)])
def test_only_what_takes_long_is_passed_on(seconds: float, busy: float, number: int) -> None:
    """A sample that waited for a processor takes no longer to augment for that."""
    world, members = two_jobs()
    took(world, seconds, busy=busy)
    assert passed_on(members) == number


def test_as_long_as_nothing_is_known_it_is_passed_on() -> None:
    world, members = two_jobs()
    took(world, 2e-5, rows=10)
    assert passed_on(members) == 64


def test_on_few_processors_less_is_enough() -> None:
    world, members = two_jobs()
    world.state.shared_split.cpus = 2
    took(world, 1e-4)
    assert passed_on(members) == 64


def test_what_an_order_costs_besides_is_not_taken_for_augmenting() -> None:
    """Where others have augmented most of its rows, or it would be passed on for as long as it is passed on."""
    world, members = two_jobs()
    world.state.shared_split.cpus = 2
    for _ in range(40):
        report, seconds = Took(), 2e-4 + 64 * 3e-6 + 16 * 17e-6
        report.add(Spent(augment=seconds, prepared=16, cpu=seconds), 64)
        for shelf in world.state.pool.shelves.values():
            shelf.costs.add(report)
    assert passed_on(members) == 0


@pytest.mark.parametrize(("jobs", "number"), [(2, 0), (4, 64)])
def test_what_is_passed_on_to_few_has_to_save_more(jobs: int, number: int) -> None:
    world = World()
    world.state.shared_split.cpus = 1
    members = [Member(world, np.arange(64), keys=("", "d", "a"), budget=1 << 27) for _ in range(jobs)]
    for member in members:
        member.begin()
    took(world, 45e-6)
    assert (passed_on(members) > 0) == (number > 0)


def test_what_finds_no_room_decoded_is_passed_on_all_the_same() -> None:
    """Decoding, too, is saved then."""
    found = []
    for seconds in (1e-3, 2e-5):
        world, members = two_jobs(budget=16 * BYTES[Form.AUGMENTED])
        took(world, seconds)
        found.append(passed_on(members))
    assert found[1] >= 0.8 * found[0] > 10


def test_the_way_back_is_longer() -> None:
    world, _ = two_jobs()
    passing_on, (job, _) = PassingOn(world.state), world.state.jobs.values()
    assert passing_on.pays(job)
    took(world, 1e-4)
    assert not passing_on.pays(job)
    for _ in range(4):
        took(world, 2.5e-4)
    assert not passing_on.pays(job), "it is hardly more than enough"
    for _ in range(4):
        took(world, 6e-4)
    assert passing_on.pays(job)
    world.members[1].leave()
    assert not passing_on.pays(job), "there is nobody to take it"
