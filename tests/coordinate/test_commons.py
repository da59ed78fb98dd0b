"""What jobs over one commons can rely on, whatever happens in whatever order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.budgets import Budgets
from headrace.coordinate.events import Buried, Done, Gone, Neared, Ticked
from headrace.coordinate.protocol import Finished, Joined
from headrace.coordinate.upkeep import Upkeep
from headrace.core.addresses import Tier
from headrace.core.forms import Form
from headrace.eviction import EVICTIONS
from tests.coordinate.clock import run
from tests.coordinate.jobs import BYTES, Member, Publish, World, prepared

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
    st.sampled_from((*SAMPLINGS, "uniform")),
    st.sampled_from(KEYS),
    st.sampled_from((1, 4, 7, 64)),
    st.booleans(),
    st.booleans(),
)
OPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("ask", "ask", "ask", "finish", "finish", "finish")), st.integers(0, 99)),
        st.tuples(st.sampled_from(("some", "give up", "twice", "idle", "tick", "again")), st.integers(0, 99)),
        st.tuples(st.sampled_from(("leave", "bury", "next", "divide", "forget", "near")), st.integers(0, 99)),
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
        self.upkeep = Upkeep(self.world.state, datasets=0, shelves=0)
        self.terms = {"budget": budget, "eviction": eviction, "split": split}

    def join(self, terms: tuple[int, str, tuple[str, str, str], int, bool, bool]) -> None:
        """A job comes and begins."""
        if len(self.world.live()) >= 5:
            return
        dataset, sampling, keys, batch, drop_last, collates = terms
        member = Member(
            self.world,
            DATASETS[dataset],
            sampling=sampling,
            keys=keys,
            batch=batch,
            drop_last=drop_last,
            collates=collates,
            together=8,
            **self.terms,  # type: ignore[arg-type]
        )
        assert isinstance(member.answer, Joined)
        member.begin()

    def do(self, op: str, number: int) -> None:
        """One event."""
        world = self.world
        if op == "tick":
            world.now += number / 20
            world.tell(Ticked(1))
            world.deliver()
            return
        if op == "divide":  # as if workers had reported things for which that is the best
            world.state.shared_split.encoded = number / 99
            Budgets(world.state).set()
            return
        if op == "forget":
            self.upkeep.look()
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
        if op == "near":
            world.now += number / 200
            some = np.flatnonzero(np.random.default_rng(number).random(len(member.samples)) < 0.3)
            world.tell(Neared(member.dataset, some.tobytes(), number % 7 > 0))
            world.deliver()
            return
        if op == "ask" and member.waiting_asks < 4 and not member.over:
            member.go_on()
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
                member.world.tell(Done(member.member, Finished(work.ticket, first, count)))
                world.deliver()

    def end(self) -> None:
        """Everybody comes to the end of the epoch; then everybody leaves."""
        self.world.drain()
        for member in self.world.live():
            member.check_epoch()
            member.leave()
        for member in self.world.members:
            self.world.tell(Buried(member.member))
        self.world.check_quiet()
        assert not self.world.state.jobs and not self.world.state.ranks


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
    kinds += ["give up", "tick", "again", "bury", "forget", "near", "near"]
    for at in range(600):
        if at % 40 == 0:
            terms = (
                rng.randrange(2),
                rng.choice((*SAMPLINGS, *SAMPLINGS, "uniform")),
                KEYS[rng.choice((0, 0, 0, 1, 2, 3, 4))],
            )
            schedule.join((*terms, rng.choice((2, 4, 7)), rng.random() < 0.2, rng.random() < 0.2))
        if at % 90 == 89:
            schedule.do("leave", rng.randrange(99))
        schedule.do(rng.choice(kinds), rng.randrange(100))
    schedule.end()


@pytest.mark.parametrize("published", [True, False])
def test_a_fill_prepares_for_the_cache_and_returns_what_it_does_not_use(published: bool) -> None:
    world = World()
    member, _ = (Member(world, np.arange(100), batch=10) for _ in range(2))
    member.begin()
    work = member.idle()
    assert work is not None and work.grants
    assert world.state.pool.used >= len(work.grants) * BYTES[Form.AUGMENTED]
    member.finish(work, 0, len(work.forms), prepared if published else lambda form, capacity: None)
    world.check_quiet()
    assert (world.state.pool.used > 0) is published
    member.ask()
    (draw,) = member.work.values()
    assert np.count_nonzero(draw.forms == Form.AUGMENTED) == (8 if published else 0)


def test_a_job_alone_fills_what_lasts() -> None:
    world = World()
    member = Member(world, np.arange(100), batch=10)
    member.begin()
    work = member.idle()
    assert work is not None
    member.finish(work, 0, len(work.forms), prepared)
    forms = {shelf.form: len(shelf) for shelf in world.state.pool.shelves.values()}
    assert forms[Form.DECODED] == 8 and forms[Form.AUGMENTED] == 0


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
    keys = ("", "d", "")
    small = Member(world, np.arange(40), budget=1_200_000, keys=keys)
    large = Member(world, np.arange(40), budget=1 << 23, keys=keys)
    small.begin()
    large.begin()
    for _ in range(5):
        large.ask()
        world.settle()
    for _ in range(5):
        small.ask()
    pool, drawn = world.state.pool, list(small.work)
    assert pool.used > 1_200_000
    world.tell(Gone(large.member))
    world.tell(Buried(large.member))
    assert pool.budget <= 1_200_000 < pool.used, "it is being read"
    for ticket in drawn:
        world.tell(Done(small.member, Finished(ticket, 0, 8)))
    assert 0 < pool.used <= pool.budget
    large.gone = True
    small.work.clear()
    world.check_quiet()


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_eviction_works_with_every_sampling(eviction: str, sampling: str) -> None:
    world = World()
    for number in range(3):
        keys = ("e", "d", "a") if number < 2 else ("e", "d", "b")
        Member(
            world, np.arange(200), batch=16, sampling=sampling, eviction=eviction, budget=2_000_000, keys=keys
        )
    run(world, 2)
    world.check_quiet()
    assert world.hits[Form.AUGMENTED] + world.hits[Form.DECODED] > 100
    if eviction == "none":
        assert world.state.pool.evictions == 0


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


def test_four_jobs_augment_a_cached_sample_once_for_all_of_them() -> None:
    """All samples are decoded after a while. A job that is first into an epoch leaves alone those of which the
    others have yet to take what was augmented for the last one."""
    world = World()
    for _ in range(4):
        Member(world, np.arange(1000), batch=32, budget=1000 * (BYTES[Form.DECODED] + BYTES[Form.AUGMENTED]))
    run(world, 4)
    world.check_quiet()
    assert world.decodes == 1000
    assert world.hits[Form.DECODED] <= 1.5 * 3 * 1000


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
def test_samples_smaller_than_a_page_are_shared_in_slabs(
    eviction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows as of CIFAR: decoded ones and instances take turns in the same few pages."""
    for form, nbytes in ((Form.ENCODED, 900), (Form.DECODED, 3136), (Form.AUGMENTED, 3072)):
        monkeypatch.setitem(BYTES, form, nbytes)
    world = World()
    for number in range(3):
        keys = ("e", "d", "a") if number < 2 else ("e", "d", "b")
        Member(world, np.arange(600), batch=32, eviction=eviction, budget=900_000, keys=keys, body=3072)
    run(world, 3)
    world.check_quiet()
    assert world.hits[Form.AUGMENTED] + world.hits[Form.DECODED] > 1000
    assert world.state.pool.rooms[Tier.ARENA].space._slabs
