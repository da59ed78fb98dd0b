"""Ranks of one job, and epochs that go on with another host."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.absent import Absent
from headrace.coordinate.events import Buried, Ticked, Tidied
from headrace.coordinate.members import write_progress
from headrace.coordinate.protocol import Refused
from headrace.core.bits import Bits
from headrace.core.forms import Form
from tests.coordinate.jobs import Member, World, prepared

SAMPLINGS = ("auto", "opportunistic", "dependent")


@settings(max_examples=30, deadline=None)
@given(
    samples=st.integers(2, 60),
    batch=st.integers(2, 9),
    sampling=st.sampled_from(SAMPLINGS),
    drop_last=st.booleans(),
    turns=st.lists(st.integers(0, 1), max_size=40),
    other=st.booleans(),
)
def test_two_ranks_cover_an_epoch_once_in_equal_steps(
    samples: int, batch: int, sampling: str, drop_last: bool, turns: list[int], other: bool
) -> None:
    world = World()
    if other:
        Member(world, np.arange(samples), batch=5).begin()
    ranks = [
        Member(
            world,
            np.arange(samples),
            batch=batch,
            sampling=sampling,
            drop_last=drop_last,
            group="two",
            rank=rank,
            world_size=2,
        )
        for rank in range(2)
    ]
    for epoch in range(2):
        for rank in ranks:
            rank.begin(epoch)
        for turn in turns:
            if not ranks[turn].over and not ranks[turn].waiting_asks:
                ranks[turn].ask()
        world.drain()
        assert len(ranks[0].got) == len(ranks[1].got)
        both = [i for rank in ranks for part in rank.got for i in part.tolist()]
        if drop_last:
            assert len(set(both)) == len(both) == samples // (2 * batch) * 2 * batch
        else:
            assert sorted(both) == list(range(samples))
    for member in world.live():
        member.leave()
    for member in world.members:
        world.tell(Buried(member.member))
    world.check_quiet()


def test_a_rank_begins_the_epoch_while_the_other_is_still_in_the_last() -> None:
    world = World()
    ranks = [Member(world, np.arange(40), batch=5, group="g", rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        rank.begin(0)
    while not ranks[0].over:
        ranks[0].ask()
        world.settle()
    first = ranks[0].got
    ranks[0].begin(1)
    ranks[0].ask()
    world.drain()
    assert sorted(i for part in [*first, *ranks[1].got] for i in part.tolist()) == list(range(40))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    steps=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    ahead=st.integers(0, 2),
    before=st.booleans(),
    unheard=st.booleans(),
    sampling=st.sampled_from(SAMPLINGS),
)
def test_a_rank_whose_connection_is_lost_goes_on_where_it_was(
    steps: tuple[int, int], ahead: int, before: bool, unheard: bool, sampling: str
) -> None:
    """And the others do not notice. They may be in a later epoch. ``unheard``: its last draw was lost on the way."""
    world = World()
    terms: dict[str, Any] = {"batch": 4, "sampling": sampling, "group": "g", "world_size": 2}
    ranks = [Member(world, np.arange(45), rank=rank, **terms) for rank in range(2)]
    end = (b"", 0)
    if before:
        for rank in ranks:
            rank.begin(0)
        world.drain()
        end = (ranks[0].progress(), ranks[0].step)
    for rank, count in zip(ranks, steps, strict=True):
        rank.begin(1)
        for _ in range(count):
            if not rank.over:
                rank.ask()
                world.settle()
    lost, other = ranks
    got = [*lost.got]
    rest = [*other.got]
    for epoch in range(2, 2 + ahead):  # (its part of epoch 1 is taken by then, or given up)
        while epoch == 2 and not other.over:
            other.ask()
            world.settle()
        rest = [*other.got] if epoch == 2 else rest
        other.begin(epoch)
        other.ask()
        world.settle()
    lost.leave()
    if unheard and lost.step:
        lost.step -= 1
        got.pop()
        del lost.steps_of_all[lost.step]
    back = Member(world, np.arange(45), rank=0, token=lost.token, **terms)
    if before:
        back.begin(0, *end)
    back.begin(1, lost.progress(), lost.step)
    lost.bury()
    world.drain()
    assert not back.refused and not other.refused
    rest = rest if ahead else other.got
    assert_dealt_out([[np.concatenate([*got, *back.got]).tolist()], [np.concatenate(rest).tolist()]])
    back.begin(2 + ahead)
    other.begin(2 + ahead)
    world.drain()
    assert_dealt_out([[np.concatenate(rank.got).tolist()] for rank in (back, other)])


def test_a_rank_that_loads_a_state_begins_anew_and_has_not_come_back() -> None:
    world = World()
    terms: dict[str, Any] = {"batch": 4, "group": "g", "world_size": 2}
    ranks = [Member(world, np.arange(45), rank=rank, **terms) for rank in range(2)]
    for rank in ranks:
        rank.begin(0)
        rank.ask()
    world.settle()
    progress = write_progress(Bits.of(45, ranks[0].steps_of_all[0].tolist()), {})
    for rank in ranks:
        rank.ask()
        world.settle()
    for rank in ranks:
        rank.begin(0, progress, 0)
    world.drain()
    got = np.concatenate([part for rank in ranks for part in rank.got]).tolist()
    assert len(got) == 45 - 8


def alone(world: World, rank: int, epochs: int = 2, steps: int = 99, **terms: Any) -> list[list[int]]:
    """A rank comes while no other is there, runs its epochs (of the last one only some steps), and leaves."""
    terms = {"batch": 4, "group": "g", "world_size": 2, "drop_last": False} | terms
    member = Member(world, np.arange(terms.pop("samples", 45)), rank=rank, **terms)
    found = []
    for epoch in range(epochs):
        member.begin(epoch)
        for _ in range(steps if epoch == epochs - 1 else 99):
            if not member.over:
                member.ask()
                world.settle()
        found.append(np.concatenate(member.got).tolist())
    member.leave()
    member.bury()
    return found


def assert_dealt_out(parts: list[list[list[int]]], samples: int = 45) -> None:
    """Every sample of each epoch went to one rank."""
    for epoch in zip(*parts, strict=True):
        assert sorted(itertools.chain(*epoch)) == list(range(samples))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    order=st.permutations(range(3)),
    samples=st.integers(6, 60),
    epochs=st.integers(1, 3),
    sampling=st.sampled_from(SAMPLINGS),
    other=st.booleans(),
)
def test_ranks_that_are_never_there_at_once_share_each_epoch_out(
    order: list[int], samples: int, epochs: int, sampling: str, other: bool
) -> None:
    world = World()
    if other:  # more samples, and some are cached
        Member(world, np.arange(9, 80)).begin()
        world.drain()
    terms = {"samples": samples, "batch": 4, "sampling": sampling, "world_size": 3}
    for _ in range(2):  # a second run is as exact
        assert_dealt_out([alone(world, rank, epochs, **terms) for rank in order], samples)
    for member in world.live():
        member.leave()
        member.bury()
    world.check_quiet()


def test_a_rank_that_left_early_leaves_the_rest_of_the_epoch_to_the_next() -> None:
    world = World()
    first = alone(world, 0, steps=2)
    second = alone(world, 1)
    assert not set(first[1]) & set(second[1]) and len(first[1]) == 8
    assert_dealt_out([first[:1], second[:1]])
    assert_dealt_out([alone(world, 0)[1:], second[1:]])


def test_a_new_run_beside_what_is_left_of_the_last_one() -> None:
    """Rank 1 of the last one never came. Now it is first, and could be that one."""
    world = World()
    alone(world, 0, steps=3)
    ranks = [Member(world, np.arange(45), batch=4, group="g", rank=rank, world_size=2) for rank in (1, 0)]
    for epoch in range(4):
        for rank in ranks:
            rank.begin(epoch)
            rank.ask()
        world.drain()
        assert_dealt_out([[np.concatenate(rank.got).tolist()] for rank in ranks])
    assert world.state.absent.awaited is False
    ranks[0].begin(4)
    ranks[0].ask()  # prepared ahead, say
    for rank in ranks:
        rank.leave()
    assert world.state.absent._past and not world.state.absent.awaited, "both were there"


def test_a_run_that_goes_on_from_a_state_does_not_take_up_what_another_left() -> None:
    world = World()
    alone(world, 0, epochs=1, steps=3)
    ranks = [Member(world, np.arange(45), batch=4, group="g", rank=rank, world_size=2) for rank in (1, 0)]
    for rank in ranks:
        rank.begin(0, write_progress(Bits.of(45, range(10)), {}), 0)
    world.drain()
    got = np.concatenate([part for rank in ranks for part in rank.got])
    assert set(got.tolist()) == set(range(10, 45)) and not any(rank.refused for rank in ranks)


def test_ranks_that_load_states_of_different_steps_are_refused() -> None:
    world = World()
    terms: dict[str, Any] = {"batch": 4, "group": "g", "world_size": 2}
    ranks = [Member(world, np.arange(45), rank=rank, **terms) for rank in range(2)]
    ranks[0].begin(0, write_progress(Bits.of(45, range(8)), {}), 0)
    ranks[1].begin(0, write_progress(Bits.of(45, range(16)), {}), 0)
    world.settle()
    assert ranks[1].refused and "different steps" in ranks[1].refused[-1] and not ranks[0].refused


def test_ranks_that_load_another_state_later_begin_anew_with_it() -> None:
    world = World()
    terms: dict[str, Any] = {"batch": 4, "group": "g", "world_size": 2}
    ranks = [Member(world, np.arange(45), rank=rank, **terms) for rank in range(2)]
    for count in (8, 16):
        for rank in ranks:
            rank.begin(0, write_progress(Bits.of(45, range(count)), {}), 0)
        world.drain()
        got = np.concatenate([part for rank in ranks for part in rank.got]).tolist()
        assert sorted(got) == list(range(count, 45)) and not any(rank.refused for rank in ranks)


@pytest.mark.parametrize(
    "change", [{"batch": 5}, {"drop_last": True}, {"samples": 40}, {"sampling": "dependent"}]
)
def test_a_job_of_the_same_name_with_other_terms_draws_anew(change: dict[str, Any]) -> None:
    world = World()
    alone(world, 0)
    samples = change.get("samples", 45)
    parts = [alone(world, rank, **change) for rank in (1, 0)]
    if "drop_last" not in change:
        assert_dealt_out(parts, samples)
    else:
        assert not set(parts[0][0]) & set(parts[1][0])


def test_how_many_are_remembered_and_for_how_long() -> None:
    world = World()
    absent = world.state.absent = Absent(jobs=2, samples=200)
    for group in "abc":
        alone(world, 0, group=group)
    assert list(absent._past) == ["b", "c"]
    alone(world, 0, 1, group="d", samples=150)
    assert list(absent._past) == ["d"], "too many samples"
    alone(world, 0, 1, group="e", samples=201)
    assert not absent.awaited
    alone(world, 0, group="f")
    world.now += 3000
    world.tell(Tidied())
    assert absent.awaited
    world.now += 1000
    world.tell(Tidied())
    assert not absent.awaited and not absent._past


@settings(max_examples=30, deadline=None)
@given(
    steps=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    sampling=st.sampled_from(SAMPLINGS),
    order=st.booleans(),
)
def test_a_new_host_goes_on_where_the_ranks_are(steps: tuple[int, int], sampling: str, order: bool) -> None:
    before, after = World(), World(nonce=8)
    terms = {"batch": 4, "sampling": sampling, "group": "g", "world_size": 2}
    old = [Member(before, np.arange(45), rank=rank, **terms) for rank in range(2)]  # type: ignore[arg-type]
    for rank, count in zip(old, steps, strict=True):
        rank.begin(0)
        for _ in range(count):
            rank.ask()
            before.settle()
    new = [Member(after, np.arange(45), rank=rank, **terms) for rank in range(2)]  # type: ignore[arg-type]
    for number in (1, 0) if order else (0, 1):
        new[number].begin(0, old[number].progress(), old[number].step)
        if number == order:
            new[number].ask()
            assert len(new[number].got) == 0, "the other one may know of more"
    after.drain()
    assert len(old[0].got) + len(new[0].got) == len(old[1].got) + len(new[1].got)
    both = [i for rank in (*old, *new) for part in rank.got for i in part.tolist()]
    assert sorted(both) == list(range(45))
    assert all(rank.given == 45 for rank in new if rank.got)


@pytest.mark.parametrize("first", [0, 1])
def test_a_new_host_waits_for_a_rank_that_may_have_begun_the_next_epoch(first: int) -> None:
    """The other one knows of the epoch before only, and begins the next as if nobody had."""
    before, after = World(), World(nonce=8)
    terms = {"batch": 4, "group": "g", "world_size": 2}
    old = [Member(before, np.arange(45), rank=rank, **terms) for rank in range(2)]  # type: ignore[arg-type]
    for rank in old:
        rank.begin(0)
    before.drain()
    ends = [(rank.progress(), rank.step) for rank in old]
    old[1].begin(1)
    for _ in range(2):
        old[1].ask()
        before.settle()
    new = [Member(after, np.arange(45), rank=rank, **terms) for rank in range(2)]  # type: ignore[arg-type]
    for number in (first, 1 - first):
        new[number].begin(0, *ends[number])
        if number == 0:
            new[0].begin(1)
        else:
            new[1].begin(1, old[1].progress(), old[1].step)
        if number == first:
            new[number].ask()
            assert not new[number].got, "the other one may know of more"
    after.drain()
    both = [i for rank in (old[1], *new) for part in rank.got for i in part.tolist()]
    assert sorted(both) == list(range(45))


def test_a_rank_that_the_others_did_not_wait_for_is_refused() -> None:
    """What it knows came too late: samples would be missed, or come twice."""
    world = World()
    ranks = [Member(world, np.arange(40), batch=5, group="g", rank=rank, world_size=2) for rank in range(2)]
    ranks[0].begin(0)
    ranks[0].ask()
    ranks[1].begin(0, write_progress(Bits.of(40, [1, 2]), {}), 1)
    assert len(ranks[0].got) == 1 and ranks[1].refused == ["the samples of a step were lost with their host"]
    assert world.state.ranks[ranks[1].member][1].epoch is None


def test_a_resumed_epoch_brings_the_rest_of_it() -> None:
    world = World()
    first = Member(world, np.arange(50), batch=8)
    first.begin(3)
    for _ in range(3):
        first.ask()
        world.settle()
    progress, seen = first.progress(1), np.concatenate(first.got)
    first.leave()
    first.bury()
    again = Member(world, np.arange(50), batch=5)
    again.begin(3, progress, 3)
    world.drain()
    assert [len(part) for part in again.got] == [5, 5, 5, 5, 5, 1]
    assert sorted(np.concatenate([seen, *again.got]).tolist()) == list(range(50))
    assert again.given == 50 and again.last


def test_ranks_that_do_not_agree_and_full_seats_are_refused() -> None:
    world = World()
    Member(world, np.arange(40), group="g", world_size=2)
    taken = Member(world, np.arange(40), group="g", world_size=2)
    assert isinstance(taken.answer, Refused) and taken.answer.again
    other = Member(world, np.arange(40), group="g", rank=1, world_size=2, batch=9)
    assert isinstance(other.answer, Refused) and not other.answer.again
    unknown = Member(world, np.arange(40), sampling="alphabetic")
    assert isinstance(unknown.answer, Refused)


def lagging(world: World) -> tuple[Member, Member, Member]:
    """Another job, and two ranks of one: rank 1 has had its part of epoch 0 and begun epoch 1, rank 0 none of it."""
    keys = ("", "", "a")
    other = Member(world, np.arange(4), batch=4, keys=keys)
    ranks = [
        Member(world, np.arange(4), batch=2, keys=keys, group="g", rank=rank, world_size=2)
        for rank in range(2)
    ]
    for rank in ranks:
        rank.begin(0)
    while not ranks[1].over:
        ranks[1].ask()
        for work in list(ranks[1].work.values()):
            ranks[1].finish(work, 0, len(work.forms), lambda form, capacity: None)
    ranks[1].begin(1)
    return other, ranks[0], ranks[1]


def test_what_a_lagging_rank_takes_is_not_given_to_the_next_epoch() -> None:
    world = World()
    other, behind, ahead = lagging(world)
    other.begin()
    other.ask()
    (work,) = other.work.values()
    other.finish(work, 0, 4, prepared)
    behind.ask()  # (the world checks that nobody gets an instance twice)
    (work,) = behind.work.values()
    assert work.epoch == 0 and set(work.forms.tolist()) == {Form.AUGMENTED}
    taken = set(work.indices.tolist())
    ahead.ask()
    (work,) = ahead.work.values()
    assert work.epoch == 1 and taken & set(work.indices.tolist()), "drawn for both epochs"
    world.drain()
    assert behind.over and ahead.over


def test_what_a_lagging_rank_waits_for_is_not_promised_to_the_next_epoch() -> None:
    world = World()
    other, behind, ahead = lagging(world)
    other.begin()
    other.ask()
    behind.ask()
    ahead.ask()
    (early,), (late,) = behind.work.values(), ahead.work.values()
    assert early.waits == 0 and set(early.indices.tolist()) & set(late.indices.tolist())
    (work,) = other.work.values()
    other.finish(work, 0, 4, prepared)
    assert set(early.forms.tolist()) == {Form.AUGMENTED}
    world.drain()


def test_a_sample_that_is_repeated_for_another_rank_is_another_instance() -> None:
    world = World()
    other = Member(world, np.arange(1))
    ranks = [Member(world, np.arange(1), batch=1, group="g", rank=rank, world_size=2) for rank in range(2)]
    for member in (other, *ranks):
        member.begin(0)
    other.ask()
    (work,) = other.work.values()
    other.finish(work, 0, 1, prepared)
    for rank in ranks:
        rank.ask()
    forms = [int(work.forms[0]) for rank in ranks for work in rank.work.values()]
    assert forms[0] == Form.AUGMENTED and forms[1] < Form.AUGMENTED


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    samples=st.integers(1, 24),
    batches=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    samplings=st.tuples(st.sampled_from(SAMPLINGS), st.sampled_from(SAMPLINGS)),
    ops=st.lists(
        st.tuples(st.sampled_from(("ask", "ask", "finish", "some", "idle", "tick")), st.integers(0, 99)),
        min_size=20,
        max_size=120,
    ),
)
@pytest.mark.slow
def test_no_job_gets_an_instance_twice_in_whatever_epochs_its_ranks_are(
    samples: int, batches: tuple[int, int], samplings: tuple[str, str], ops: list[tuple[str, int]]
) -> None:
    """Two ranks, of which each begins its next epoch as soon as it can, among two jobs that make instances."""
    world = World()
    for number in range(2):
        Member(world, np.arange(samples), batch=batches[number], sampling=samplings[number]).begin()
    for rank in range(2):
        terms = {"batch": batches[0], "sampling": samplings[0], "group": "g", "world_size": 2}
        Member(world, np.arange(samples), rank=rank, **terms)  # type: ignore[arg-type]
    for member in world.members[2:]:
        member.begin(0)
    for op, number in ops:
        member = world.members[number % 4]
        if op == "tick":
            world.now += number / 20
            world.tell(Ticked(1))
            world.deliver()
        elif op == "idle":
            member.idle()
        elif op == "ask":
            ranks = world.members[2:]
            if not member.over:
                if member.waiting_asks < 3:
                    member.ask()
            # (the next epoch begins where its job's other rank is in this one: by then it was begun by both)
            elif member not in ranks or all(rank.epoch >= member.epoch for rank in ranks):
                member.begin()
        elif member.work:
            work = list(member.work.values())[number % len(member.work)]
            rows = len(work.forms) if work.updated or work.fill else work.waits
            first = number % rows if op == "some" and rows else 0
            member.finish(work, first, rows - first, prepared)
    world.drain()
