"""Which network interface a rank uses, on made-up machines and on any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import topology
from headrace.core.topology import Device, MemoryNode, away
from headrace.planning.rails import Nic, Rail, rail_of, worth_using
from tests.machines import RAILS


def at(*path: str, node: int | None = None, cpus: Sequence[int] = ()) -> Device:
    return Device(node, frozenset(cpus), path)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Device], list[Nic], Sequence[MemoryNode]]:
    """GPUs, interfaces and memory nodes of a machine with four rails."""
    root = RAILS.build(tmp_path_factory.mktemp("machine"))
    gpus = [topology.read_device(f"0000:{0x20 + number:02x}:00.0", root) for number in range(8)]
    nics = [
        Nic(one.device, f"10.{number}.0.7/24", one.speed, one.up)
        for number, one in enumerate(topology.read_interfaces(root))
    ]
    return gpus, nics, topology.read_nodes(root)


def rails(gpus: Sequence[Device | None], nics: Sequence[Nic], nodes: Sequence[MemoryNode] = ()) -> list[str]:
    """The second number of each rank's address."""
    found = [rail_of(own, gpus, len(gpus), nics, nodes) for own in range(len(gpus))]
    return ["-" if one is None else one.address.split(".")[1] for one in found]


def test_each_rank_uses_the_interface_at_its_switch(
    machine: tuple[list[Device], list[Nic], Sequence[MemoryNode]],
) -> None:
    gpus, nics, nodes = machine
    assert rails(gpus, nics, nodes) == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert rail_of(5, gpus, 8, nics, nodes) == Rail("10.2.0.7/24", frozenset(RAILS.nodes[1]))
    # also where nobody knows of the others, or knows them in another order
    assert rail_of(5, [*[None] * 5, gpus[5]], 8, nics, nodes) == rail_of(5, gpus, 8, nics, nodes)
    assert rails(gpus[::-1], nics, nodes) == ["3", "3", "2", "2", "1", "1", "0", "0"]


def test_one_that_is_down_or_slow_is_not_used(
    machine: tuple[list[Device], list[Nic], Sequence[MemoryNode]],
) -> None:
    gpus, nics, nodes = machine
    for change in ({"up": False}, {"address": ""}, {"speed": 10_000}, {"speed": 0}):
        some = [replace(nics[0], **change), *nics[1:]]
        assert rails(gpus, some, nodes) == ["1", "1", "1", "1", "2", "2", "3", "3"]
    # (the one that is left is near nobody's GPU more than another's)
    assert rails(gpus, [replace(nic, up=False) for nic in nics[:4]] + nics[4:], nodes) == ["4"] * 8
    half = [replace(nics[0], speed=100_000), *nics[1:]]
    assert rails(gpus, half, nodes) == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_speeds_that_nobody_knows(machine: tuple[list[Device], list[Nic], Sequence[MemoryNode]]) -> None:
    gpus, nics, nodes = machine
    unknown = [replace(nic, speed=0) for nic in nics[:4]]
    assert rails(gpus, unknown, nodes) == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_ranks_that_are_equally_near_to_several_divide_them() -> None:
    gpus = [at("pci0", f"g{number}") for number in range(6)]
    nics = [Nic(at("pci0", f"n{number}"), f"10.{number}.0.1/24") for number in range(4)]
    assert rails(gpus, nics) == ["0", "1", "2", "3", "0", "1"]
    same = [gpus[0]] * 4  # several ranks on one GPU
    assert rails(same, nics) == ["0", "1", "2", "3"]
    assert [rail_of(own, [*[None] * own, gpus[own]], 6, nics) for own in range(6)] == [
        Rail(nics[own % 4].address, frozenset()) for own in range(6)
    ]


def test_who_has_no_choice_goes_first() -> None:
    gpus = [at("pci0", "g0"), at("pci0", "s", "g1")]
    nics = [Nic(at("pci0", "s", "n0"), "10.0.0.1/24"), Nic(at("pci0", "t", "n1"), "10.1.0.1/24")]
    assert rails(gpus, nics) == ["1", "0"]


