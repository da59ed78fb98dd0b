"""What jobs over one commons can rely on, whatever happens in whatever order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.coordinate.protocol import Finished, Joined, Refused
from headrace.eviction import EVICTIONS
from tests.coordinate.jobs import BYTES, Member, Publish, World, prepared, run

SAMPLINGS = ("auto", "opportunistic", "dependent")
DATASETS = (
    np.arange(30),
    np.arange(20, 55),
    np.array([3, 3, 50, 7, 60, 60, 60, 8]),
    np.arange(1),
)
KEYS = (("e", "d", "a"), ("e", "d", "b"), ("e", "c", ""), ("", "d", ""), ("", "", "a"), ("", "", ""))
BUDGETS = (0, 150_000, 1_200_000, 1 << 23)

JOINS = st.tuples(
    st.sampled_from(range(len(DATASETS))),
    st.sampled_from(SAMPLINGS),
    st.sampled_from(KEYS),
    st.sampled_from((1, 4, 7, 64)),
    st.booleans(),
    st.booleans(),
)
OPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("ask", "ask", "ask", "finish", "finish", "finish")), st.integers(0, 99)),
        st.tuples(st.sampled_from(("some", "give up", "twice", "idle", "tick", "again")), st.integers(0, 99)),
        st.tuples(st.sampled_from(("leave", "bury", "next")), st.integers(0, 99)),
        st.tuples(st.just("join"), JOINS),
    ),
    max_size=80,
)


def publish_some(rng: random.Random) -> Publish:
    """Some are published, of any size."""

    def publish(form: Form, capacity: int) -> int | None:
        kind = rng.randrange(4)
        return None if not kind else prepared(form, capacity) if kind < 3 else rng.randint(1, capacity)

    return publish


class Schedule:
    """Carries out what a test says, as far as it makes sense."""

    def __init__(self, budget: int, eviction: str, split: tuple[float, float, float] | None) -> None:
        self.world = World()
        self.rng = random.Random(1)
        self.terms = {"budget": budget, "eviction": eviction, "split": split}

    def join(self, terms: tuple[int, str, tuple[str, str, str], int, bool, bool]) -> None:
        """A job comes and begins."""
        if len(self.world.live()) >= 5:
            return
        dataset, sampling, keys, batch, drop_last, whole = terms
        member = Member(
            self.world,
            DATASETS[dataset],
            sampling=sampling,
            keys=keys,
            batch=batch,
            drop_last=drop_last,
            whole=whole,
            **self.terms,  # type: ignore[arg-type]
        )
        assert isinstance(member.answer, Joined)
        member.begin()

    def do(self, op: str, number: int) -> None:
        """One event."""
        world = self.world
        if op == "tick":
            world.commons.now += number / 20
            world.commons.tick()
            world.deliver()
            return
        if op == "bury":
            lost = [member for member in world.members if member.gone and member.work]
            if lost:
                lost[number % len(lost)].bury()
            return
        live = world.live()
        if not live:
            return
        member = live[number % len(live)]
        if op == "ask" and member.waiting_asks < 4 and not member.over:
            member.ask()
        elif op == "idle":
            member.idle()
        elif op == "leave":
            member.leave()
        elif op == "again":
            member.begin(member.epoch)
        elif op == "next" and member.over:
            member.check_epoch()
            member.begin()
        elif op in ("finish", "some", "give up", "twice") and member.work:
            work = list(member.work.values())[number % len(member.work)]
            rows = len(work.forms) if work.updated else work.waits
            first, count = 0, rows
            if op in ("some", "give up"):
                first = number % max(rows, 1)
                count = min(rows - first, 1 + number % 5)
            nothing: Publish = lambda form, capacity: None  # noqa: E731
            member.finish(work, first, count, nothing if op == "give up" else publish_some(self.rng))
            if op == "twice" and not member.gone:
                member.world.commons.finished(member.session, Finished(work.ticket, first, count))
                world.deliver()

    def end(self) -> None:
        """Everybody comes to the end of the epoch; then everybody leaves."""
        self.world.drain()
        for member in self.world.live():
            member.check_epoch()
            member.leave()
        for member in self.world.members:
            self.world.commons.buried(member.session)
        self.world.check_quiet()
        assert not self.world.commons.jobs and not self.world.commons.ranks


@settings(max_examples=60, deadline=None)
@given(
    ops=OPS,
    joins=st.lists(JOINS, min_size=1, max_size=4),
    budget=st.sampled_from(BUDGETS),
    eviction=st.sampled_from(sorted(EVICTIONS)),
    split=st.sampled_from((None, None, (1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))),
)
def test_whatever_happens_each_epoch_is_whole_and_nothing_is_left_behind(
    ops: list[tuple[str, object]],
    joins: list[tuple[int, str, tuple[str, str, str], int, bool, bool]],
    budget: int,
    eviction: str,
    split: tuple[float, float, float] | None,
) -> None:
    schedule = Schedule(budget, eviction, split)
    for terms in joins:
        schedule.join(terms)
    for op, what in ops:
        if op == "join":
            schedule.join(what)  # type: ignore[arg-type]
        else:
            schedule.do(op, what)  # type: ignore[arg-type]
    schedule.end()


@pytest.mark.parametrize("seed", range(12))
def test_long_random_histories(seed: int) -> None:
    """As above, longer than is good for finding a small example."""
    rng = random.Random(seed)
    schedule = Schedule(BUDGETS[1 + seed % 3], sorted(EVICTIONS)[seed % len(EVICTIONS)], None)
    kinds = ["ask"] * 10 + ["finish"] * 9 + ["some"] * 4 + ["idle", "idle", "next", "next", "twice"]
    kinds += ["give up", "tick", "again", "bury"]
    for at in range(600):
        if at % 40 == 0:
            terms = rng.randrange(2), SAMPLINGS[rng.randrange(3)], KEYS[rng.choice((0, 0, 0, 1, 2, 3, 4))]
            schedule.join((*terms, rng.choice((2, 4, 7)), rng.random() < 0.2, rng.random() < 0.2))
        if at % 90 == 89:
            schedule.do("leave", rng.randrange(99))
        schedule.do(rng.choice(kinds), rng.randrange(100))
    schedule.end()


# -- ranks --------------------------------------------------------------------------------------------------------


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
        world.commons.buried(member.session)
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
    for rank in (1, 0) if order else (0, 1):
        new[rank].begin(0, old[rank].progress(), old[rank].step)
        if rank == order:
            new[rank].ask()
            assert len(new[rank].got) == 0, "the other one may know of more"
    after.drain()
    assert len(old[0].got) + len(new[0].got) == len(old[1].got) + len(new[1].got)
    both = [i for rank in (*old, *new) for part in rank.got for i in part.tolist()]
    assert sorted(both) == list(range(45))
    assert all(rank.given == 45 for rank in new if rank.got)


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


# -- waiting ----------------------------------------------------------------------------------------------------


def pair(world: World, **terms: object) -> tuple[Member, Member]:
    """Two jobs of which the second waits for what the first prepares."""
    first, second = (Member(world, np.arange(8), batch=8, **terms) for _ in range(2))  # type: ignore[arg-type]
    first.begin()
    second.begin()
    first.ask()
    return first, second


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
        world.commons.now += 0.99 * world.commons.patience
        world.commons.tick()
        world.deliver()
        assert not work.updated
        world.commons.now += 0.02 * world.commons.patience
        world.commons.tick()
        world.deliver()
    assert work.updated and (work.forms == Form.NONE).all()
    world.settle()
    if how == "is gone":
        first.bury()
    world.check_quiet()


def test_a_job_whose_draw_waits_for_its_own_worker_may_go() -> None:
    world = World()
    member = Member(world, np.arange(8), batch=8)
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
    first, second = pair(world, keys=("", "d", ""))
    second.ask()
    for _ in range(3):
        world.commons.now += 2 * world.commons.patience
        world.commons.tick()
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
    world.commons.pool.shelves[Form.DECODED, "d"].learn(BYTES[Form.DECODED])
    early.begin()
    early.ask()
    (waiting,) = early.work.values()
    assert waiting.waits == 0
    (work,) = other.work.values()
    other.finish(work, 0, 1, prepared)  # ``World`` sees to it that nothing is served twice
    assert waiting.updated and waiting.forms.tolist() == [Form.DECODED]


# -- what is not believed ------------------------------------------------------------------------------------------


def state(world: World) -> object:
    """All that an event could change."""
    commons = world.commons
    shelves = [
        (
            key,
            shelf.entries().tolist(),
            shelf.cached.tobytes(),
            shelf.pending.tobytes(),
            dict(shelf.owner),
            dict(shelf.busy),
            shelf.bytes,
            shelf.estimate,
        )
        for key, shelf in commons.pool.shelves.items()
    ]
    tickets = [
        (ticket.id, dict(ticket.blocks), dict(ticket.reads), ticket.open.tolist(), ticket.left, ticket.waits)
        for ticket in commons.tickets.values()
    ]
    left = [commons.remaining.words(job).tolist() for job in commons.jobs]
    return shelves, tickets, left, commons.pool.used, commons.decodes, commons.fetches, len(commons.out)


def malformed(rows: int, grants: list[tuple[int, int, int, int]]) -> list[tuple[str, Finished]]:
    """Reports about ticket 0 that nobody should believe."""
    row, form, offset, capacity = grants[-1]
    good = grants[0][0], grants[0][1], grants[0][2], 10

    def report(*published: tuple[int, int, int, int], first: int = 0, count: int = rows) -> Finished:
        packed = np.array([good, *published], np.int64).tobytes()
        return Finished(0, first, count, packed, wanted=(7, 1 << 24, 1 << 24), decoded=3, fetched=4)

    return [
        ("rows beyond", Finished(0, 0, rows + 1, wanted=(9, 1 << 24, 9), decoded=1)),
        ("rows far beyond", Finished(0, 1 << 40, 1)),
        ("cut off", Finished(0, 0, rows, np.array([*good, row], np.int64).tobytes(), decoded=1)),
        ("a row beyond", report((rows, form, offset, 1))),
        ("a negative row", report((-1, form, offset, 1))),
        ("not granted", report((row, form, offset + 64, 1))),
        ("another form", report((row, 4 - form if form != 2 else 3, offset, 1))),
        ("no form", report((row, 0, offset, 1))),
        ("a huge form", report((row, 1 << 40, offset, 1))),
        ("too long", report((row, form, offset, capacity + 1))),
        ("empty", report((row, form, offset, 0))),
        ("negative", report((row, form, offset, -1))),
        ("the same block twice", report(good)),
        ("the same row twice", report((good[0], good[1], offset, 1))),
        ("rows of another part", report((row, form, offset, 1), count=rows - 1)),
    ]


CASES = [name for name, _ in malformed(8, [(0, 3, 0, 64), (7, 3, 64, 64)])]


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_report_is_an_error_and_changes_nothing(name: str) -> None:
    world = World()
    first, second = pair(world, keys=("", "", "a"))
    second.ask()
    (work,) = first.work.values()
    report = dict(malformed(8, work.grants))[name]
    report.ticket = work.ticket
    before = state(world)
    with pytest.raises(ProtocolError):
        world.commons.finished(first.session, report)
    assert state(world) == before
    world.settle()
    world.check_quiet()


def test_a_row_that_is_done_with_cannot_be_published() -> None:
    world = World()
    first, _ = pair(world, keys=("", "", "a"))
    (work,) = first.work.values()
    taken = work.grants[-1]
    first.finish(work, 0, 4, prepared)
    before = state(world)
    late = np.array([(0, taken[1], taken[2], 10)], np.int64).tobytes()
    with pytest.raises(ProtocolError):
        world.commons.finished(first.session, Finished(work.ticket, 0, 8, late))
    assert state(world) == before


def test_reports_about_others_draws_and_draws_that_are_over_are_passed_over() -> None:
    world = World()
    first, second = pair(world, keys=("", "", "a"))
    (work,) = first.work.values()
    before = state(world)
    world.commons.finished(second.session, Finished(work.ticket, 0, 8))
    world.commons.finished(first.session, Finished(work.ticket + 99, 0, 8))
    assert state(world) == before
    first.finish(work, 0, 8, prepared)
    before = state(world)
    world.commons.finished(first.session, Finished(work.ticket, 0, 8))
    assert state(world) == before


@pytest.mark.parametrize("indices", [b"1234567", np.array([8]).tobytes(), np.array([-1]).tobytes()])
def test_indices_that_do_not_exist_are_an_error(indices: bytes) -> None:
    world = World()
    member = Member(world, np.arange(8), sampling="uniform")
    with pytest.raises(ProtocolError):
        world.commons.ask(member.session, indices)  # before an epoch began
    member.begin()
    with pytest.raises(ProtocolError):
        world.commons.ask(member.session, indices)
    assert not world.commons.tickets


# -- fills, budgets, explicit draws ---------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [True, False])
def test_a_fill_prepares_for_the_cache_and_returns_what_it_does_not_use(published: bool) -> None:
    world = World()
    member = Member(world, np.arange(100), batch=10)
    member.begin()
    work = member.idle()
    assert work is not None and work.grants
    assert world.commons.pool.used >= len(work.grants) * BYTES[Form.AUGMENTED]
    member.finish(work, 0, len(work.forms), prepared if published else lambda form, capacity: None)
    world.check_quiet()
    assert (world.commons.pool.used > 0) is published
    member.ask()
    (draw,) = member.work.values()
    assert np.count_nonzero(draw.forms == Form.AUGMENTED) == (8 if published else 0)


def test_jobs_that_draw_for_themselves_share_decoded_samples() -> None:
    world = World(span=1 << 28)
    first, second = (Member(world, np.arange(20), sampling="uniform", budget=1 << 27) for _ in range(2))
    first.begin()
    second.begin()
    first.ask(np.array([3, 5, 3, 9]))
    world.settle()
    second.ask(np.array([9, 4, 5]))
    (work,) = second.work.values()
    assert work.indices.tolist() == [9, 4, 5], "in the order that it asked for"
    assert work.forms.tolist() == [Form.DECODED, Form.NONE, Form.DECODED]
    world.settle()
    world.check_quiet()


def test_a_smaller_budget_holds_once_what_lies_beyond_is_read() -> None:
    world = World()
    small = Member(world, np.arange(40), batch=8, budget=200_000, keys=("", "", "a"))
    large = Member(world, np.arange(40), batch=8, budget=800_000, keys=("", "", "a"))
    small.begin()
    large.begin()
    large.ask()
    large.ask()
    world.settle()
    small.ask()
    held = {(extent.start, extent.stop) for work in small.work.values() for extent in work.reads.values()}
    assert any(stop > 200_000 for _, stop in held)
    world.commons.gone(large.session)
    world.commons.buried(large.session)
    large.gone = True
    assert world.commons.pool.space.limit <= 200_000
    (work,) = small.work.values()
    world.commons.finished(small.session, Finished(work.ticket, 0, 8))
    small.work.clear()
    assert world.commons.pool.used <= world.commons.pool.space.limit


# -- how much is shared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_eviction_works_with_every_sampling(eviction: str, sampling: str) -> None:
    world = World()
    for number in range(3):
        keys = ("e", "d", "a") if number < 2 else ("e", "d", "b")
        Member(world, np.arange(200), batch=16, sampling=sampling, eviction=eviction, budget=2_000_000, keys=keys)
    run(world, 2)
    world.check_quiet()
    assert world.hits[Form.AUGMENTED] + world.hits[Form.DECODED] > 100
    if eviction == "none":
        assert world.commons.pool.evictions == 0


def test_four_jobs_decode_each_sample_once_per_epoch() -> None:
    world = World()
    for _ in range(4):
        Member(world, np.arange(1000), batch=32, budget=1000 * BYTES[Form.DECODED] // 5)
    run(world, 3)
    world.check_quiet()
    assert world.decodes <= 1.05 * 3 * 1000


def test_two_jobs_that_overlap_by_half_decode_their_union() -> None:
    world = World()
    for start in (0, 500):
        Member(world, np.arange(start, start + 1000), batch=32, budget=1000 * BYTES[Form.DECODED] // 5)
    run(world, 3)
    world.check_quiet()
    assert world.decodes <= 1.05 * 3 * 1500
