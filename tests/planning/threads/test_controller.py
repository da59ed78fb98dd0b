"""The controller of a node's staff, on measurements that do not follow from what it decides."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.planning.threads import (
    Budget,
    Decision,
    Level,
    LoadingTime,
    Node,
    PerLevel,
    Point,
    PreparingModel,
    RankNeeds,
    StaffController,
)
from tests.planning.threads.plant import series, turns

NODES = st.builds(Node, cpus=st.integers(1, 128), kept=st.integers(0, 8), most_reads=st.integers(1, 600))
SHARES = st.floats(0, 1)
NEEDS = st.builds(
    RankNeeds,
    waiting=st.integers(0, 2000),
    sample_bytes=st.floats(100, 1e7),
    read_seconds=st.floats(1e-5, 2),
    read_cpu=SHARES,
    prepare_cpu=st.floats(1e-5, 0.5),
    batch=st.integers(1, 512),
    train_seconds=st.floats(0, 2),
    waited=st.floats(0, 2),
    rows=st.builds(PerLevel, SHARES, SHARES, SHARES, SHARES),
    job=st.integers(0, 2),
)
RANKS = st.lists(NEEDS, min_size=1, max_size=8)


def numbered(needs: list[RankNeeds]) -> dict[int, RankNeeds]:
    return dict(enumerate(needs))


def check(decision: Decision, node: Node, ranks: int) -> None:
    """What always holds."""
    cpus = max(1, node.cpus - node.kept)
    budgets = decision.budgets.values()
    assert len(budgets) == ranks
    assert 1 <= decision.prepare_limit <= cpus
    assert all(one.prepare >= 1 and one.reads >= 1 for one in budgets)
    assert sum(one.reads for one in budgets) <= max(node.most_reads, ranks)
    if ranks <= decision.prepare_limit:
        assert sum(one.prepare for one in budgets) <= decision.prepare_limit
    else:
        assert all(one.prepare == 1 for one in budgets)


@given(looks=st.lists(RANKS, min_size=1, max_size=12), nodes=st.lists(NODES, min_size=1, max_size=3))
def test_budgets_stay_within_the_node(looks: list[list[RankNeeds]], nodes: list[Node]) -> None:
    """Whatever is measured, with ranks that come and go, on a node whose size changes."""
    controller = StaffController()
    for at, needs in enumerate(looks):
        node = nodes[at * len(nodes) // len(looks)]
        check(controller.decide(numbered(needs), node), node, len(needs))


@given(needs=RANKS, node=NODES)
@settings(max_examples=60)
def test_constant_measurements_have_a_fixed_point(needs: list[RankNeeds], node: Node) -> None:
    controller = StaffController()
    decisions = [controller.decide(numbered(needs), node) for _ in range(80)]
    assert all(one == decisions[12] for one in decisions[12:])


@given(before=RANKS, after=RANKS, node=NODES)
@settings(max_examples=60)
def test_after_one_jump_it_settles_and_stays(
    before: list[RankNeeds], after: list[RankNeeds], node: Node
) -> None:
    count = min(len(before), len(after))
    controller = StaffController()
    for _ in range(15):
        controller.decide(numbered(before[:count]), node)
    decisions = [controller.decide(numbered(after[:count]), node) for _ in range(90)]
    assert all(one == decisions[19] for one in decisions[19:])
    for name, values in series(decisions).items():
        assert turns(values) <= 2, name


@given(needs=RANKS, node=NODES, seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_noise_does_not_make_it_swing(needs: list[RankNeeds], node: Node, seed: int) -> None:
    luck, controller = random.Random(seed), StaffController()

    def off(value: float) -> float:
        return value * luck.uniform(0.9, 1.1)

    decisions = []
    for _ in range(120):
        noisy = [
            replace(
                one,
                waiting=off(one.waiting),
                read_seconds=off(one.read_seconds),
                read_cpu=min(1.0, off(one.read_cpu)),
                prepare_cpu=off(one.prepare_cpu),
                train_seconds=off(one.train_seconds),
                waited=off(one.waited),
            )
            for one in needs
        ]
        decisions.append(controller.decide(numbered(noisy), node))
    for name, values in series(decisions).items():
        assert turns(values) <= 8, (name, values)
        changes = sum(one != other for one, other in itertools.pairwise(values[20:]))
        assert changes <= 15, (name, values)


@given(looks=st.lists(NEEDS, min_size=2, max_size=30), node=NODES)
def test_one_step_is_a_doubling_or_a_third_less(looks: list[RankNeeds], node: Node) -> None:
    """Of one rank: there can be no straggler. (And of a node that is not made smaller.)"""
    controller = StaffController()
    decisions = [controller.decide({0: one}, node) for one in looks]
    for before, after in itertools.pairwise(one.budgets[0].reads for one in decisions):
        assert after <= 2 * before
        assert after >= min(before - 1, int(before * 2 / 3))


def test_an_outlier_changes_nothing() -> None:
    usual = RankNeeds(100, 1e5, 0.02, 0.05, 0.005, 64, 0.1, 0.0)
    wild = replace(usual, read_seconds=5.0, prepare_cpu=1.0, train_seconds=9.0, waited=9.0, waiting=10_000)
    controller, node = StaffController(), Node(16, 2, 256)
    before = [controller.decide({0: usual, 1: usual}, node) for _ in range(10)][-1]
    assert controller.decide({0: wild, 1: usual}, node) == before
    assert controller.decide({0: usual, 1: usual}, node) == before


def test_numbers_that_are_none_are_left_out() -> None:
    usual = RankNeeds(100, 1e5, 0.02, 0.05, 0.005, 64, 0.1, 0.01)
    controller, node = StaffController(), Node(16, 2, 256)
    before = [controller.decide({0: usual}, node) for _ in range(5)][-1]
    for bad in (float("nan"), float("inf"), -1.0):
        broken = replace(
            usual, read_seconds=bad, prepare_cpu=bad, waiting=bad, train_seconds=bad, read_cpu=bad
        )
        assert controller.decide({0: broken}, node) == before


def test_it_starts_with_what_is_needed() -> None:
    """A read takes 20 ms, and 640 samples are needed per second: 12.8 reads at once, and half as many again."""
    fetching = RankNeeds(100, 1e5, 0.02, 0.0, 0.001, 64, 0.1, 0.0)
    assert StaffController().decide({0: fetching}, Node(16, 0, 256)).budgets[0].reads in (19, 20)
    cached = replace(fetching, rows=PerLevel(own=1.0))
    assert StaffController().decide({0: cached}, Node(16, 0, 256)).budgets[0].reads <= 2


def test_reads_that_burn_take_from_preparing() -> None:
    """Each sample takes 4 ms of a CPU to read and 4 ms to prepare, and the loop takes whatever it gets."""
    burning = RankNeeds(500, 1e5, 0.008, 0.5, 0.004, 64, 0.0, 0.3)
    cheap = replace(burning, read_cpu=0.0)
    controller, node = StaffController(), Node(16, 0, 256)
    assert controller.decide({0: cheap}, node).prepare_limit == 16
    limits = [controller.decide({0: burning}, node).prepare_limit for _ in range(12)]
    assert limits[-1] in (8, 9)
    assert all(0 <= before - after <= 2 for before, after in itertools.pairwise([16, *limits])), (
        "step by step"
    )
    back = [controller.decide({0: cheap}, node).prepare_limit for _ in range(12)]
    assert back[-1] == 16, "and back"


def test_the_peak_is_never_exceeded() -> None:
    profile = PreparingModel({1e5: [Point(n, 0.004 * max(1, n / 6), 10) for n in (1, 2, 4, 6, 8, 12, 16)]})
    controller = StaffController(profile)
    hungry = RankNeeds(500, 1e5, 0.001, 0.0, 0.004, 64, 0.0, 0.3)
    for _ in range(30):
        decision = controller.decide({0: hungry, 1: hungry}, Node(16, 0, 256))
        assert decision.prepare_limit <= 7


def test_a_straggler_gets_reads_from_the_others_at_once() -> None:
    usual = RankNeeds(60, 1e5, 0.02, 0.01, 0.001, 32, 0.1, 0.0)
    slow = replace(usual, read_seconds=0.2, waited=0.4)
    controller, node = StaffController(), Node(16, 0, 96)
    fair = controller.decide(dict.fromkeys(range(8), usual), node)
    assert len({one.reads for one in fair.budgets.values()}) <= 2
    for _ in range(3):
        after = controller.decide(dict.fromkeys(range(7), usual) | {7: slow}, node)
    assert after.budgets[7].reads >= 40 and min(one.reads for one in after.budgets.values()) >= 4


def test_ranks_of_a_job_do_not_hide_behind_the_slowest() -> None:
    """Their steps last as long as its own, and yet they need as much as it does when it has become faster."""
    slowest = RankNeeds(60, 1e5, 0.02, 0.0, 0.001, 32, 0.1, 0.9)
    others = replace(slowest, train_seconds=1.0, waited=0.0)
    in_step = StaffController().decide(dict.fromkeys(range(3), others) | {3: slowest}, Node(16, 0, 256))
    assert len({one.reads for one in in_step.budgets.values()}) <= 2
    apart = {rank: replace(others, job=rank) for rank in range(3)} | {3: replace(slowest, job=3)}
    alone = StaffController().decide(apart, Node(16, 0, 256))
    assert alone.budgets[0].reads < in_step.budgets[0].reads


def test_ranks_come_and_go() -> None:
    usual = RankNeeds(60, 1e5, 0.02, 0.01, 0.004, 64, 0.1, 0.0)
    controller, node = StaffController(), Node(8, 0, 64)
    alone = [controller.decide({5: usual}, node) for _ in range(4)][-1]
    both = [controller.decide({5: usual, 9: usual}, node) for _ in range(6)][-1]
    assert set(both.budgets) == {5, 9} and both.budgets[5].prepare < alone.budgets[5].prepare
    again = [controller.decide({9: usual}, node) for _ in range(8)][-1]
    assert again.budgets == {9: Budget(alone.budgets[5].prepare, again.budgets[9].reads)}
    assert controller.decide({}, node) == Decision({}, 8)


def test_storage_that_gives_no_more_is_not_asked_for_more() -> None:
    loading = LoadingTime()
    for _ in range(3):
        for reads in (4, 8, 16, 32, 64):
            loading.observe(Level.STORAGE, reads, 1e6 * min(reads, 16))
    hungry = RankNeeds(
        500, 1e5, 0.2, 0.0, 0.0001, 64, 0.0, 0.4
    )  # 32 reads at once, at twice their least time
    reads = StaffController(loading=loading).decide({0: hungry}, Node(16, 0, 512)).budgets[0].reads
    assert 16 <= reads <= 64


@pytest.mark.parametrize("ranks", [1, 16])
def test_more_reads_allowed_are_never_fewer_reads(ranks: int) -> None:
    needs = {rank: RankNeeds(50 + rank, 1e5, 0.05, 0.02, 0.004, 64, 0.1, 0.2) for rank in range(ranks)}
    sums = [
        sum(one.reads for one in StaffController().decide(needs, Node(16, 0, most)).budgets.values())
        for most in (16, 32, 64, 128, 1024)
    ]
    assert sums == sorted(sums)
