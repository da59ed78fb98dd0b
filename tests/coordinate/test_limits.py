"""What is refused, what idle hands leave alone, and whom nobody waits for twice."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.coordinate import joining
from headrace.coordinate.events import Asked, Ticked
from headrace.coordinate.protocol import Drawn, Refused
from headrace.core.forms import Form
from headrace.core.layout import aligned
from headrace.core.sparse import PAGE
from tests.coordinate.jobs import BYTES, Member, World, pair, prepared


def test_a_dataset_of_another_length_is_not_the_same_dataset() -> None:
    world = World()
    Member(world, np.arange(8), dataset="one")
    other = Member(world, np.arange(9), dataset="one")
    assert isinstance(other.answer, Refused) and "8 samples here and 9 there" in other.answer.reason


def test_no_more_jobs_share_than_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MOST_JOBS", 2)
    world = World()
    first, second, third = (Member(world, np.arange(8), group=name, world_size=2) for name in "abc")
    assert isinstance(third.answer, Refused) and "2 jobs share already" in third.answer.reason
    another_rank = Member(world, np.arange(8), group="b", rank=1, world_size=2)
    assert not isinstance(another_rank.answer, Refused), "the ranks of a job count as one"
    first.leave()
    first.bury()
    assert not isinstance(Member(world, np.arange(8)).answer, Refused)
    assert second.number >= 0


def test_idle_hands_fill_nothing_while_somebody_has_a_draw_to_prepare() -> None:
    world = World()
    first, second = (Member(world, np.arange(200)) for _ in range(2))
    first.begin()
    second.begin()
    first.ask()
    assert second.idle() is None and first.idle() is None
    world.settle()
    assert second.idle() is not None
    assert first.idle() is not None, "a fill is no draw"


def test_a_draw_that_was_waited_for_in_vain_holds_up_neither_fills_nor_draws() -> None:
    """Its job may be paused for hours."""
    world = World()
    first, second = pair(world, keys=("", "", "a"))
    third, fourth = (Member(world, np.arange(8), batch=8, keys=("", "", "a")) for _ in range(2))
    beside = Member(world, np.arange(100, 164), batch=8)
    second.ask()
    (work,) = second.work.values()
    assert not work.updated
    world.now += 2 * world.state.patience
    world.tell(Ticked(1))
    world.deliver()
    second.finish(work, 0, 8, prepared)
    third.begin()
    third.ask()
    (work,) = third.work.values()
    assert work.updated, "the first job is not waited for again"
    third.finish(work, 0, 8, prepared)
    beside.begin()
    assert beside.idle() is not None
    assert first.work and fourth.number >= 0


def test_fills_displace_nothing() -> None:
    world = World()
    job = Member(world, np.arange(200), keys=("", "d", ""), budget=20 * aligned(BYTES[Form.DECODED], PAGE))
    shelf = world.state.pool.shelves[Form.DECODED, "d"]
    shelf.learn([BYTES[Form.DECODED]])
    job.begin()
    for _ in range(4):
        job.ask()
        world.settle()
    assert len(shelf) == 20
    before = shelf.cached.tobytes(), world.state.pool.evictions
    assert job.idle() is None
    assert (shelf.cached.tobytes(), world.state.pool.evictions) == before


def test_an_augmented_sample_goes_when_all_have_had_it_but_for_those_who_left() -> None:
    world = World()
    first, second, third = (Member(world, np.arange(8), batch=8, keys=("", "", "a")) for _ in range(3))
    for job in (first, second, third):
        job.begin()
    first.ask()
    (work,) = first.work.values()
    first.finish(work, 0, 8, prepared)
    shelf = world.state.pool.shelves[Form.AUGMENTED, "a"]
    assert len(shelf) == 8
    third.leave()
    third.bury()
    second.ask()
    (work,) = second.work.values()
    assert (work.forms == Form.AUGMENTED).all()
    second.finish(work, 0, 8, prepared)
    assert len(shelf) == 0
    world.check_quiet()


def test_a_draw_says_how_many_share_what_is_prepared_for_it() -> None:
    """A job in company keeps less ahead."""
    world = World()

    def company(member: Member) -> int:
        world.tell(Asked(member.member, b""))
        drawn = [reply for _, reply in world.out if isinstance(reply, Drawn)][-1]
        world.deliver()
        world.settle()
        return drawn.company

    first = Member(world, np.arange(200), keys=("", "d", "a"))
    first.begin()
    assert company(first) == 0
    stranger = Member(world, np.arange(300, 400), keys=("", "x", "y"))
    assert stranger.number >= 0 and company(first) == 0, "with whom nothing can be shared"
    second = Member(world, np.arange(200), keys=("", "d", "b"))
    assert company(first) == 1
    second.leave()
    second.bury()
    assert company(first) == 0
