"""Where CPUs, memory, devices and network interfaces lie in this machine, as the system tells it.

Machines say less than they should: containers hide ``/sys``, virtual machines know of no memory nodes, CPUs are
switched off. What is missing or makes no sense is left out. Who asks gets less, never an error.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.memory import cgroup_directories

SYS = "/sys"
_MOST = 1 << 16
"""CPUs and memory nodes beyond this number are somebody's mistake: no kernel has as many."""
_CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
"""Which CPUs a cgroup has: in version 2, and in version 1 with what cgroups above it take away, and without."""
_DEVICES = "bus/pci/devices"
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_INTERFACES = "class/net"
_UP = ("up", "unknown")
"""What an interface says that carries something. (Drivers that do not know whether they do say so.)"""


@dataclass(frozen=True)
class MemoryNode:
    """Memory, and the CPUs that are next to it."""

    number: int
    cpus: frozenset[int]
    """Those that are switched on; none where a device brings the memory, or an expansion card."""
    distances: tuple[tuple[int, int], ...] = ()
    """Number of each memory node and how far it is, in the firmware's measure; empty: not known."""

    def distance(self, number: int) -> int | None:
        """How far another memory node is; None: not known."""
        return dict(self.distances).get(number)


@dataclass(frozen=True)
class Cpu:
    """One CPU as the scheduler counts them: a hardware thread."""

    number: int
    package: int
    """-1: not known."""
    core: int
    """Its core's number within the package, which not all machines give only once; -1: not known."""
    siblings: frozenset[int]
    """All CPUs of its core, itself included."""


@dataclass(frozen=True)
class Topology:
    """What the system says of its CPUs and its memory."""

    nodes: tuple[MemoryNode, ...] = ()
    """By number; empty where the system knows of none."""
    cpus: tuple[Cpu, ...] = ()
    """Those that are switched on, by number."""


@dataclass(frozen=True)
class Device:
    """Where a device is attached."""

    node: int | None
    """Number of its memory node; None: not known, or none."""
    cpus: frozenset[int]
    """The CPUs next to it; empty: not known."""
    path: tuple[str, ...] = ()
    """From the host bridge over all bridges to itself; empty: not known."""


@dataclass(frozen=True)
class Interface:
    """A network interface that is a device, and nothing made of others."""

    name: str
    device: Device
    speed: int = 0
    """Mbit/s; 0: not known."""
    up: bool = True


def read_topology(root: str = SYS) -> Topology:
    """The whole topology. ``root``: where the system's own tree is mounted."""
    return Topology(read_nodes(root), read_cpus(root))


def read_nodes(root: str = SYS) -> tuple[MemoryNode, ...]:
    """The memory nodes."""
    folder = os.path.join(root, "devices/system/node")
    online = _online(root)
    numbers = _numbered(folder, "node")
    nodes = []
    for number in numbers:
        cpus = parse_cpus(_text(folder, f"node{number}", "cpulist"))
        words = _text(folder, f"node{number}", "distance").split()
        # One for each memory node that is there; otherwise it is not clear whose they are.
        known = len(words) == len(numbers) and all(_is_number(word) for word in words)
        distances = tuple(zip(numbers, map(int, words), strict=True)) if known else ()
        nodes.append(MemoryNode(number, cpus & online if online else cpus, distances))
    return tuple(nodes)


def read_cpus(root: str = SYS) -> tuple[Cpu, ...]:
    """The CPUs that are switched on."""
    folder = os.path.join(root, "devices/system/cpu")
    online = _online(root)
    cpus = []
    for number in _numbered(folder, "cpu"):
        own = os.path.join(folder, f"cpu{number}")
        if online and number not in online:
            continue
        told = _text(own, "topology/core_cpus_list") or _text(own, "topology/thread_siblings_list")
        siblings = parse_cpus(told)
        siblings = siblings & online if online else siblings
        package, core = (_number(own, "topology", name) for name in ("physical_package_id", "core_id"))
        cpus.append(Cpu(number, package, core, siblings | {number}))
    return tuple(cpus)


