"""Rows that wait for what others prepare, and what they must not wait for."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.coordinate.events import Ticked
from headrace.core.forms import Form
from tests.coordinate.jobs import BYTES, Member, World, pair, prepared


def test_rows_wait_for_who_prepares_them_and_enter_from_the_cache() -> None:
    world = World(span=1 << 30)
    first, second = pair(world, keys=("", "", "a"))
    second.ask()
    (work,) = second.work.values()
    assert work.waits == 0 and not work.updated
    (owner,) = first.work.values()
    first.finish(owner, 0, 5, prepared)
    assert not work.updated
    first.finish(owner, 5, 3, prepared)
    assert work.updated and (work.forms == Form.AUGMENTED).all()
    assert sorted(work.indices.tolist()) == list(range(8))


@pytest.mark.parametrize("how", ["gives up", "is gone", "takes too long"])
def test_rows_do_not_wait_for_ever(how: str) -> None:
    world = World()
    first, second = pair(world, keys=("", "", "a"))
    second.ask()
    (work,), (owner,) = second.work.values(), first.work.values()
    if how == "gives up":
        first.finish(owner, 0, 8, lambda form, capacity: None)
    elif how == "is gone":
        first.leave()
    else:
        world.now += 0.99 * world.state.patience
        world.tell(Ticked(1))
        world.deliver()
        assert not work.updated
        world.now += 0.02 * world.state.patience
        world.tell(Ticked(1))
        world.deliver()
    assert work.updated and (work.forms == Form.NONE).all()
    world.settle()
    if how == "is gone":
        first.bury()
    world.check_quiet()


def test_a_job_whose_draw_waits_for_its_own_worker_may_go() -> None:
    world = World()
    member, _ = (Member(world, np.arange(8), batch=8) for _ in range(2))  # (so that augmented ones are made)
    member.begin()
    assert member.idle() is not None
    member.ask()
    (work,) = (work for work in member.work.values() if not work.fill)
    assert work.waits < 8
    member.leave()
    member.bury()
    world.check_quiet()


def test_a_paused_job_holds_nobody_up_before_any_size_is_known() -> None:
    world = World()
    _, second = pair(world, keys=("", "d", ""))
    second.ask()
    for _ in range(3):
        world.now += 2 * world.state.patience
        world.tell(Ticked(1))
        world.deliver()
    assert second.work, "the first job is paused, the second one is not"


def test_a_decoded_sample_that_is_waited_for_does_not_bring_back_an_augmented_one() -> None:
    """The augmented one that lies there was served to this job in the epoch before."""
    world = World()
    one = np.arange(1)
    early = Member(world, one, batch=1)
    Member(world, one, batch=1).begin()  # keeps the augmented one, by never taking it
    other = Member(world, one, batch=1, keys=("e", "d", "b"))
    early.begin()
    early.ask()
    (work,) = early.work.values()
    early.finish(work, 0, 1, lambda form, capacity: 100 if form == Form.AUGMENTED else None)
    other.begin()
    other.ask()
    assert any(form == Form.DECODED for w in other.work.values() for _, form, _, _ in w.grants)
    world.state.pool.shelves[Form.DECODED, "d"].learn([BYTES[Form.DECODED]])
    early.begin()
    early.ask()
    (waiting,) = early.work.values()
    assert waiting.waits == 0
    (work,) = other.work.values()
    other.finish(work, 0, 1, prepared)  # ``World`` sees to it that nothing is served twice
    assert waiting.updated and waiting.forms.tolist() == [Form.DECODED]
