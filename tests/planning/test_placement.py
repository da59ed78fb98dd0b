"""Which CPUs workers get, on made-up machines and on any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.topology import MemoryNode
from headrace.planning import CpuSets, Ranks, cpu_sets
from tests.machines import EIGHT, EXPANDED, FOUR, MACHINES, OFFLINE, ONE, SUPERCHIP, TWO, UNEQUAL, Machine


def where(nodes: Sequence[MemoryNode], found: CpuSets) -> list[int]:
    """The memory node of each worker."""
    numbers = {cpu: node.number for node in nodes for cpu in node.cpus}
    assert all(len({numbers[cpu] for cpu in cpus}) == 1 for cpus in found)
    return [numbers[min(cpus)] for cpus in found]


def placed(machine: Machine, ranks: Ranks, workers: int, threads: int = 1) -> list[int]:
    found = cpu_sets(machine.memory_nodes, machine.usable, ranks, workers, threads)
    assert found is not None
    return where(machine.memory_nodes, found)


def loads(machine: Machine, gpus: Sequence[int | None], workers: int, *, own_only: bool = False) -> list[int]:
    """Workers at each memory node, of all ranks together."""
    total: Counter[int] = Counter()
    for rank in range(len(gpus)):
        known = tuple(gpu if other == rank or not own_only else None for other, gpu in enumerate(gpus))
        total.update(placed(machine, Ranks(len(gpus), rank, known), workers))
    return [total[number] for number in machine.nodes]


# -- where the scheduler knows better ------------------------------------------------------------------------


def test_one_memory_node() -> None:
    assert cpu_sets(ONE.memory_nodes, ONE.usable, Ranks(), 16) is None
    assert cpu_sets((), frozenset(range(4)), Ranks(), 4) is None


def test_a_rank_whose_cpus_are_at_one_memory_node() -> None:
    usable = frozenset(TWO.nodes[1][:8])
    assert cpu_sets(TWO.memory_nodes, usable, Ranks(2, 1), 8) is None


def test_a_rank_that_is_bound() -> None:
    usable = frozenset(range(24, 40))
    assert cpu_sets(TWO.memory_nodes, usable, Ranks(), 16, bound=True) is None
    assert cpu_sets(TWO.memory_nodes, usable, Ranks(), 16) is not None


def test_memory_without_cpus_makes_no_second_node() -> None:
    card = replace(EXPANDED, nodes={0: range(8), 2: ()}, distances=None)
    assert cpu_sets(card.memory_nodes, card.usable, Ranks(), 8) is None


def test_cpus_of_which_it_is_not_known_where_they_are() -> None:
    usable = TWO.usable | {500}
    assert cpu_sets(TWO.memory_nodes, usable, Ranks(), 8) is None
    twice = (*FOUR.memory_nodes, MemoryNode(9, frozenset({0, 1})))
    assert cpu_sets(twice, FOUR.usable, Ranks(), 8) is None
    # (as many, but not the same)
    nodes = (MemoryNode(0, frozenset({0, 1})), MemoryNode(1, frozenset({1, 2})))
    assert cpu_sets(nodes, frozenset({0, 1, 2, 3}), Ranks(), 8) is None


def test_fewer_workers_than_memory_nodes() -> None:
    """Many jobs with one worker each would all put it at the first one."""
    assert cpu_sets(FOUR.memory_nodes, FOUR.usable, Ranks(), 3) is None
    assert cpu_sets(FOUR.memory_nodes, FOUR.usable, Ranks(2, 1), 1) is None
    assert placed(FOUR, Ranks(gpus=(2,)), 1) == [2]


@pytest.mark.parametrize("ranks", [Ranks(0, 0), Ranks(2, 2), Ranks(2, -1)])
def test_ranks_that_cannot_be(ranks: Ranks) -> None:
    assert cpu_sets(TWO.memory_nodes, TWO.usable, ranks, 4) is None
    assert cpu_sets(TWO.memory_nodes, TWO.usable, Ranks(), 0) is None


# -- ranks without a GPU -------------------------------------------------------------------------------------


def test_ranks_divide_memory_nodes_in_their_order() -> None:
    assert [placed(TWO, Ranks(8, rank), 16) for rank in range(8)] == [[0] * 16] * 4 + [[1] * 16] * 4
    assert [placed(FOUR, Ranks(8, rank), 3) for rank in range(8)] == [[rank // 2] * 3 for rank in range(8)]


def test_a_worker_gets_all_cpus_of_its_memory_node() -> None:
    found = cpu_sets(TWO.memory_nodes, TWO.usable, Ranks(2, 1), 8)
    assert found == (frozenset(TWO.nodes[1]),) * 8


def test_a_rank_alone_is_everywhere() -> None:
    assert placed(TWO, Ranks(), 6) == [0, 1] * 3
    assert placed(FOUR, Ranks(), 8) == [0, 1, 2, 3] * 2


def test_a_rank_that_does_not_fit_is_divided() -> None:
    assert [placed(TWO, Ranks(3, rank), 4) for rank in range(3)] == [[0] * 4, [0, 1, 0, 1], [1] * 4]


def test_memory_nodes_of_unequal_size_get_workers_by_their_cpus() -> None:
    counts = Counter(placed(UNEQUAL, Ranks(), 41))
    assert [counts[number] for number in UNEQUAL.nodes] == [12, 4, 8, 1, 12, 2, 1, 1]


def test_a_container_that_has_half_of_a_memory_node() -> None:
    usable = frozenset(FOUR.nodes[0]) | frozenset(FOUR.nodes[1][:8])
    found = cpu_sets(FOUR.memory_nodes, usable, Ranks(), 24)
    assert found is not None
    assert Counter(found) == {frozenset(range(16)): 16, frozenset(range(16, 24)): 8}


def test_cpus_that_are_switched_off_are_not_given() -> None:
    found = cpu_sets(OFFLINE.memory_nodes, OFFLINE.usable, Ranks(), 10)
    assert found is not None
    assert Counter(found) == {frozenset({0, 2, 3, 4, 6, 7}): 6, frozenset({8, 9, 10, 11}): 4}


# -- ranks with a GPU ----------------------------------------------------------------------------------------


def test_workers_are_at_the_gpu_of_their_rank() -> None:
    gpus = (1, 1, 0, 0, 1, 1, 0, 0)
    assert [set(placed(TWO, Ranks(8, rank, gpus), 16)) for rank in range(8)] == [{gpu} for gpu in gpus]
    # and more of them, where it is as full everywhere
    assert [set(placed(TWO, Ranks(8, rank, gpus), 40)) for rank in range(8)] == [{gpu} for gpu in gpus]


def test_a_rank_alone_begins_at_its_gpu() -> None:
    assert placed(TWO, Ranks(gpus=(1,)), 64) == [1] * 64
    assert placed(TWO, Ranks(gpus=(1,)), 128) == [1] * 64 + [0] * 64
    assert placed(TWO, Ranks(gpus=(1,)), 32, threads=4) == [1] * 16 + [0] * 16
    assert Counter(placed(TWO, Ranks(gpus=(1,)), 256)) == {0: 128, 1: 128}


def test_all_gpus_at_one_memory_node_do_not_overload_it() -> None:
    assert loads(TWO, [0] * 8, 16) == [64, 64]
    assert loads(TWO, [0] * 8, 8) == [64, 0]
    assert loads(TWO, [0] * 8, 32) == [128, 128]


def test_what_does_not_fit_goes_to_the_nearest() -> None:
    gpus = (3, 3, 1, 1, 7, 7, 5, 5)
    assert placed(EIGHT, Ranks(8, 0, gpus), 32) == [3] * 16 + [0] * 16
    assert placed(EIGHT, Ranks(8, 7, gpus), 32) == [5] * 16 + [6] * 16
    assert loads(EIGHT, gpus, 32) == [32] * 8
    alone = placed(EIGHT, Ranks(gpus=(5,)), 160)
    assert alone == [node for node in (5, 4, 6, 7, 0) for _ in range(32)]


@pytest.mark.parametrize("gpus", [range(8), [3, 3, 1, 1, 7, 7, 5, 5], [0] * 8, [0] * 4 + [4] * 4])
def test_ranks_that_do_not_know_of_each_other_overload_nothing(gpus: Sequence[int]) -> None:
    assert loads(EIGHT, gpus, 32, own_only=True) == [32] * 8
    assert max(loads(EIGHT, gpus, 16, own_only=True)) <= 32
    assert placed(EIGHT, Ranks(8, 0, (gpus[0],)), 4) == [gpus[0]] * 4


def test_the_memory_node_of_a_gpu_that_has_no_cpus() -> None:
    assert placed(SUPERCHIP, Ranks(2, 0, (2, 3)), 72) == [0] * 72
    assert placed(SUPERCHIP, Ranks(2, 1, (2, 3)), 72) == [1] * 72
    assert placed(EXPANDED, Ranks(gpus=(2,)), 8) == [1] * 8
    # whose CPUs are somebody else's
    usable = frozenset(EIGHT.usable) - frozenset(EIGHT.nodes[5])
    found = cpu_sets(EIGHT.memory_nodes, usable, Ranks(gpus=(5,)), 8)
    assert found is not None and set(where(EIGHT.memory_nodes, found)) == {4}


def test_a_gpu_of_which_nothing_is_known() -> None:
    assert placed(TWO, Ranks(2, 1, (7, 7)), 8) == [1] * 8
    assert placed(TWO, Ranks(2, 1, (None, None)), 8) == [1] * 8


# -- any machine ---------------------------------------------------------------------------------------------


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[MemoryNode, ...], frozenset[int]]:
    """Memory nodes with some CPUs, and those of them that may be used."""
    owners = draw(st.lists(st.integers(0, 5), min_size=1, max_size=40))
    numbers = sorted({*owners, *draw(st.sets(st.integers(0, 9), max_size=3))})
    far = draw(st.lists(st.integers(10, 99), min_size=len(numbers), max_size=len(numbers)))
    told = draw(st.booleans())
    nodes = tuple(
        MemoryNode(
            number,
            frozenset(cpu for cpu, owner in enumerate(owners) if owner == number),
            tuple(zip(numbers, far, strict=True)) if told else (),
        )
        for number in numbers
    )
    return nodes, frozenset(draw(st.sets(st.sampled_from(range(len(owners))), min_size=1)))


@st.composite
def jobs(draw: st.DrawFn, *, gpus: bool) -> Ranks:
    count = draw(st.integers(1, 9))
    where = draw(st.lists(st.none() | st.integers(0, 10), max_size=count)) if gpus else []
    return Ranks(count, draw(st.integers(0, count - 1)), tuple(where))


@given(machines(), jobs(gpus=True), st.integers(1, 50), st.integers(1, 4))
def test_every_worker_has_cpus_of_one_memory_node_all_usable(
    machine: tuple[tuple[MemoryNode, ...], frozenset[int]], ranks: Ranks, workers: int, threads: int
) -> None:
    nodes, usable = machine
    found = cpu_sets(nodes, usable, ranks, workers, threads)
    assert found == cpu_sets(nodes, frozenset(sorted(usable)), ranks, workers, threads)
    possible = [node.cpus & usable for node in nodes if node.cpus & usable]
    if len(possible) < 2:
        assert found is None
    if found is not None:
        assert len(found) == workers
        assert all(cpus in possible for cpus in found)


@given(machines(), st.integers(1, 9), st.integers(1, 50))
def test_memory_nodes_are_loaded_alike(
    machine: tuple[tuple[MemoryNode, ...], frozenset[int]], count: int, workers: int
) -> None:
    nodes, usable = machine
    total: Counter[frozenset[int]] = Counter()
    for rank in range(count):
        found = cpu_sets(nodes, usable, Ranks(count, rank), workers)
        if found is None:
            return
        total.update(found)
    for node in nodes:
        own = node.cpus & usable
        assert abs(total[own] - count * workers * len(own) / len(usable)) < 1 or not own


@given(st.integers(2, 8), st.integers(1, 8), st.integers(1, 9), st.integers(1, 50))
def test_memory_nodes_of_equal_size_differ_by_one_worker_at_most(
    nodes: int, size: int, count: int, workers: int
) -> None:
    machine = Machine({number: range(size * number, size * (number + 1)) for number in range(nodes)})
    if count * workers >= nodes:
        found = loads(machine, [None] * count, workers)
        assert sum(found) == count * workers
        assert max(found) - min(found) <= 1


@given(st.integers(2, 5), st.integers(1, 4), st.booleans(), st.data())
def test_no_memory_node_gets_more_than_its_cpus_where_there_are_enough(
    nodes: int, count: int, own_only: bool, data: st.DataObject
) -> None:
    """Whatever ranks know of each other's GPUs, and wherever those are."""
    sizes = [
        12 * data.draw(st.integers(1, 3)) for _ in range(nodes)
    ]  # (that up to four divide without a rest)
    bounds = [sum(sizes[:number]) for number in range(nodes + 1)]
    machine = Machine({number: range(bounds[number], bounds[number + 1]) for number in range(nodes)})
    gpus = data.draw(st.lists(st.integers(0, nodes - 1), min_size=count, max_size=count))
    workers = data.draw(st.integers(1, sum(sizes) // count))
    found = loads(machine, gpus, workers, own_only=own_only)
    assert all(load <= size for load, size in zip(found, sizes, strict=True))


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_made_up_machines(name: str, count: int) -> None:
    machine = MACHINES[name]
    for rank in range(count):
        found = cpu_sets(machine.memory_nodes, machine.usable, Ranks(count, rank), 16)
        assert (found is None) == (name == "one")
        assert found is None or all(cpus and cpus <= machine.usable for cpus in found)
