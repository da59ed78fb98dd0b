"""Made-up machines: trees such as the system shows of itself under ``/sys``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.core.topology import MemoryNode

GPU = ("0x030200", "0x10de")
NIC = ("0x020000", "0x15b3")
SWITCH = ("0x068000", "0x10de")


def spelled(cpus: Iterable[int]) -> str:
    """A list as the kernel writes it: runs of numbers."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def write(path: Path, text: str) -> None:
    """A file and the directories that lead to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@dataclass(frozen=True)
class Machine:
    """Memory nodes by their numbers, and what else there is to say of them."""

    nodes: Mapping[int, Sequence[int]]
    """CPUs, those that are switched off included."""
    distances: Mapping[int, Sequence[int]] | None = None
    siblings: int = 0
    """CPU n and n plus so many are one core; 0: there is no such pair."""
    offline: frozenset[int] = frozenset()
    devices: Mapping[str, tuple[int, tuple[str, str]]] | None = None
    """Address, memory node (-1: not said), and class and vendor."""
    packages: int = 1
    """Memory nodes in one package."""
    paths: Mapping[str, str] | None = None
    """Address of a device, and what leads to it: host bridge and bridges."""
    interfaces: Mapping[str, tuple[str, int, str]] | None = None
    """Name, address of the device (empty: there is none), speed and state of network interfaces."""

    def build(self, root: Path) -> str:
        """Write it; returns the root, as a name."""
        system = root / "devices/system"
        everything = {cpu for cpus in self.nodes.values() for cpu in cpus}
        online = everything - self.offline
        write(system / "cpu/online", spelled(online))
        write(system / "cpu/offline", spelled(self.offline))
        write(system / "cpu/isolated", "")
        for number, cpus in self.nodes.items():
            node = system / f"node/node{number}"
            write(node / "cpulist", spelled(set(cpus) & online))
            write(node / "distance", " ".join(map(str, self._distances(number))))
            for cpu in cpus:
                self._cpu(system / f"cpu/cpu{cpu}", cpu, number, online)
        write(system / "node/has_cpu", spelled(number for number, cpus in self.nodes.items() if cpus))
        for address, (number, (kind, vendor)) in (self.devices or {}).items():
            device = root / "bus/pci/devices" / address
            if address in (self.paths or {}):
                device.parent.mkdir(parents=True, exist_ok=True)
                (root / "devices" / self.path(address)).mkdir(parents=True)
                device.symlink_to(root / "devices" / self.path(address))
            write(device / "numa_node", str(number))
            write(device / "local_cpulist", spelled(set(self.nodes.get(number, everything)) & online))
            write(device / "class", kind)
            write(device / "vendor", vendor)
        for name, (address, speed, state) in (self.interfaces or {}).items():
            self._interface(root, name, address, speed, state)
        return str(root)

    def path(self, address: str) -> str:
        """What leads to a device, with itself."""
        return f"{(self.paths or {})[address]}/{address}"

    def _interface(self, root: Path, name: str, address: str, speed: int, state: str) -> None:
        place = self.path(address) if address else "virtual"
        folder = root / "devices" / place / "net" / name
        write(folder / "speed", str(speed))
        write(folder / "operstate", state)
        (root / "class/net").mkdir(parents=True, exist_ok=True)
        (root / "class/net" / name).symlink_to(folder)
        if address:
            (folder / "device").symlink_to(root / "devices" / place)

    def _cpu(self, folder: Path, cpu: int, node: int, online: set[int]) -> None:
        if cpu in self.offline:
            write(folder / "online", "0")
            return
        pair = {cpu, cpu % self.siblings, cpu % self.siblings + self.siblings} if self.siblings else {cpu}
        write(folder / "topology/physical_package_id", str(node // self.packages))
        write(folder / "topology/core_id", str(min(pair)))
        write(folder / "topology/core_cpus_list", spelled(pair & online))

    @property
    def usable(self) -> frozenset[int]:
        """All CPUs that are switched on."""
        return frozenset(cpu for cpus in self.nodes.values() for cpu in cpus) - self.offline

    @property
    def memory_nodes(self) -> tuple[MemoryNode, ...]:
        """As they would be read."""
        return tuple(
            MemoryNode(
                number,
                frozenset(cpus) & self.usable,
                tuple(zip(self.nodes, self._distances(number), strict=True)),
            )
            for number, cpus in self.nodes.items()
        )

    def _distances(self, number: int) -> Sequence[int]:
        return (self.distances or {}).get(number) or [10 if one == number else 21 for one in self.nodes]


def made_up_cuda(
    machine: Machine, *, current: int = 0, visible: range = range(8), used: frozenset[int] = frozenset()
) -> Any:
    """torch.cuda as a rank would see it that sees some of the machine's GPUs and has memory on some of those."""
    addresses = sorted(a for a, (_, kind) in (machine.devices or {}).items() if kind[0].startswith("0x03"))

    def properties(device: int) -> Any:
        domain, bus, slot = addresses[visible[device]][:-2].split(":")
        return SimpleNamespace(
            pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(slot, 16)
        )

    return SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: current,
        device_count=lambda: len(visible),
        memory_allocated=lambda device: 4096 * (device in used),
        get_device_properties=properties,
    )


