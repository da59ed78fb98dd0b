"""A host that lives long is no larger than its jobs make it."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.coordinate import upkeep
from headrace.coordinate.events import Tidied
from headrace.coordinate.upkeep import Upkeep
from tests.coordinate.jobs import Member, World


def come_and_go(world: World, number: int, samples: int = 20) -> None:
    """A job with a dataset and a recipe of its own runs an epoch."""
    keys = (f"e{number}", f"d{number}", f"a{number}")
    member = Member(world, 1000 * (number + 1) + np.arange(samples), keys=keys)
    member.begin()
    world.drain()
    member.check_epoch()
    member.leave()
    member.bury()


def test_what_no_job_uses_is_forgotten_beyond_a_few_datasets() -> None:
    world = World()
    keeper = Upkeep(world.state, datasets=3, shelves=9)
    stays = Member(world, np.arange(100))
    for number in range(40):
        stays.begin()
        come_and_go(world, number)
        keeper.look()
        world.drain()
        stays.check_epoch()
        state = world.state
        assert len(state.universe.datasets) <= 4 and len(state.pool.shelves) <= 12
        assert state.universe.size <= 100 + 5 * 20
        assert len(state.universe._numbers) <= state.universe.size
    world.check_quiet()
    assert len(world.state.universe.datasets) == 4, "the last ones are remembered"


def test_after_a_while_everything_unused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    come_and_go(world, 1)
    world.tell(Tidied())
    assert world.state.universe.datasets and world.state.pool.shelves and world.state.pool.used
    world.now += upkeep._AFTER + 1
    world.tell(Tidied())
    assert not world.state.universe.datasets and not world.state.pool.shelves
    assert not world.state.pool.used


def test_what_a_lost_job_may_still_read_is_not_forgotten() -> None:
    world = World()
    keeper = Upkeep(world.state, datasets=0, shelves=0)
    job = Member(world, np.arange(16), batch=16)
    for _ in range(2):
        job.begin()
        world.drain()
    job.begin()
    job.ask()
    assert any(work.reads for work in job.work.values())
    job.leave()
    keeper.look()
    assert world.state.universe.datasets
    job.bury()
    keeper.look()
    assert not world.state.universe.datasets and not world.state.pool.shelves