def read_device(address: str, root: str = SYS) -> Device:
    """Where a PCI device such as a GPU is attached; ``address`` as in ``0000:3b:00.0``."""
    found = _ADDRESS.fullmatch(address.lower())
    if found is None:
        return Device(None, frozenset())
    # (some tools write the domain with eight digits)
    name = f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}"
    folder = os.path.join(root, _DEVICES, name)
    node = _number(folder, "numa_node")
    cpus = parse_cpus(_text(folder, "local_cpulist"))
    return Device(node if node >= 0 else None, cpus, _pci_path(os.path.realpath(folder)))


def read_alike(address: str, root: str = SYS) -> tuple[Device, ...]:
    """All devices of the machine that are of the same kind and vendor as one, in the order of their addresses."""
    folder = os.path.join(root, _DEVICES)
    kinds = {name: (_text(folder, name, "class"), _text(folder, name, "vendor")) for name in _names(folder)}
    kind = kinds.get(address.lower(), ("", ""))
    return tuple(read_device(name, root) for name in sorted(kinds) if all(kind) and kinds[name] == kind)


def read_interfaces(root: str = SYS) -> tuple[Interface, ...]:
    """The network interfaces that are PCI devices, by name. Bonds, bridges and the like are not among them."""
    folder = os.path.join(root, _INTERFACES)
    found = []
    for name in sorted(_names(folder)):
        own = os.path.join(folder, name)
        device = os.path.join(own, "device")
        path = _pci_path(os.path.realpath(device)) if os.path.exists(device) else ()
        if len(path) < 2:
            continue
        # (0 and 2**32 - 1 are what some say who do not know)
        word = _text(own, "speed").strip()
        speed = int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0
        up = _text(own, "operstate").strip() in _UP
        found.append(Interface(name, read_device(path[-1], root), speed, up))
    return tuple(found)


def away(one: Device, other: Device, nodes: Sequence[MemoryNode] = ()) -> tuple[int, int] | None:
    """How far two devices are from each other: less is nearer, in one machine; None: not known.

    Nearest are those that share most bridges; then those at one memory node; then it is as far as between theirs.
    """
    pairs = zip(one.path, other.path, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if common:
        return 0, -common
    if one.node is None or other.node is None:
        return None
    if one.node == other.node:
        return 1, 0
    far = next((node.distance(other.node) for node in nodes if node.number == one.node), None)
    return (2, far) if far is not None else (3, 0)


def own_cpus() -> frozenset[int]:
    """The CPUs that this process may run on: what its container has, and what whoever started it left of that."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset(range(os.cpu_count() or 1))


def is_bound(usable: frozenset[int], root: str = SYS, proc: str = "/proc") -> bool:
    """Whether a process with ``usable`` CPUs got fewer than its container has, as by ``taskset`` or a launcher."""
    allowed = _online(root)
    for directory in cgroup_directories("cpuset", os.path.join(root, "fs/cgroup"), proc):
        cpus = next(filter(None, (parse_cpus(_text(directory, name)) for name in _CPUSETS)), None)
        if cpus:
            allowed = cpus
            break
    # Nobody runs on isolated CPUs without asking for it.
    return usable < allowed - parse_cpus(_text(root, "devices/system/cpu/isolated"))


def parse_cpus(text: str) -> frozenset[int]:
    """The numbers of a list as the kernel writes them, such as ``0-3,8``; none where it is not such a list."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not first and not dash:
            continue
        if not _is_number(first) or not _is_number(last) or int(first) > int(last):
            return frozenset()
        numbers.update(range(int(first), int(last) + 1))
    return frozenset(numbers)


def _pci_path(path: str) -> tuple[str, ...]:
    """The part of a device's path that is the PCI bus: a host bridge, bridges, and the device as the last."""
    parts = path.split(os.sep)
    first = next((at for at, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    return tuple(parts[first : first + 1] + [part for part in parts[first + 1 :] if _ADDRESS.fullmatch(part)])


def _online(root: str) -> frozenset[int]:
    return parse_cpus(_text(root, "devices/system/cpu/online"))


def _numbered(folder: str, prefix: str) -> list[int]:
    """Numbers of the entries of a directory that are called so, in order."""
    return sorted(
        int(name.removeprefix(prefix))
        for name in _names(folder)
        if name.startswith(prefix) and _is_number(name.removeprefix(prefix))
    )


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 9 and int(word) < _MOST


def _number(*path: str) -> int:
    word = _text(*path).strip()
    return int(word) if _is_number(word) else -1


def _text(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
