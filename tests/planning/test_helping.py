"""When orders are given to other nodes, to whom, and how many bytes may be on their way back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.helping import Few, Help, Yielding, choose
from headrace.planning.pacing import Pace


@given(st.integers(0, 8), st.integers(1, 512), st.integers(1, 64), st.integers(0, 200))
def test_help_is_wanted_where_more_than_a_batch_waits(
    workers: int, rows: int, count: int, backlog: int
) -> None:
    help_ = Help(workers)
    help_.saw(rows, min(count, rows))
    orders = -(-rows // min(count, rows))
    assert help_.wanted(backlog) == (backlog > max(orders, workers))


def test_what_is_left_over_of_a_batch_says_nothing_of_the_others() -> None:
    help_ = Help(1)
    for count in (15, 15, 1):
        help_.saw(256, count)
    assert help_.rows == 15 and help_.wanted(19)


@given(st.integers(1, 8), st.floats(0.0, 10.0), st.floats(1e-3, 10.0))
def test_a_worker_has_what_keeps_it_busy_and_one_to_go_on_with(
    threads: int, fetching: float, preparing: float
) -> None:
    few = Few()
    assert not few.enough(threads, threads) and few.enough(threads + 1, threads)
    for _ in range(50):
        few.saw(fetching, preparing, fetching + preparing)
    assert not few.enough(threads, threads), "each of them may have one, and fetch the next"
    assert few.enough(2 * threads + 1, threads), "others have the rest"
    # While one is prepared, the next one comes, if that takes no longer.
    assert few.enough(2 * threads, threads) == (fetching < preparing * (1 - 1e-9) or fetching == 0.0)


@given(st.floats(0.01, 10.0), st.floats(0.1, 1000.0))
def test_a_worker_takes_what_others_would_not_have_done_sooner(seconds: float, taken: float) -> None:
    few = Few()
    assert few.skip(taken) == 0, "nothing is known"
    few.saw(0.1 * seconds, 0.9 * seconds, seconds)
    assert few.skip(taken) >= int(taken * seconds) and few.skip(0.0) == 0
    before = few.skip(taken)
    few.saw(0.0, 0.01 * seconds, 0.01 * seconds)
    assert few.skip(taken) >= 0.9 * before - 1, "one that was soon done does not count for much"


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10)), max_size=8))
def test_an_order_goes_to_whoever_is_likely_to_be_done_first(helpers: list[tuple[int, float]]) -> None:
    place = choose(helpers)
    free = [one for one in helpers if one[0] < 4]
    if place is None:
        assert not free
        return
    orders, usual = helpers[place]
    assert (orders + 1) * usual == min((have + 1) * each for have, each in free)


def drive(
    rate_with: float, rate_without: float, seconds: float, *, wanted: bool = True
) -> tuple[float, Yielding]:
    """Let it decide for so long; the share of time for which workers left orders alone."""
    made, now, claimed, left = Yielding(), 100.0, 0.0, 0.0
    while now < 100.0 + seconds:
        yields = made.look(now, int(claimed), wanted=wanted, helped=True)
        claimed += 0.01 * (rate_without if yields else rate_with)
        left += 0.01 * yields
        now += 0.01
    return left / seconds, made


def test_workers_leave_orders_alone_where_that_gives_more() -> None:
    share, made = drive(500.0, 1200.0, 120.0)
    assert share > 0.85 and made.yields


def test_workers_go_on_where_they_add_to_it() -> None:
    share, made = drive(1500.0, 1200.0, 120.0)
    assert share < 0.15 and not made.yields


def test_a_tie_changes_nothing_for_long() -> None:
    made, now, claimed, changes, before = Yielding(), 0.0, 0.0, 0, False
    while now < 300.0:
        yields = made.look(now, int(claimed), wanted=True, helped=True)
        changes += yields != before
        before = yields
        claimed += 10.0
        now += 0.01
    assert changes < 40


def test_nobody_yields_where_no_help_is_wanted_or_none_is_there() -> None:
    assert drive(500.0, 1200.0, 30.0, wanted=False)[0] == 0.0
    made, now = Yielding(), 0.0
    while now < 10.0 and not made.look(now, int(now * 100), wanted=True, helped=True):
        now += 0.01
    assert made.yields
    assert not made.look(now, 0, wanted=True, helped=False)


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 24), st.floats(0, 2), st.integers(0, 1 << 28), st.integers(1, 64)),
        max_size=60,
    )
)
def test_a_limit_stays_between_its_ends_and_one_transfer_may_always_go(
    arrived: list[tuple[int, float, int, int]],
) -> None:
    pace = Pace(1 << 20, 1 << 26)
    for nbytes, delay, in_flight, transfers in arrived:
        pace.arrived(nbytes, delay, in_flight, transfers)
        assert 1 << 20 <= pace.limit <= 1 << 26
        assert pace.may_go(1 << 40, 0)
        assert pace.may_go(1, pace.limit - 1) and not pace.may_go(2, pace.limit - 1)


def simulate(pace: Pace | None, senders: int, capacity: float = 1e8) -> float:
    """A receiver behind a link, and senders of a megabyte each time; the longest queue before it, in seconds."""
    size, now, free, worst = 1 << 20, 0.0, 0.0, 0.0
    flights: list[tuple[float, float, int, int]] = []
    in_flight = 0
    for _ in range(4000):
        while len(flights) < senders and (pace is None or pace.may_go(size, in_flight)):
            in_flight += size
            begin = max(free, now)
            free = begin + size / capacity
            worst = max(worst, free - now) if now > 1.0 else worst
            flights.append((free, now, in_flight, len(flights) + 1))
        done, since, beside, transfers = flights.pop(0)
        now = max(now, done)
        in_flight -= size
        if pace is not None:
            pace.arrived(size, now - since, beside, transfers)
    return worst


def test_pacing_keeps_queues_short_where_many_send_at_once() -> None:
    paced, unpaced = simulate(Pace(1 << 20, 1 << 28), 64), simulate(None, 64)
    assert unpaced > 0.6
    assert paced < unpaced / 4
