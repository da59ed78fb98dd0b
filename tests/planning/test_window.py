"""How orders are fetched: how much at once, when reads are tried again, and when they are given up."""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.planning import window
from headrace.planning.window import ORDERS, WIDEST, Answer, Attempts, Claims, Patience, SharedTime

SECONDS = st.floats(0, 1e4)
LUCK = st.floats(0, 1)


# -- how many at once ------------------------------------------------------------------------------------------


@given(read=SECONDS, more=SECONDS, prepare=SECONDS)
def test_no_more_reads_than_the_widest_and_more_for_slower_storage(
    read: float, more: float, prepare: float
) -> None:
    wide = window.width(read, prepare)
    assert 1 <= wide <= WIDEST
    assert window.width(read + more, prepare) >= wide
    assert window.width(read, prepare + more) <= wide
    if read > prepare > 1e-6:
        assert wide > 1
    if 2 * read < prepare:
        assert wide == 1


CLAIMS = st.builds(
    Claims,
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 3),
    st.integers(0, 64),
    st.integers(1, WIDEST),
    st.integers(1, 32),
    st.floats(0, 10),
    st.booleans(),
)


@given(now=CLAIMS)
@example(now=Claims(orders=1, working=1))
@example(now=Claims(orders=1, reading=1))
def test_when_another_order_is_claimed(now: Claims) -> None:
    claims = window.may_claim(now)
    if now.orders == 0:
        assert claims, "a worker without an order always takes one"
        return
    if now.orders >= ORDERS or (now.handing and now.orders * now.each >= now.width):
        assert not claims, "what is fetched has to be prepared first"
    if not now.starved and (now.working > now.handing or now.reading >= now.width):
        assert not claims, "one at a time, where nobody waits for storage"
    if claims:
        assert window.may_claim(now._replace(reading=max(0, now.reading - 1)))
        assert window.may_claim(now._replace(orders=now.orders - 1))
        assert window.may_claim(now._replace(starved=now.starved + 1))
        assert window.may_claim(now._replace(crowded=False))


def test_an_order_that_does_not_come_holds_up_no_other() -> None:
    assert window.may_claim(Claims(orders=1, working=1, reading=5, width=1, starved=1.0))
    assert window.may_claim(Claims(orders=3)), "all their rows wait for storage to take them again"
    assert not window.may_claim(Claims(orders=ORDERS, starved=1e6))


def test_behind_requests_that_wait_for_their_turn_no_order_is_claimed() -> None:
    now = Claims(orders=1, reading=5, width=40)
    assert window.may_claim(now)
    behind = now._replace(crowded=True)
    assert not window.may_claim(behind), "another worker may be sooner at storage"
    assert not window.may_claim(behind._replace(starved=0.5))
    assert window.may_claim(behind._replace(starved=1.0)), "one that needs no storage may be there"
    assert window.may_claim(Claims(orders=0, crowded=True)), "others may be who waits"


def test_an_order_that_waits_for_room_leaves_its_place_at_storage_to_another() -> None:
    now = Claims(orders=3, working=1, handing=1, reading=20, width=40, each=10)
    assert window.may_claim(now)
    assert not window.may_claim(now._replace(orders=4)), "as many as storage takes at once are enough"
    assert not window.may_claim(now._replace(working=2)), "one is about to be handed on"
    assert not window.may_claim(Claims(orders=1, working=1, handing=1)), "storage is fast: one at a time"


# -- trying again ----------------------------------------------------------------------------------------------


@given(luck=st.lists(LUCK, min_size=2, max_size=70), total=st.floats(0.1, 1e4))
def test_pauses_grow_and_have_an_end(luck: list[float], total: float) -> None:
    rules = Patience(total)
    pauses = [rules.pause(number + 1, one) for number, one in enumerate(luck)]
    assert all(rules.first / 2 <= pause <= rules.longest for pause in pauses)
    for before, after in itertools.pairwise(pauses):
        assert after >= before or after >= rules.longest / 2
        assert after <= max(4 * before, rules.first)


@given(refusals=st.integers(1, 100), luck=LUCK, asked=st.floats(0, 1e5))
def test_no_pause_is_shorter_than_storage_asked_for(refusals: int, luck: float, asked: float) -> None:
    rules = Patience(300)
    pause = rules.pause(refusals, luck, asked)
    assert asked <= pause <= max(rules.longest, 1.1 * asked)


STORAGE = st.one_of(
    st.tuples(st.sampled_from(["gives", "refuses", "doubts", "fails"]), st.floats(0, 50), st.floats(0, 100)),
    st.tuples(st.just("hangs"), st.just(0.0), st.just(0.0)),
)
"""What storage does with an attempt, after how many seconds, and the pause that it asks for."""


