"""The controller on a toy of a node, whose measurements follow from what it decides."""

import random
from dataclasses import replace

import pytest

from headrace.planning.threads import Decision, Node
from tests.planning.threads.plant import Loop, Plant, ToyRank, best_fixed, series, turns
from tests.planning.threads.test_controller import check

NOISE = [0.0, 0.1]


def run(loop: Loop, plant: Plant, count: int) -> list[Decision]:
    decisions = [decision for _, decision in loop.run(plant, count)]
    for decision in decisions:
        check(decision, plant.node, len(plant.ranks))
    return decisions


def good(plant: Plant, decision: Decision, groups: list[int]) -> None:
    """Nine tenths of what the best fixed division gives."""
    best = best_fixed(plant, tuple(groups))
    assert plant.throughput(decision) >= 0.9 * best


def calm(decisions: list[Decision], most: int) -> None:
    for name, values in series(decisions).items():
        assert turns(values) <= most, (name, values)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("cpus", [2, 16])
def test_a_bottleneck_that_moves(noise: float, cpus: int) -> None:
    """Storage slows down, then decoding gets heavier, then storage is fast again."""
    loop = Loop(noise=noise)
    plant = Plant(Node(cpus, 0, 256), (ToyRank(train_seconds=0.32 / cpus),))
    phases = [
        plant,
        plant.changed(latency=0.1),
        plant.changed(latency=0.1, prepare_cpu_seconds=0.02),
        plant.changed(latency=0.002, prepare_cpu_seconds=0.02),
    ]
    decisions = []
    for phase in phases:
        decisions += run(loop, phase, 10)
        good(phase, decisions[-1], [0])
        decisions += run(loop, phase, 10)
        good(phase, decisions[-1], [0])
    calm(decisions, 2 * len(phases))


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(
    ("cpus", "most_reads", "bandwidth"), [(16, 256, 1e9), (16, 64, 1e9), (4, 64, 1e9), (16, 256, 1500.0)]
)
def test_one_rank_of_eight_with_slow_storage(
    noise: float, cpus: int, most_reads: int, bandwidth: float
) -> None:
    ranks = tuple(ToyRank(latency=0.2 if rank == 7 else 0.02, batch=32) for rank in range(8))
    plant = Plant(Node(cpus, 0, most_reads), ranks, reads_per_second=bandwidth)
    decisions = run(Loop(noise=noise), plant, 80)
    good(plant, decisions[19], [0] * 7 + [1])
    good(plant, decisions[-1], [0] * 7 + [1])
    calm(decisions, 6)


@pytest.mark.parametrize("noise", NOISE)
def test_slow_storage_that_moves_to_another_rank(noise: float) -> None:
    loop, node = Loop(noise=noise), Node(16, 0, 96)
    for slow in (7, 2):
        ranks = tuple(ToyRank(latency=0.2 if rank == slow else 0.02, batch=32) for rank in range(8))
        decisions = run(loop, Plant(node, ranks), 10)
        good(Plant(node, ranks), decisions[-1], [int(rank == slow) for rank in range(8)])


@pytest.mark.parametrize("noise", NOISE)
def test_one_rank_of_eight_with_heavy_samples(noise: float) -> None:
    ranks = tuple(
        ToyRank(prepare_cpu_seconds=0.03 if rank == 7 else 0.005, train_seconds=0.05, batch=32)
        for rank in range(8)
    )
    plant = Plant(Node(16, 0, 256), ranks)
    decisions = run(Loop(noise=noise), plant, 60)
    good(plant, decisions[19], [0] * 7 + [1])
    good(plant, decisions[-1], [0] * 7 + [1])
    calm(decisions, 6)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("read_cpu_seconds", [0.0, 0.002, 0.02])
def test_fetching_that_takes_cpus(noise: float, read_cpu_seconds: float) -> None:
    plant = Plant(Node(16, 2, 128), (ToyRank(read_cpu_seconds=read_cpu_seconds, train_seconds=0.01),) * 2)
    decisions = run(Loop(noise=noise), plant, 60)
    good(plant, decisions[19], [0, 0])
    good(plant, decisions[-1], [0, 0])
    calm(decisions, 6)


def test_a_loop_that_is_slow_gets_no_more_reads_than_it_needs() -> None:
    plant = Plant(Node(16, 0, 256), (ToyRank(train_seconds=1.0),))
    last = run(Loop(), plant, 20)[-1]
    assert plant.throughput(last) == pytest.approx(64)
    assert last.budgets[0].reads <= 4


@pytest.mark.parametrize("seed", range(6))
def test_nodes_at_random(seed: int) -> None:
    luck = random.Random(seed)
    usual = ToyRank(
        latency=10 ** luck.uniform(-3, -0.7),
        read_cpu_seconds=10 ** luck.uniform(-4, -2.3),
        prepare_cpu_seconds=10 ** luck.uniform(-3, -1.5),
        train_seconds=10 ** luck.uniform(-2, -0.5),
        batch=32,
        cached=luck.choice([0.0, 0.5]),
    )
    odd = replace(usual, latency=usual.latency * luck.uniform(0.3, 8))
    ranks = luck.choice([2, 4])
    plant = Plant(Node(luck.choice([4, 8]), 0, luck.choice([32, 128])), (usual,) * (ranks - 1) + (odd,))
    decisions = run(Loop(noise=0.1, luck=luck), plant, 80)
    good(plant, decisions[19], [0] * (ranks - 1) + [1])
    good(plant, decisions[-1], [0] * (ranks - 1) + [1])
    calm(decisions, 8)
