"""A shared host that knows what jobs will draw: when samples are needed next, what goes, what is fetched ahead."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.events import Began
from headrace.coordinate.futures import Futures
from headrace.coordinate.protocol import Begin, Known
from headrace.core.dues import FAR
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.planning import most_ahead_of_need
from tests.coordinate.jobs import Member, World
from tests.coordinate.known_jobs import EACH, KnownMember, least_misses, trace

DATASETS = (np.arange(40), np.arange(25, 60), np.arange(7))


def world_for(samples: int) -> tuple[World, int]:
    """And bytes for so many samples."""
    return World(), samples * EACH


def learn_size(world: World) -> None:
    """What a sample takes is known, as after the first."""
    for shelf in world.state.pool.shelves.values():
        if not shelf.known:
            shelf.learn([56_000])


def check_next_uses(world: World, members: list[KnownMember]) -> None:
    """What is foreseen is what a plain walk through the epochs to come finds."""
    futures: Futures = world.commons.futures
    size = world.state.universe.size
    begun = [member for member in members if not member.gone and member.epoch >= 0]
    assert futures.on == bool(begun)
    truth = {member.number: member.next_steps(size) for member in begun}
    for member in begun:
        future = futures._futures[member.number]
        found = np.full(size, FAR, np.int64)
        found[member.universe] = np.where(future.due == FAR, FAR, future.due + np.int64(future.origin))
        # (more epochs than two may be known)
        found[found >= (member.epoch + 2) * future.known.steps] = FAR
        assert (found == truth[member.number]).all()
        assert future.at == (member.epoch + 1) * future.known.steps - len(member.coming)
    for shelf in world.state.pool.shelves.values():
        users = [member for member in begun if member.number in shelf.jobs]
        first = np.full(size, FAR, np.int64)
        by_epochs = len({id(futures._run_of[member.number]) for member in users}) == 1
        for member in users:
            run, future = futures._run_of[member.number], futures._futures[member.number]
            steps = future.due + float(future.origin)
            if by_epochs:
                steps = (steps // future.known.steps + 0.5) * future.known.steps
            times = np.clip((steps - run._at) * run._each, 0, FAR - 1).astype(np.int64)
            mine = member.universe
            first[mine] = np.minimum(first[mine], np.where(future.due == FAR, FAR, times))
        assert np.abs(futures.due(shelf) - first).max(initial=0) <= 1, "times are rounded"


JOINS = st.tuples(
    st.integers(0, len(DATASETS) - 1),
    st.integers(0, 2),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 3, 8)),
    st.booleans(),
)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), JOINS),
        st.tuples(
            st.sampled_from(("draw", "draw", "draw", "some", "skip", "next", "leave")), st.integers(0, 99)
        ),
        st.tuples(st.just("resume"), st.tuples(st.integers(0, 99), st.integers(0, 50), st.integers(0, 3))),
    ),
    min_size=3,
    max_size=40,
)


@given(ops=OPS)
@settings(max_examples=60)
def test_the_next_use_of_a_sample_is_the_first_over_all_ranks(ops: list) -> None:
    world, budget = world_for(15)
    members: list[KnownMember] = []

    def live() -> list[KnownMember]:
        return [member for member in members if not member.gone]

    for name, what in ops:
        if name == "join":
            dataset, seed, ranks, batch, drop_last = what
            if len(live()) >= 5 or (drop_last and batch * ranks > len(DATASETS[dataset])):
                continue
            for rank in range(min(ranks, 2)):  # (the other two are on another machine)
                member = KnownMember(
                    world, DATASETS[dataset], seed=seed, rank=rank, ranks=ranks, batch=batch,
                    drop_last=drop_last, budget=budget,
                )  # fmt: skip
                members.append(member)
                learn_size(world)
                member.start(0)
        elif live():
            member = live()[(what if name != "resume" else what[0]) % len(live())]
            if name == "draw":
                member.draw()
            elif name == "some":
                for _ in range(what % 7):
                    member.draw(finish=bool(what % 2))
            elif name == "skip" and len(member.coming) > 2:  # as after another host was lost
                del member.coming[: what % 3]
                member.draw()
            elif name == "next":
                member.start(member.epoch + 1)
            elif name == "resume":
                _, position, epoch = what
                member.finish_all()
                member.start(epoch, min(position, len(member.samples)))
            elif name == "leave":
                member.finish_all()
                member.leave()
                member.bury()
            member.finish_all()
        check_next_uses(world, members)
    world.settle()
    world.check_quiet()


def prepared_by(members: list[KnownMember], turns: list[int], room: int) -> tuple[float, float]:
    """Run jobs; what part of the samples had to be prepared, and the least. The last third of the turns stands for
    what is still to come: a host cannot know that nothing comes after."""
    counted = 2 * len(turns) // 3
    uses, misses = [], 0
    for at, turn in enumerate(turns):
        member = members[turn]
        if not member.coming:
            if at < counted:
                member.start(member.epoch + 1)
            else:
                member.epoch += 1
                member.coming = member.draws(member.epoch)
        uses.append(member.samples[member.coming[0].indices])
        if at < counted:
            misses += member.draw()
        else:
            member.coming.pop(0)
    total = sum(map(len, uses[:counted]))
    return misses / total, least_misses(uses, counted, room) / total


@pytest.mark.parametrize("speeds", [[1], [1, 1, 1, 1], [4, 1], [6, 3, 2, 1]], ids=str)
def test_little_more_is_prepared_than_has_to_be(speeds: list[int]) -> None:
    room, found = 100, {}
    for says in (True, False):
        world, budget = world_for(room)
        members = [
            KnownMember(world, np.arange(400), seed=seed, budget=budget, says=says)
            for seed in range(len(speeds))
        ]
        learn_size(world)
        for member in members:
            member.start(0)
        assert world.commons.futures.on == says
        found[says] = prepared_by(members, trace(members, 9, speeds), room)
        world.check_quiet()
        for member in members:
            member.leave()
    misses, least = found[True]
    print(speeds, "known", misses, "least", least, "not known", found[False][0])
    assert misses <= 1.05 * least
    if len(speeds) > 1:
        assert misses < 0.9 * found[False][0]


@pytest.mark.parametrize("here", [4, 2], ids=["all ranks here", "half of them"])
def test_ranks_of_one_job_prepare_little_more_than_has_to_be(here: int) -> None:
    room = 100
    world, budget = world_for(room)
    members = [
        KnownMember(world, np.arange(400), rank=rank, ranks=4, batch=5, budget=budget) for rank in range(here)
    ]
    learn_size(world)
    for member in members:
        member.start(0)
    turns = [turn for _ in range(12 * 20) for turn in range(here)]
    misses, least = prepared_by(members, turns, room)
    print(here, misses, least)
    assert misses <= 1.1 * least


def test_of_samples_with_one_time_more_small_ones_are_kept() -> None:
    """As by the usual policy, which knows sizes and no times."""
    kept = {}
    for says in (True, False):
        world, budget = world_for(60)
        member = KnownMember(world, np.arange(300), budget=budget, says=says)
        sizes = random.Random(1).choices((9_000, 16_000, 90_000), k=4 * 300)

        def of_any_size(_: Form, room: int, sizes: list[int] = sizes) -> int:
            return min(room, sizes.pop())

        member.start(0)
        for _ in range(4 * 38):
            member.draw(finish=False)
            for work in list(member.work.values()):
                member.finish(work, 0, len(work.forms), of_any_size)
            member.tell_ends()
        (shelf,) = world.state.pool.shelves.values()
        kept[says] = len(shelf)
        world.check_quiet()
    print(kept)
    assert kept[True] >= 0.95 * kept[False]
    assert kept[True] > 1.3 * budget / 38_333


def test_what_goes_is_needed_last() -> None:
    world, budget = world_for(60)
    members = [KnownMember(world, np.arange(300), seed=seed, budget=budget) for seed in range(3)]
    learn_size(world)
    for member in members:
        member.start(0)
    (shelf,) = world.state.pool.shelves.values()
    futures, dice, gone_at_all = world.commons.futures, random.Random(3), 0
    for _ in range(300):
        before = shelf.cached.ids()
        member = dice.choice(members)
        member.draw(finish=False)
        # (room is made when it is granted)
        gone = np.setdiff1d(before, shelf.cached.ids())
        assert futures._line is not None
        cells = futures.due(shelf) // futures._line.grain
        stay = np.setdiff1d(shelf.cached.ids(), shelf.busy.bits.ids())
        if len(gone) and len(stay):
            assert cells[gone].min() >= cells[stay].max()
        came = shelf.pending.ids()
        if len(gone):
            assert len(came) >= len(gone)
            assert (np.sort(cells[came])[: len(gone)] < np.sort(cells[gone])).all()
        gone_at_all += len(gone)
        member.finish_all()
    assert gone_at_all > 100


def test_idle_workers_prepare_what_is_needed_soonest() -> None:
    world, budget = world_for(60)
    member = KnownMember(world, np.arange(300), budget=budget)
    learn_size(world)
    member.start(0)
    (shelf,) = world.state.pool.shelves.values()
    first = member.idle()
    assert first is not None, "there is room"
    coming = np.concatenate([drawn.indices for drawn in member.coming])
    assert sorted(first.indices.tolist()) == sorted(coming[:8].tolist())
    member.finish_all()
    for _ in range(60):
        member.draw()
        if member.idle() is not None:
            member.finish_all()
    assert len(shelf) == 60
    most = most_ahead_of_need(60, member.batch)
    for _ in range(50):
        member.draw()
        if len(member.coming) < 8:
            continue
        coming = np.concatenate([drawn.indices for drawn in member.coming])
        before = shelf.cached.ids()
        while (fill := member.idle()) is not None:
            missing = [sample for sample in coming.tolist() if sample not in before and sample not in shelf]
            needed = coming[: 1 + max(np.flatnonzero(np.isin(coming, fill.indices)))]
            assert not set(fill.indices.tolist()) - set(missing)
            member.finish_all()
            assert np.isin(needed, shelf.cached.ids()).all(), "nothing sooner is left out, or goes"
        gone = np.setdiff1d(before, shelf.cached.ids())
        assert not np.isin(gone, coming).any(), "what this epoch needs stays"
        future = world.commons.futures.of(world.state.jobs[member.number])
        assert future is not None and future.ahead.waiting <= most
    assert world.state.refills > 60


@pytest.mark.slow
def test_fetching_ahead_prepares_hardly_more() -> None:
    found = []
    for fills in (False, True):
        world, budget = world_for(300)
        members = [
            KnownMember(world, np.arange(1200), seed=seed, batch=3, budget=budget) for seed in range(2)
        ]
        learn_size(world)
        for member in members:
            member.start(0)
        for at in range(2 * 400 * 2):
            member = members[at % 2]
            member.draw()
            if fills and member.idle() is not None:
                member.finish_all()
        found.append(world.decodes)
        world.check_quiet()
    print(found)
    assert found[1] <= 1.05 * found[0]


def test_workers_with_orders_have_no_time_to_fetch_ahead() -> None:
    world, budget = world_for(60)
    member = KnownMember(world, np.arange(300), budget=budget)
    learn_size(world)
    member.start(0)
    member.draw(finish=False)
    assert member.idle() is None
    member.draw(finish=False)
    world.now += 1.0
    assert member.idle() is None, "of two batches, one is being prepared"
    member.finish_all()
    member.draw(finish=False)
    assert member.idle() is None
    world.now += 0.1
    assert member.idle() is not None, "the rank has no memory for the batch that it was given"
    member.finish_all()
    assert member.idle() is not None


def test_an_order_that_is_not_true_is_not_gone_by() -> None:
    world, budget = world_for(60)
    liar, honest = (KnownMember(world, np.arange(120), seed=9 * at, budget=budget) for at in range(2))
    learn_size(world)
    honest.start(0)
    liar.start(0, lie=True)
    futures = world.commons.futures
    assert futures.on
    liar.draw()
    assert not futures.on
    assert world.state.pool.worths.eviction.name == "auto"
    while liar.coming or honest.coming:
        for member in (liar, honest):
            if member.coming:
                member.draw()
    for member in (liar, honest):
        member.check_epoch()
        member.start(1)
    assert futures.on
    check_next_uses(world, [liar, honest])


def test_it_goes_by_the_usual_policy_as_long_as_somebody_draws_otherwise() -> None:
    world, budget = world_for(60)
    known = KnownMember(world, np.arange(120), budget=budget)
    learn_size(world)
    known.start(0)
    known.draw()
    futures = world.commons.futures
    other = Member(world, np.arange(120), keys=("", "d", ""), budget=budget)
    assert futures.on, "one that has not begun uses nothing"
    other.begin()
    assert not futures.on
    known.draw()
    other.leave()
    other.bury()
    assert futures.on
    check_next_uses(world, [known])
    known.leave()
    assert not futures.on


@pytest.mark.parametrize("eviction", ["lru", "refcount", "none"])
def test_a_policy_that_was_asked_for_is_obeyed(eviction: str) -> None:
    world, budget = world_for(60)
    member = KnownMember(world, np.arange(120), budget=budget, eviction=eviction)
    member.start(0)
    assert not world.commons.futures.on
    assert world.state.pool.worths.eviction.name == eviction


def test_encoded_and_decoded_samples_do_not_compete_by_time_alone() -> None:
    world, budget = world_for(60)
    members = [
        KnownMember(world, np.arange(120), seed=at, budget=budget, keys=("e", decoded, ""))
        for at, decoded in enumerate("dc")
    ]
    for member in members:
        member.start(0)
    futures = world.commons.futures
    assert not futures.on
    world.state.pool.set_budget(
        budget, {(Form.ENCODED,): budget // 2, (Form.DECODED, Form.AUGMENTED): budget // 2}
    )
    members[0].draw()
    assert futures.on, "with parts of their own, they do not compete"
    members[0].leave()
    members[0].bury()
    assert futures.on
    check_next_uses(world, members)


def test_more_ranks_than_are_followed_go_by_the_usual_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.coordinate.futures._MOST_RANKS", 2)
    world, budget = world_for(60)
    members = [KnownMember(world, np.arange(50), seed=at, budget=budget) for at in range(3)]
    for member in members:
        member.start(0)
    assert not world.commons.futures.on
    members[0].leave()
    assert not world.commons.futures.on, (
        "the third one was not followed, and says its order with its next epoch"
    )
    members[2].start(1)
    assert world.commons.futures.on


@pytest.mark.parametrize(
    "known",
    [Known(0, True, 8, 2, 2, False), Known(0, True, 8, 0, 1, False, 121)],
    ids=["a rank too many", "behind the end"],
)
def test_what_cannot_be_true_is_refused(known: Known) -> None:
    world, budget = world_for(60)
    member = KnownMember(world, np.arange(120), budget=budget)
    with pytest.raises(ProtocolError):
        world.tell(Began(member.member, Begin(0, explicit=True, known=known), None))
    other = Member(world, np.arange(120), budget=budget)
    with pytest.raises(ProtocolError):
        world.tell(Began(other.member, Begin(0, known=Known(0, True, 8, 0, 1, False)), None))
    assert world.state.jobs[other.number].epoch is None