@given(
    rows=st.lists(st.lists(STORAGE, max_size=6), min_size=1, max_size=8),
    together=st.booleans(),
    luck=st.randoms(use_true_random=False),
)
def test_every_row_is_tried_until_there_is_an_answer_or_no_time(rows: list, together: bool, luck) -> None:
    """Storage does what it is told for each row in turn; then it hangs, or goes on as it did last."""
    rules = Patience(300.0)
    attempts = Attempts(range(len(rows)), rules)
    events: list[tuple[float, int, int, str, float]] = []
    now, numbers = 0.0, itertools.count()
    tries = dict.fromkeys(range(len(rows)), 0)
    under_way = dict.fromkeys(range(len(rows)), 0)
    ended: dict[int, str] = {}

    def begin(some: list[int]) -> None:
        attempts.begun(some, now)
        for row in some:
            plan = rows[row] or [("hangs", 0.0, 0.0)]
            what, takes, asks = plan[min(tries[row], len(plan) - 1)]
            tries[row] += 1
            under_way[row] += 1
            assert under_way[row] <= 3, "attempts that hang at the same time"
            if what != "hangs":
                heapq.heappush(events, (now + takes, next(numbers), row, what, asks))

    if together:
        begin(list(range(len(rows))))
    given_up = None
    for _ in range(5000):
        for row in attempts.due(now):
            begin([row])
        given_up = attempts.given_up(now)
        if given_up is not None or not attempts.left:
            break
        upcoming = min(attempts.look_at(), events[0][0] if events else float("inf"))
        assert upcoming < float("inf"), "somebody would wait for ever"
        assert upcoming >= now
        now = upcoming
        while events and events[0][0] <= now and given_up is None:
            _, _, row, what, asks = heapq.heappop(events)
            under_way[row] -= 1
            if not attempts.waits_for(row):
                continue
            if what in ("gives", "fails"):
                attempts.answered(row)
                ended[row] = what
                continue
            doubts = what == "doubts"
            answer = attempts.refused(row, now, luck.random(), retry_after=asks, doubtful=doubts)
            if answer is Answer.BAD:
                assert doubts and tries[row] > 3
                ended[row] = "bad"
            elif answer is Answer.GIVE_UP:
                assert not doubts and now >= rules.total
                given_up = row, now
        if given_up is not None:
            break
    else:
        raise AssertionError("it does not end")
    assert all(tries.values())
    if given_up is None:
        assert set(ended) == set(range(len(rows)))
    else:
        row, _ = given_up
        assert row not in ended and now >= rules.total, "not before its time"
        assert now <= 2 * rules.total + 6 * (50 + rules.hangs(0)), "and not long after"
    for row, plan in enumerate(rows):
        if plan and plan[0][0] in ("gives", "fails") and row in ended:
            assert ended[row] == plan[0][0] or tries[row] > 1


def test_a_row_that_was_refused_is_tried_once_more_when_the_time_is_over() -> None:
    attempts = Attempts([7], Patience(10.0))
    attempts.begun([7], 0.0)
    assert attempts.refused(7, 1.0, 1.0, retry_after=3600.0) is Answer.AGAIN
    assert attempts.look_at() == 10.0 and attempts.due(9.9) == [] and attempts.due(10.0) == [7]
    attempts.begun([7], 10.0)
    assert attempts.given_up(10.0) is None
    assert attempts.refused(7, 10.5, 0.0) is Answer.GIVE_UP


def test_rows_that_are_read_together_are_not_given_up_together() -> None:
    """So many of them may take long. Those that hang are then tried alone, and each has its own time."""
    attempts = Attempts(range(3), Patience(10.0))
    attempts.begun([0, 1, 2], 0.0)
    assert attempts.given_up(1e6) is None
    assert attempts.due(1.0) == [0, 1, 2] and attempts.hanging(1)
    attempts.begun([1], 1.0)
    assert attempts.given_up(10.9) is None
    assert attempts.given_up(11.0) == (1, 10.0)


@pytest.mark.parametrize("usual", [0.0, 0.5])
def test_a_read_hangs_when_it_takes_far_longer_than_others(usual: float) -> None:
    attempts = Attempts([0], Patience(300.0))
    attempts.begun([0], 0.0, usual)
    assert attempts.due(30.0 + 10 * usual - 0.1) == []
    assert attempts.due(30.0 + 10 * usual) == [0]


# -- what it took ----------------------------------------------------------------------------------------------


@given(spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12))
def test_parts_of_the_time_are_the_time_in_which_anything_was_fetched(spans: list[tuple[int, int]]) -> None:
    shared = SharedTime()
    parts, begun = 0.0, {}
    changes = sorted(
        [(start, 1, at) for at, (start, _) in enumerate(spans)]
        + [(start + length, 2, at) for at, (start, length) in enumerate(spans)]
    )
    for now, kind, at in changes:
        if kind == 1:
            begun[at] = shared.begin(float(now))
        else:
            part = shared.end(begun[at], float(now))
            assert -1e-9 <= part <= spans[at][1] + 1e-9
            parts += part
    busy = {second for start, length in spans for second in range(start, start + length)}
    assert parts == pytest.approx(len(busy))


@given(refusals=st.integers(1, 100), luck=st.floats(0, 1), after=st.floats(0, 20))
def test_who_sees_to_the_pace_itself_is_not_made_to_wait_long(
    refusals: int, luck: float, after: float
) -> None:
    patience = Patience(300.0)
    paced, other = (patience.pause(refusals, luck, paced=paced) for paced in (True, False))
    assert paced == min(paced, other) and paced <= 1.0
    assert patience.pause(refusals, luck, after, paced=True) >= after, "unless storage asked for it"