def cards(*nodes: int) -> dict[str, tuple[int, tuple[str, str]]]:
    """A GPU at each of these memory nodes, in the order of their addresses, and a switch."""
    found = {f"0000:{0x10 + number:02x}:00.0": (node, GPU) for number, node in enumerate(nodes)}
    return {**found, "0000:05:00.0": (0, SWITCH)}


ONE = Machine({0: range(16)})
TWO = Machine(  # two packages of 32 cores with two threads each
    {0: [*range(32), *range(64, 96)], 1: [*range(32, 64), *range(96, 128)]},
    siblings=64,
    devices=cards(0, 0, 0, 0, 1, 1, 1, 1),
)
ONE_ROOT = Machine(TWO.nodes, siblings=64, devices=cards(*[0] * 8))
"""All GPUs are at the first package, as in many machines with one PCI switch."""
_SPAN = 16
FOUR = Machine({number: range(_SPAN * number, _SPAN * (number + 1)) for number in range(4)})
UNEQUAL = Machine(
    {
        0: range(12),
        1: range(12, 16),
        2: range(16, 24),
        3: [24],
        4: range(25, 37),
        5: [37, 38],
        6: [39],
        7: [40],
    }
)
EIGHT = Machine(  # two packages of four memory nodes, GPUs at every other one
    {number: range(32 * number, 32 * (number + 1)) for number in range(8)},
    distances={
        one: [10 if one == other else 12 if one // 4 == other // 4 else 32 for other in range(8)]
        for one in range(8)
    },
    devices=cards(3, 3, 1, 1, 7, 7, 5, 5),
    packages=4,
)
EXPANDED = Machine(  # memory on an expansion card, near the second package
    {0: range(8), 1: range(8, 16), 2: ()}, distances={0: [10, 21, 24], 1: [21, 10, 14], 2: [24, 14, 10]}
)
SUPERCHIP = Machine(  # two packages, each with a GPU whose memory is a node, and with one to spare
    {0: range(72), 1: range(72, 144), 2: (), 3: (), 4: (), 5: ()},
    distances={
        0: [10, 40, 80, 120, 80, 120],
        1: [40, 10, 120, 80, 120, 80],
        2: [80, 120, 10, 160, 11, 160],
        3: [120, 80, 160, 10, 160, 11],
        4: [80, 120, 11, 160, 10, 160],
        5: [120, 80, 160, 11, 160, 10],
    },
    devices={"0009:01:00.0": (2, GPU), "0019:01:00.0": (3, GPU)},
)
_SWITCHES = {0: "pci0000:10", 1: "pci0000:80"}
RAILS = Machine(  # two packages, each with two PCI switches of two GPUs and a fast NIC; a slow one, a bond
    TWO.nodes,
    siblings=64,
    devices={
        **{f"0000:{0x20 + number:02x}:00.0": (number // 4, GPU) for number in range(8)},
        **{f"0000:{0x40 + number:02x}:00.0": (number // 2, NIC) for number in range(4)},
        "0000:03:00.0": (0, NIC),
    },
    paths={
        **{
            f"0000:{0x20 + number:02x}:00.0": f"{_SWITCHES[number // 4]}/0000:1{number // 2}:01.0"
            for number in range(8)
        },
        **{
            f"0000:{0x40 + number:02x}:00.0": f"{_SWITCHES[number // 2]}/0000:1{number}:01.0"
            for number in range(4)
        },
        "0000:03:00.0": "pci0000:00/0000:00:01.0",
    },
    interfaces={
        **{f"rail{number}": (f"0000:{0x40 + number:02x}:00.0", 200_000, "up") for number in range(4)},
        "slow": ("0000:03:00.0", 1000, "up"),
        "bond0": ("", 400_000, "up"),
    },
)
OFFLINE = Machine({0: range(8), 1: range(8, 16)}, siblings=4, offline=frozenset({1, 5, *range(12, 16)}))
MACHINES = {
    "one": ONE,
    "two": TWO,
    "one root": ONE_ROOT,
    "four": FOUR,
    "unequal": UNEQUAL,
    "eight": EIGHT,
    "expanded": EXPANDED,
    "superchip": SUPERCHIP,
    "rails": RAILS,
    "offline": OFFLINE,
}