def test_the_same_memory_node_then_the_nearest() -> None:
    nodes = [MemoryNode(0, frozenset({0}), ((0, 10), (1, 12), (2, 30))), MemoryNode(1, frozenset({1}))]
    nics = [Nic(at(node=node), f"10.{node}.0.1/24") for node in (1, 2)]
    assert rails([at(node=2), at(node=0)], nics, nodes) == ["2", "1"]
    assert rail_of(1, [None, at(node=0)], 2, nics, nodes) == Rail("10.1.0.1/24", frozenset({1}))
    assert rails([at(node=5)], nics, nodes) == ["1"]


def test_nothing_is_known() -> None:
    nic = Nic(at("pci0", "n"), "10.0.0.1/24")
    gpu = at("pci0", "g")
    for gpus, nics in (
        ([], [nic]), ([None], [nic]), ([gpu], []), ([gpu], [replace(nic, up=False)]), ([at()], [nic]),
        ([gpu], [replace(nic, device=at())]),
    ):  # fmt: skip
        assert rail_of(0, gpus, 1, nics) is None
    assert rail_of(-1, [gpu], 1, [nic]) is None and rail_of(1, [gpu], 1, [nic]) is None


# -- any machine ---------------------------------------------------------------------------------------------

devices = st.builds(
    Device,
    st.none() | st.integers(0, 2),
    st.frozensets(st.integers(0, 7)),
    st.lists(st.sampled_from("abc"), max_size=3).map(lambda path: ("root", *path) if path else ()),
)
interfaces = st.lists(
    st.tuples(devices, st.sampled_from([0, 1000, 100_000, 200_000]), st.booleans(), st.booleans()), max_size=6
).map(
    lambda found: [
        Nic(device, f"10.{number}.0.1/24" if told else "", speed, up)
        for number, (device, speed, up, told) in enumerate(found)
    ]
)
memory = st.sampled_from(
    [(), tuple(MemoryNode(one, frozenset({one}), ((0, 10), (1, 20), (2, 20))) for one in range(3))]
)


@given(st.lists(st.none() | devices, max_size=8), interfaces, memory)
def test_a_rail_is_up_fast_and_no_other_is_nearer(
    gpus: list[Device | None], nics: list[Nic], nodes: Sequence[MemoryNode]
) -> None:
    usable = {nic.address: nic for nic in worth_using(nics)}
    assert all(nic.up and nic.address for nic in usable.values())
    if usable:
        speeds = [nic.speed for nic in usable.values()]
        assert max(speeds) == max(nic.speed for nic in nics if nic.up and nic.address) <= 2 * min(speeds)
    for own, gpu in enumerate(gpus):
        found = rail_of(own, gpus, len(gpus), nics, nodes)
        far = [] if gpu is None else [away(gpu, nic.device, nodes) for nic in usable.values()]
        known = [one for one in far if one is not None]
        assert (found is None) == (not known)
        if found is not None and gpu is not None:
            assert away(gpu, usable[found.address].device, nodes) == min(known)


@given(st.lists(devices, min_size=1, max_size=8), interfaces, memory, st.data())
def test_who_asks_and_in_which_order_interfaces_are_listed_changes_nothing(
    gpus: list[Device], nics: list[Nic], nodes: Sequence[MemoryNode], data: st.DataObject
) -> None:
    assert rails(gpus, data.draw(st.permutations(nics)), nodes) == rails(gpus, nics, nodes)
    # each knows of the others' GPUs, and of its own alone which it is
    if len({gpu.path for gpu in gpus}) == len(gpus):
        assert Counter(rails(sorted(gpus, key=lambda gpu: gpu.path), nics, nodes)) == Counter(
            rails(gpus, nics, nodes)
        )


@given(st.integers(1, 12), st.integers(1, 6))
def test_equally_near_ones_are_divided_evenly(ranks: int, count: int) -> None:
    gpus = [at("pci0", f"g{number:02d}") for number in range(ranks)]
    nics = [Nic(at("pci0", f"n{number}"), f"10.{number}.0.1/24") for number in range(count)]
    loads = Counter(rails(gpus, nics))
    assert max(loads.values()) - min(loads.values() if len(loads) == count else [0]) <= 1
