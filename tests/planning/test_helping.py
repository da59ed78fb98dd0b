"""When orders are given to other nodes, to whom, and how many bytes may be on their way back."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.helping import (
    MOST_LINES,
    Division,
    Few,
    Help,
    Reach,
    Way,
    choose,
    in_order,
    to_connect,
)
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


CHEAP, DEAR = {"making": 1e-3, "receiving": 2e-4}, {"making": 2e-4, "receiving": 1.5e-4}
"""What rows of others take here, beside what making them does."""


def drive(
    rates: dict[Way, float], seconds: float, *, wanted: bool = True, **costs: float
) -> tuple[dict[Way, float], Division]:
    """Let it decide for so long; the share of time for which each way was taken."""
    made, now, claimed, spent = Division(), 100.0, 0.0, dict.fromkeys(Way, 0.0)
    while now < 100.0 + seconds:
        way = made.look(now, int(claimed), wanted=wanted, helped=True, **costs)
        claimed += 0.01 * rates[way]
        spent[way] += 0.01 / seconds
        now += 0.01
    return spent, made


def rates(both: float, others: float, own: float) -> dict[Way, float]:
    return {Way.BOTH: both, Way.OTHERS: others, Way.OWN: own}


def test_workers_leave_orders_alone_where_that_gives_more() -> None:
    for costs in ({}, CHEAP):
        spent, made = drive(rates(500.0, 1200.0, 1.0), 120.0, **costs)
        assert spent[Way.OTHERS] > 0.85 and made.way is Way.OTHERS and not spent[Way.OWN]


def test_workers_go_on_where_they_add_to_it() -> None:
    for costs in ({}, CHEAP, DEAR):
        spent, _ = drive(rates(1500.0, 1200.0, 1200.0), 120.0, **costs)
        assert spent[Way.BOTH] > 0.85


def test_nothing_is_given_away_where_own_workers_do_more_without() -> None:
    spent, made = drive(rates(12_000.0, 1.0, 27_000.0), 300.0, **DEAR)
    assert spent[Way.OWN] > 0.9 and made.way is Way.OWN and not spent[Way.OTHERS]
    spent, _ = drive(rates(12_000.0, 1.0, 12_000.0), 300.0, **DEAR)
    assert spent[Way.OWN] > 0.9, "what others do is not for nothing"


def test_own_workers_that_keep_up_are_not_disturbed_by_trying() -> None:
    """While they make all, help is not wanted; and that is no reason to give some away again."""
    made, now, claimed, given, ways = Division(), 0.0, 0.0, 0.0, set()
    while now < 300.0:
        way = made.look(now, int(claimed), wanted=made.way is not Way.OWN, helped=True, **DEAR)
        claimed += {Way.BOTH: 90.0, Way.OWN: 100.0, Way.OTHERS: 0.0}[way]
        given += 0.01 * (way is not Way.OWN)
        ways.add(way)
        now += 0.01
    assert given < 5.0 and ways == {Way.BOTH, Way.OWN}


def test_what_becomes_cheap_to_receive_is_given_away_again() -> None:
    _, made = drive(rates(12_000.0, 1.0, 27_000.0), 60.0, **DEAR)
    assert made.way is Way.OWN
    assert made.look(200.0, 0, wanted=True, helped=True, **CHEAP) is Way.BOTH


def test_a_tie_changes_nothing_for_long() -> None:
    made, now, claimed, changes, before = Division(), 0.0, 0.0, 0, Way.BOTH
    while now < 300.0:
        way = made.look(now, int(claimed), wanted=True, helped=True)
        changes += way is not before
        before = way
        claimed += 10.0
        now += 0.01
    assert changes < 40


def test_nobody_yields_where_no_help_is_wanted_or_none_is_there() -> None:
    for costs in ({}, CHEAP, DEAR):
        assert drive(rates(500.0, 1200.0, 1200.0), 30.0, wanted=False, **costs)[0][Way.BOTH] == pytest.approx(
            1
        )
        made, now = Division(), 0.0
        while now < 10.0 and made.look(now, int(now * 100), wanted=True, helped=True, **costs) is Way.BOTH:
            now += 0.01
        assert made.way is (Way.OWN if costs is DEAR else Way.OTHERS)
        assert made.look(now, 0, wanted=True, helped=False, **costs) is Way.BOTH


@given(
    st.lists(
        st.tuples(
            st.floats(0, 2),
            st.integers(0, 10**6),
            st.booleans(),
            st.booleans(),
            st.floats(0, 1),
            st.floats(0, 1),
        ),
        max_size=80,
    )
)
def test_whoever_is_left_with_all_orders_can_make_them(
    looks: list[tuple[float, int, bool, bool, float, float]],
) -> None:
    made, now, claimed = Division(), 0.0, 0
    for seconds, rows, wanted, helped, making, receiving in looks:
        now, claimed = now + seconds, claimed + rows
        before = made.way
        way = made.look(now, claimed, wanted=wanted, helped=helped, making=making, receiving=receiving)
        assert way is not Way.OTHERS or helped
        assert way is not Way.OWN or before is Way.OWN or 4 * receiving > making > 0


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


def simulate(
    pace: Pace | None,
    senders: int,
    *,
    preparing: float = 0.0,
    most: int = 1,
    capacity: float = 1e8,
    seconds: float = 60.0,
) -> tuple[float, float]:
    """A receiver behind a link, and senders who prepare a megabyte for so long each, one after the other, and are
    asked for so many at a time at most; the longest queue before the receiver, in seconds, and its bytes a second."""
    random = Random(1)
    size, now, free, worst, came = 1 << 20, 0.0, 0.0, 0.0, 0
    ready, asked = [0.0] * senders, [0] * senders
    flights: list[tuple[float, float, int, int, int]] = []
    in_flight = 0
    while now < seconds:
        while min(asked) < most and (pace is None or pace.may_go(size, in_flight)):
            who = asked.index(min(asked))
            asked[who] += 1
            in_flight += size
            ready[who] = max(ready[who], now) + preparing * random.uniform(0.5, 1.5)
            heappush(flights, (ready[who], now, who, in_flight, len(flights) + 1))
        sent, since, who, beside, transfers = heappop(flights)
        now = free = max(free, sent) + size / capacity
        worst = max(worst, free - sent) if sent > 5.0 else worst
        asked[who] -= 1
        in_flight -= size
        came += size
        if pace is not None:
            pace.arrived(size, free - sent, beside, transfers, sent - since)
    return worst, came / now


def test_pacing_keeps_queues_short_where_many_send_at_once() -> None:
    (paced, rate), (unpaced, best) = simulate(Pace(1 << 20, 1 << 28), 64), simulate(None, 64)
    assert unpaced > 0.6
    assert paced < unpaced / 4 and rate > 0.98 * best


def test_queues_do_not_creep_up_where_the_least_limit_fills_one() -> None:
    """What a transfer takes at best is not seen there."""
    paced, rate = simulate(Pace(4 << 20, 1 << 28), 64)
    assert paced < 3 * (4 << 20) / 1e8 and rate > 0.98e8


@pytest.mark.parametrize("senders", [2, 8, 16])
def test_who_prepares_for_long_is_kept_busy_and_queues_stay_short(senders: int) -> None:
    """Half of what the link carries, so that the processors of senders are what is short."""
    preparing = 2 * senders * (1 << 20) / 1e8
    paced, rate = simulate(Pace(4 << 20, 1 << 28), senders, preparing=preparing, most=4)
    _, best = simulate(None, senders, preparing=preparing, most=4)
    assert rate > 0.98 * best
    assert paced < 4 * (4 << 20) / 1e8


@pytest.mark.parametrize("senders", [16, 24])
def test_queues_stay_short_where_the_link_is_short_whatever_is_prepared(senders: int) -> None:
    preparing = 0.2 * senders * (1 << 20) / 1e8
    paced, rate = simulate(Pace(4 << 20, 1 << 28), senders, preparing=preparing, most=4)
    unpaced, best = simulate(None, senders, preparing=preparing, most=4)
    assert paced < unpaced / 4 and rate > 0.9 * best


@pytest.mark.parametrize(("senders", "part"), [(16, 0.9), (64, 0.65), (128, 0.65)])
@pytest.mark.parametrize("capacity", [1e8, 1.2e9])
def test_links_are_used_where_many_prepare_for_long(senders: int, part: float, capacity: float) -> None:
    """Twice as many as the link can carry: most are at work, and few of them are done at a time."""
    preparing = 0.5 * senders * (1 << 20) / capacity
    paced, rate = simulate(
        Pace(4 << 20, 1 << 28), senders, preparing=preparing, most=4, capacity=capacity, seconds=15.0
    )
    assert rate > part * capacity and paced < 0.3


def test_what_is_found_anew_now_and_then_costs_little_where_nothing_waits() -> None:
    _, best = simulate(None, 256, preparing=0.1, most=4, capacity=1e10, seconds=10.0)
    _, rate = simulate(Pace(4 << 20, 1 << 28), 256, preparing=0.1, most=4, capacity=1e10, seconds=10.0)
    assert rate > 0.88 * best


def latency(pace: Pace, before: float, after: float, noise: float) -> tuple[float, float]:
    """64 who each ask for 64 KiB, again and again, over a link of 1.2 GB/s whose latency changes after ten seconds;
    bytes a second in the ten seconds before that, and in the last twenty of another minute."""
    random, size, capacity = Random(1), 64 << 10, 1.2e9
    now = free = 0.0
    came, in_flight, begun = [0, 0], 0, 0
    flights: list[tuple[float, int, float, int, int]] = []
    while now < 70.0:
        while len(flights) < 64 and pace.may_go(size, in_flight):
            in_flight, begun = in_flight + size, begun + 1
            base = (before if now < 10.0 else after) * random.lognormvariate(0, noise)
            heappush(flights, (now + base, begun, now, in_flight, len(flights) + 1))
        ready, _, since, beside, transfers = heappop(flights)
        free = max(free, ready) + size / capacity
        now = max(now, free)
        in_flight -= size
        pace.arrived(size, free - since, beside, transfers)
        if now < 10.0 or now > 50.0:
            came[now > 10.0] += size
    return came[0] / 10, came[1] / 20


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_a_link_that_has_become_slower_is_used_as_before(noise: float) -> None:
    """What transfers took at best before says nothing any more, and is forgotten; that they take longer now and then
    is no queue."""
    pace = Pace(128 << 10, 64 << 20, 1 << 20)
    before, after = latency(pace, 0.001, 0.010, noise)
    assert before > 0.85 * 1.2e9
    assert after > 0.6 * 64 * (64 << 10) / 0.010


def test_a_transfer_that_took_no_time_at_all_says_nothing() -> None:
    """Seconds of two machines are compared; a helper may say anything."""
    one, other = Pace(1 << 20, 1 << 26), Pace(1 << 20, 1 << 26)
    for number in range(2000):
        for pace in (one, other):
            pace.arrived(1 << 20, 0.1, 1 << 21, 2)
        if number % 3 == 0:
            other.arrived(1 << 20, (0.0, -1.0, float("nan"))[number % 9 // 3], 1 << 21, 2, float("inf"))
    assert one.limit == other.limit and one.share == other.share


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 24), st.floats(0, 2), st.floats(0, 1000)), min_size=1, max_size=60
    ),
    st.integers(0, 1 << 28),
    st.integers(1, 1 << 24),
)
def test_what_senders_prepare_is_not_on_its_way_but_it_is_not_forgotten(
    arrived: list[tuple[int, float, float]], in_flight: int, nbytes: int
) -> None:
    pace, same = Pace(1 << 20, 1 << 26), Pace(1 << 20, 1 << 26)
    for size, delay, held in arrived:
        pace.arrived(size, delay, 0, 1, held)
        same.arrived(size, delay, 0, 1)
        assert 1 / 16 <= pace.share <= 1.0 and same.share == 1.0
    assert not pace.may_go(nbytes, 16 * pace.limit), "all of it may come at once"


def test_the_share_on_its_way_is_that_of_the_time() -> None:
    pace = Pace(1 << 20, 1 << 26)
    for _ in range(200):
        pace.arrived(1 << 20, 0.1, 0, 1, 0.3)
    assert pace.share == pytest.approx(0.25)
    for _ in range(200):
        pace.arrived(1 << 10, 0.1, 0, 1, 0.0)  # (few bytes)
        pace.arrived(1 << 20, 0.1, 0, 1, 0.3)
    assert pace.share == pytest.approx(0.25, abs=0.01), "by bytes, not by transfers"
    for _ in range(200):
        pace.arrived(1 << 20, 0.1, 0, 1, 0.1)
    assert pace.share == pytest.approx(0.5, abs=1e-3)


@given(
    st.lists(
        st.tuples(st.floats(0, 40), st.booleans(), st.booleans(), st.integers(0, 600), st.integers(0, 600))
    )
)
def test_a_rank_is_connected_to_no_more_helpers_than_it_may_be_and_more_only_while_help_is_wanted(
    looks: list[tuple[float, bool, bool, int, int]],
) -> None:
    reach, now = Reach(), 0.0
    for seconds, wanted, free, lines, coming in looks:
        now += seconds
        before = reach.many
        many = reach.look(now, wanted=wanted, free=free, lines=lines, coming=coming)
        assert many == reach.many and Reach.FIRST <= many <= MOST_LINES
        assert before // 2 <= many <= 2 * before, "one step at a time"
        if many > before:
            assert wanted and not free and lines >= before
        if many < before:
            assert not wanted


@given(st.integers(1, 7000))
def test_all_helpers_that_a_rank_may_have_are_reached_while_those_it_has_are_busy(helpers: int) -> None:
    reach, now, lines = Reach(), 0.0, 0
    for _ in range(100):
        lines = min(helpers, reach.look(now, wanted=True, free=False, lines=lines, coming=0))
        now += 1.0
    assert lines == min(helpers, MOST_LINES)
    assert reach.many <= 2 * max(lines, Reach.FIRST), "there are no more"
    # In vain, it goes back: not at once, since help is soon wanted again.
    assert reach.look(now + 10.0, wanted=False, free=True, lines=lines, coming=0) == reach.many
    for _ in range(20):
        now += 100.0
        reach.look(now, wanted=False, free=True, lines=lines, coming=0)
    assert reach.many == Reach.FIRST


def test_who_is_coming_is_waited_for_but_not_for_ever() -> None:
    def seconds(coming: int) -> int:
        reach = Reach()
        return next(
            now
            for now in range(100)
            if reach.look(now, wanted=True, free=False, lines=Reach.FIRST, coming=coming) > Reach.FIRST
        )

    assert 0 < seconds(0) < seconds(1)


def test_a_moment_in_which_all_are_busy_is_no_reason_for_more() -> None:
    reach = Reach()
    for look in range(1000):
        reach.look(0.9 * look, wanted=True, free=look % 2 == 0, lines=Reach.FIRST, coming=0)
    assert reach.many == Reach.FIRST


CLUSTERS = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 9), max_size=12)


def helpers_of(cluster: dict[str, int]) -> dict[str, list[str]]:
    return {node: [f"{node}:{one}" for one in range(count)] for node, count in cluster.items()}


@given(st.text(), CLUSTERS, st.data())
def test_who_comes_or_goes_changes_the_order_of_nobody_else(
    who: str, cluster: dict[str, int], data: st.DataObject
) -> None:
    nodes = helpers_of(cluster)
    order = in_order(who, nodes)
    assert sorted(order) == sorted(one for all_ in nodes.values() for one in all_)
    assert in_order(who, dict(reversed(nodes.items()))) == order
    if cluster:
        gone = data.draw(st.sampled_from(sorted(cluster)))
        left = in_order(who, {node: all_ for node, all_ in nodes.items() if node != gone})
        assert left == [one for one in order if one not in nodes[gone]]


@given(st.text(), st.integers(1, 40), st.integers(1, 12))
def test_those_of_one_node_come_far_from_each_other(who: str, nodes: int, each: int) -> None:
    order = in_order(who, helpers_of({f"n{number}": each for number in range(nodes)}))
    for begun in range(0, len(order), nodes):
        assert len({one.split(":")[0] for one in order[begun : begun + nodes]}) == nodes


@pytest.mark.parametrize("cluster", [[32] * 100, [1] * 40, [1] * 20 + [32] * 20, [1, 32, 32, 32]])
def test_ranks_spread_over_helpers(cluster: list[int]) -> None:
    nodes = helpers_of({f"node {number}": count for number, count in enumerate(cluster)})
    orders = [in_order(f"{rank % 50}/{1000 + rank}", nodes) for rank in range(200)]
    for many in (16, 64, 512):
        counted = Counter(one for order in orders for one in to_connect(order, many, {}, {}))
        mean = len(orders) * min(many, sum(cluster)) / sum(cluster)
        # (of numbers with this mean, and nothing in common)
        assert max(counted.values()) <= mean + 6 * mean**0.5 + 2


@given(st.integers(0, 30), st.integers(0, 40), st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_others_take_the_place_of_those_that_rest(
    count: int, many: int, there: set[int], rest: set[int]
) -> None:
    order = [str(number) for number in range(count)]
    lines, resting = [str(one) for one in there], {str(one) for one in rest}
    new = to_connect(order, many, lines, resting)
    assert not resting & {*new} and not {*lines} & {*new}
    could = [one for one in order if one not in lines and one not in resting]
    assert new == could[: max(0, many - len(lines))]
