"""Samples that a cluster has read already are drawn first, and nobody waits for those that do not come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.coordinate import nearby
from headrace.coordinate.events import Neared, Ticked, Tidied
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from tests.coordinate.jobs import Member, World

SAMPLES = 200


def near(world: World, member: Member, samples: list[int], *, more: bool = True, passed: float = 0.1) -> None:
    """The nodes have taken these in by now."""
    world.now += passed
    world.tell(Neared(member.dataset, np.array(samples, np.int64).tobytes(), more))
    world.deliver()


def got(member: Member) -> list[int]:
    """What it was given, batch by batch."""
    return sorted(int(one) for batch in member.got for one in batch)


def two(world: World, **terms: object) -> tuple[Member, Member]:
    """Jobs over one dataset."""
    first, second = (Member(world, np.arange(SAMPLES), **terms) for _ in range(2))  # type: ignore[arg-type]
    first.begin()
    second.begin()
    return first, second


def test_what_is_near_is_drawn_first_by_all_jobs() -> None:
    world = World()
    jobs = two(world, keys=("", "", ""))
    near(world, jobs[0], list(range(40, 56)))
    for job in jobs:
        job.ask()
        job.ask()
        assert got(job) == list(range(40, 56))


def test_a_draw_waits_for_what_comes_soon_and_for_nothing_else() -> None:
    world = World()
    job, _ = two(world, keys=("", "", ""))
    near(world, job, [])
    job.ask()
    assert not job.got, "nothing has come, and it is not known yet how much will"
    near(world, job, [7, 9, 11])
    assert not job.got, "thirty a second come"
    near(world, job, [1, 2, 3, 4, 5])
    assert got(job) == [1, 2, 3, 4, 5, 7, 9, 11]


def test_nobody_waits_where_nothing_comes() -> None:
    world = World()
    job, _ = two(world, keys=("", "", ""))
    near(world, job, [])
    job.ask()
    near(world, job, [], passed=nearby._SOON)
    assert len(job.got) == 1, "storage gives nothing: whoever asks it by name may get something"


def test_nobody_waits_for_who_says_nothing_any_more() -> None:
    world = World()
    job, _ = two(world, keys=("", "", ""))
    near(world, job, [])
    near(world, job, list(range(7)), passed=0.01)
    job.ask()
    assert not job.got
    world.now += nearby._SILENT + 0.1
    world.tell(Ticked(1))
    world.deliver()
    assert len(job.got) == 1


def test_what_comes_slowly_is_not_waited_for() -> None:
    world = World()
    job, _ = two(world, keys=("", "", ""))
    near(world, job, [])
    for sample in range(5):
        near(world, job, [sample], passed=1.0)
    job.ask()
    assert len(job.got) == 1 and set(range(5)) <= set(got(job)), "what is there comes first all the same"


def test_nobody_waits_for_what_others_need() -> None:
    """A job that goes on near the end of its epoch needs few of those that come, however many that are."""
    world = World()
    job = Member(world, np.arange(20_000), batch=8, keys=("", "", ""))
    job.begin()
    world.state.remaining.take(job.number, np.arange(19_900))
    near(world, job, [])
    for at in range(10):
        near(world, job, list(range(100 * at, 100 * at + 100)))
    job.ask()
    assert len(job.got) == 1, "a thousand a second come, and five of these are of use"


def test_a_wait_that_is_in_vain_ends_and_does_not_begin_again_at_once() -> None:
    """There is no room for what the job needs, and others come all the time."""
    world = World()
    job = Member(world, np.arange(100_000), batch=8, keys=("", "", ""))
    job.begin()
    world.state.remaining.take(job.number, np.arange(1000, 100_000))
    others = iter(np.arange(1000, 100_000).reshape(-1, 3000).tolist())
    near(world, job, [])
    near(world, job, [*range(7), *next(others)])
    job.ask()
    assert not job.got
    begun = world.now
    while not job.got:
        assert world.now < begun + nearby._SOON + 0.2, "it waits on"
        near(world, job, next(others))
    job.ask()
    assert len(job.got) == 2, "nor does the next draw wait"
    world.now += nearby._VAIN
    for _ in range(7):
        near(world, job, next(others))
    job.ask()
    assert len(job.got) == 2, "later it is tried again"


def test_what_several_jobs_tell_comes_once() -> None:
    """Each job of a machine tells its host the same."""
    world = World()
    jobs = [Member(world, np.arange(SAMPLES), batch=32, keys=("", "", "")) for _ in range(4)]
    for job in jobs:
        job.begin()
    near(world, jobs[0], [])
    for at in range(8):
        for job in jobs:
            near(world, job, [at], passed=0.05)
    jobs[0].ask()
    assert len(jobs[0].got) == 1, "ten more come in two seconds, and not forty"


def test_large_batches_are_waited_for_as_long_as_storage_would_take_for_others() -> None:
    world = World()
    first, second = (Member(world, np.arange(SAMPLES), batch=64, keys=("", "", "")) for _ in range(2))
    first.begin()
    second.begin()
    near(world, first, [])
    for at in range(10):
        near(world, first, list(range(4 * at, 4 * at + 4)))
    first.ask()
    second.ask()
    assert not first.got and not second.got, "24 more, of forty a second"
    for at in range(10, 16):
        near(world, first, list(range(4 * at, 4 * at + 4)))
    assert got(first) == got(second) == list(range(64))


def test_who_waits_is_looked_at_when_there_is_news_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    first, second = two(world, keys=("", "", ""))
    near(world, first, [])
    first.ask()
    looks: list[int] = []
    find = nearby.Nearby._found

    def found(*args: Any) -> int:
        looks.append(1)
        return find(*args)

    monkeypatch.setattr(nearby.Nearby, "_found", found)
    for _ in range(20):
        world.tell(Ticked(1))
    assert not looks, "nothing has happened"
    world.now += nearby._LOOK
    world.tell(Ticked(1))
    world.tell(Ticked(1))
    assert len(looks) == 1
    near(world, first, [3, 4, 5, 6])
    assert len(looks) == 2 and not first.got
    second.ask()
    assert len(looks) == 3 and not second.got


def test_what_is_not_gone_by_any_more_takes_no_memory() -> None:
    world = World()
    job, _ = two(world, keys=("", "", ""))
    near(world, job, [1, 2, 3])
    near_by = world.commons._nearby
    assert not near_by.has_lost(job.dataset, world.now) and near_by.has_lost("another", world.now)
    world.now += nearby._SILENT + 0.1
    assert near_by.has_lost(job.dataset, world.now), "whoever has told it has to do so again"
    world.tell(Tidied())
    assert not near_by._near
    near_by.expect(world.state.universe.datasets[job.dataset])
    assert near_by.has_lost(job.dataset, world.now), "there is a place for it, and nothing in it"


def test_once_all_is_read_that_there_is_room_for_it_makes_no_difference() -> None:
    world = World()
    job, _ = two(world, keys=("", "", ""))
    near(world, job, list(range(8)))
    near(world, job, [], more=False)
    job.ask()
    assert set(got(job)) != set(range(8))


def test_what_is_cached_comes_before_what_is_near() -> None:
    world = World()
    first, second = two(world, keys=("e", "d", "a"))
    first.ask()
    world.settle()
    cached = set(got(first))
    near(world, first, list(range(SAMPLES)))
    second.ask()
    assert set(got(second)) == cached


def test_idle_hands_leave_alone_what_storage_has_yet_to_give() -> None:
    world = World()
    job, _ = two(world)
    near(world, job, list(range(100, 104)))
    work = job.idle()
    assert work is not None and work.indices.tolist() and set(work.indices.tolist()) <= set(range(100, 104))


def test_what_is_near_is_known_by_identity_where_datasets_overlap() -> None:
    world = World()
    _ = two(world)
    other = Member(world, np.arange(100, 300), keys=("", "", ""))
    other.begin()
    near(world, other, [150 + at for at in range(8)])
    other.ask()
    assert got(other) == [150 + at for at in range(8)]


def test_jobs_that_draw_for_themselves_draw_as_ever() -> None:
    world = World()
    job = Member(world, np.arange(SAMPLES), sampling="uniform")
    job.begin()
    near(world, job, list(range(8)))
    job.ask(np.array([150, 20]))
    (work,) = job.work.values()
    assert work.indices.tolist() == [150, 20] and not work.forms.any() and int(Form.NONE) == 0


def test_what_cannot_be_true_is_refused_and_changes_nothing() -> None:
    world = World()
    job, _ = two(world)
    key = job.dataset
    wrong = np.array([SAMPLES], np.int64).tobytes()
    for told in (Neared("unknown", b"", True), Neared(key, b"123", True), Neared(key, wrong, True)):
        with pytest.raises(ProtocolError):
            world.tell(told)
    assert world.commons._nearby.words(world.state.jobs[job.number]) is None
