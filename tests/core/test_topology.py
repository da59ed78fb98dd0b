"""What is read of made-up machines, and of those that say nothing, or nonsense."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import topology
from headrace.core.topology import Cpu, Device, Interface, MemoryNode, Topology, away
from tests.machines import (
    EXPANDED,
    MACHINES,
    NIC,
    OFFLINE,
    RAILS,
    SUPERCHIP,
    TWO,
    UNEQUAL,
    Machine,
    spelled,
    write,
)

NOWHERE = Device(None, frozenset())


@pytest.mark.parametrize("name", MACHINES)
def test_made_up_machines_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    read = topology.read_topology(machine.build(tmp_path))
    assert read.nodes == machine.memory_nodes
    assert [cpu.number for cpu in read.cpus] == sorted(machine.usable)
    hash(read)  # plain and frozen


def test_packages_cores_and_siblings(tmp_path: Path) -> None:
    cpus = topology.read_cpus(TWO.build(tmp_path))
    assert cpus[3] == Cpu(3, 0, 3, frozenset({3, 67}))
    assert cpus[127] == Cpu(127, 1, 63, frozenset({63, 127}))
    assert len({cpu.siblings for cpu in cpus}) == 64


def test_older_kernels_say_siblings_by_another_name(tmp_path: Path) -> None:
    root = TWO.build(tmp_path)
    own = tmp_path / "devices/system/cpu/cpu3/topology"
    (own / "core_cpus_list").rename(own / "thread_siblings_list")
    assert topology.read_cpus(root)[3].siblings == {3, 67}


def test_cpus_that_are_switched_off_are_nowhere(tmp_path: Path) -> None:
    root = OFFLINE.build(tmp_path)
    # (some kernels leave them in lists that others would clear)
    write(tmp_path / "devices/system/node/node0/cpulist", "0-7")
    write(tmp_path / "devices/system/cpu/cpu8/topology/core_cpus_list", "8,12")
    read = topology.read_topology(root)
    assert [sorted(node.cpus) for node in read.nodes] == [[0, 2, 3, 4, 6, 7], [8, 9, 10, 11]]
    assert {cpu.number: cpu.siblings for cpu in read.cpus}[8] == {8}


def test_memory_without_cpus(tmp_path: Path) -> None:
    card = topology.read_nodes(EXPANDED.build(tmp_path))[2]
    assert not card.cpus
    assert (card.distance(0), card.distance(1), card.distance(7)) == (24, 14, None)


def test_distances_that_do_not_match_are_not_known(tmp_path: Path) -> None:
    root = UNEQUAL.build(tmp_path)
    for number, text in enumerate(["10", "", "10 x 21 21 21 21 21 21", "10 -1 21 21 21 21 21 21"]):
        write(tmp_path / f"devices/system/node/node{number}/distance", text)
    nodes = topology.read_nodes(root)
    assert [bool(node.distances) for node in nodes] == [False] * 4 + [True] * 4
    assert nodes[0].distance(1) is None


def test_where_a_device_is(tmp_path: Path) -> None:
    root = TWO.build(tmp_path)
    second = Device(1, frozenset(TWO.nodes[1]))
    assert topology.read_device("0000:14:00.0", root) == second
    assert topology.read_device("00000000:14:00.0", root) == second
    assert topology.read_device("0000:1A:00.0".replace("1A", "14"), root) == second
    for address in ("", "0000:ff:00.0", "../../devices", "0000:14:00.0/..", "0000:14:00.0\0", "14:00.0"):
        assert topology.read_device(address, root) == NOWHERE
    write(tmp_path / "bus/pci/devices/0000:14:00.0/numa_node", "-1")
    write(tmp_path / "bus/pci/devices/0000:14:00.0/local_cpulist", "?")
    assert topology.read_device("0000:14:00.0", root) == NOWHERE


def test_devices_of_one_kind(tmp_path: Path) -> None:
    root = TWO.build(tmp_path)
    alike = topology.read_alike("0000:13:00.0", root)
    assert [device.node for device in alike] == [0, 0, 0, 0, 1, 1, 1, 1]  # without the switch
    assert topology.read_alike("0000:ff:00.0", root) == ()
    (tmp_path / "bus/pci/devices/0000:13:00.0/class").unlink()
    assert topology.read_alike("0000:13:00.0", root) == ()


def test_what_leads_to_a_device(tmp_path: Path) -> None:
    root = RAILS.build(tmp_path)
    gpu = topology.read_device("0000:25:00.0", root)
    assert gpu == Device(1, frozenset(RAILS.nodes[1]), ("pci0000:80", "0000:12:01.0", "0000:25:00.0"))


def test_network_interfaces(tmp_path: Path) -> None:
    root = RAILS.build(tmp_path)
    found = {one.name: one for one in topology.read_interfaces(root)}
    assert sorted(found) == ["rail0", "rail1", "rail2", "rail3", "slow"]  # and nothing virtual
    assert found["rail2"] == Interface("rail2", topology.read_device("0000:42:00.0", root), 200_000, True)
    assert found["slow"].speed == 1000 and found["slow"].device.node == 0
    own = tmp_path / "class/net/rail0"
    for text, speed in (("-1", 0), ("4294967295", 0), ("", 0), ("fast", 0), ("400000", 400_000)):
        write(own / "speed", text)
        assert topology.read_interfaces(root)[0].speed == speed
    (own / "speed").unlink()
    for state, up in (("down", False), ("unknown", True), ("dormant", False), ("lowerlayerdown", False)):
        write(own / "operstate", state)
        assert topology.read_interfaces(root)[0].up is up
    assert topology.read_interfaces(root)[0].speed == 0
    (own / "device").unlink()
    assert topology.read_interfaces(root)[0].name == "rail1"
    assert topology.read_interfaces(str(tmp_path / "none")) == ()


def test_an_interface_of_a_virtual_machine(tmp_path: Path) -> None:
    """Its device lies below a PCI device that has the memory node, and the bus below something else."""
    bridge = "platform/70000000.pci/pci0000:00"
    machine = Machine({0: [0, 1]}, devices={"0000:00:03.0": (0, NIC)}, paths={"0000:00:03.0": bridge})
    root = machine.build(tmp_path)
    folder = tmp_path / "devices" / bridge / "0000:00:03.0/virtio2/net/eth0"
    write(folder / "operstate", "up")
    (folder / "device").symlink_to("../../../virtio2")
    (tmp_path / "class/net").mkdir(parents=True)
    (tmp_path / "class/net/eth0").symlink_to(folder)
    device = Device(0, frozenset({0, 1}), ("pci0000:00", "0000:00:03.0"))
    assert topology.read_interfaces(root) == (Interface("eth0", device, 0, True),)


def test_how_far_devices_are_from_each_other(tmp_path: Path) -> None:
    root = RAILS.build(tmp_path)
    nodes = topology.read_nodes(root)
    gpu = topology.read_device("0000:20:00.0", root)
    nics = {one.name: away(gpu, one.device, nodes) for one in topology.read_interfaces(root)}
    order = sorted(nics, key=lambda name: nics[name] or (9, 9))
    assert order == ["rail0", "rail1", "slow", "rail2", "rail3"]  # switch, host bridge, memory node, far
    assert nics["rail2"] == nics["rail3"] == (2, 21)
    assert (away(gpu, Device(1, frozenset())), away(gpu, Device(None, frozenset()))) == ((3, 0), None)
    assert away(gpu, gpu) == (0, -3)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("0-1, 4-5\n", [0, 1, 4, 5]),
        ("3-1", []),
        ("-1", []),
        ("0-", []),
        ("1,x", []),
        ("0-99999999999999", []),
        ("65536", []),
        ("²", []),
    ],
)
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert topology.parse_cpus(text) == frozenset(cpus)


@given(st.sets(st.integers(0, 300)))
def test_a_list_that_was_written_is_read(cpus: set[int]) -> None:
    assert topology.parse_cpus(spelled(cpus)) == cpus


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert topology.read_topology(str(tmp_path)) == Topology()
    assert topology.read_topology(str(tmp_path / "none")) == Topology()
    assert topology.read_device("0000:14:00.0", str(tmp_path)) == NOWHERE
    assert not topology.is_bound(frozenset({0}), str(tmp_path), str(tmp_path))


def test_a_machine_without_lists_of_its_cpus(tmp_path: Path) -> None:
    root = TWO.build(tmp_path)
    shutil.rmtree(tmp_path / "devices/system/cpu")
    assert topology.read_cpus(root) == ()
    assert topology.read_nodes(root) == TWO.memory_nodes


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    Machine({0: [0], 1: [1], 2: []}).build(root)
    return root


FILES = ["cpu/online", "cpu/cpu0/topology/core_id", "cpu/cpu1/topology/core_cpus_list", "node/node0/cpulist"]
FILES += ["node/node1/distance", "cpu/isolated"]


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(FILES), st.none() | st.binary(max_size=12) | st.sampled_from([b"0-1", b"-1"])
        ),
        max_size=4,
    )
)
def test_whatever_files_say_nothing_is_raised(
    changes: Sequence[tuple[str, bytes | None]], changing: Path
) -> None:
    before = {path: (changing / "devices/system" / path).read_bytes() for path in FILES}
    for path, content in changes:
        file = changing / "devices/system" / path
        if content is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(content)
    read = topology.read_topology(str(changing))
    assert [node.number for node in read.nodes] == [0, 1, 2]
    assert all(cpu.number in cpu.siblings for cpu in read.cpus)
    topology.is_bound(frozenset({0}), str(changing), str(changing))
    for path, _ in changes:
        (changing / "devices/system" / path).write_bytes(before[path])


def test_directories_in_the_place_of_files(tmp_path: Path) -> None:
    for path in (
        "node/node0/cpulist",
        "node/nodeX",
        "cpu/online",
        "cpu/cpu0/topology/core_id",
        "cpu/cpufreq",
    ):
        (tmp_path / "devices/system" / path).mkdir(parents=True)
    read = topology.read_topology(str(tmp_path))
    assert read == Topology((MemoryNode(0, frozenset()),), (Cpu(0, -1, -1, frozenset({0})),))


@pytest.mark.parametrize(
    ("files", "usable", "bound"),
    [
        ({}, range(16), False),
        ({}, range(8), True),  # by taskset, on the machine itself
        ({"cpuset.cpus.effective": "0-11"}, range(12), False),  # a container with part of the machine
        ({"cpuset.cpus.effective": "0-11"}, range(6), True),
        ({"job/cpuset.cpus.effective": "0-3", "cpuset.cpus.effective": "0-15"}, range(4), False),
        ({"cpuset.cpus.effective": "0-3", "job/cpuset.cpus.effective": ""}, range(4), False),
        ({"cpuset/job/cpuset.effective_cpus": "0-3", "cpuset/job/cpuset.cpus": "0-15"}, range(4), False),
        ({"cpuset/job/cpuset.cpus": "0-7"}, range(4), True),
        ({"../../devices/system/cpu/isolated": "12-15"}, range(12), False),
        ({"cpuset.cpus.effective": "nonsense"}, range(16), False),
    ],
)
def test_who_was_given_less_than_the_container_has(
    files: dict[str, str], usable: range, bound: bool, tmp_path: Path
) -> None:
    root = EXPANDED.build(tmp_path / "sys")
    write(tmp_path / "proc/self/cgroup", "nonsense\n3:cpuset:/job\n0::/job")
    for path, text in files.items():
        write(Path(os.path.normpath(tmp_path / "sys/fs/cgroup" / path)), text)
    assert topology.is_bound(frozenset(usable), root, str(tmp_path / "proc")) is bound


def test_own_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert topology.own_cpus() == os.sched_getaffinity(0)

    def fails(_: int) -> None:
        raise OSError

    monkeypatch.setattr(os, "sched_getaffinity", fails)
    assert topology.own_cpus() == set(range(os.cpu_count() or 1))


def test_this_machine() -> None:
    for interface in topology.read_interfaces():
        assert interface.device.path and interface.speed >= 0
    read = topology.read_topology()
    assert len({cpu.number for cpu in read.cpus}) == len(read.cpus)
    for address in os.listdir("/sys/bus/pci/devices") if os.path.isdir("/sys/bus/pci/devices") else []:
        topology.read_device(address)


def test_memory_of_gpus_is_near_their_package(tmp_path: Path) -> None:
    root = SUPERCHIP.build(tmp_path)
    assert topology.read_device("0019:01:00.0", root) == Device(3, frozenset())
