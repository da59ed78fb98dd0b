"""Two machines and a cable between them: network namespaces, a pair of interfaces, a limit on what the server sends.

The loaders' namespace leads nowhere else, so that nothing they try can leave the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass

PREFIX = "hrbucket-"
"""What the names of our namespaces begin with; then the process that made them, and ``s`` or ``c``."""
SERVER, CLIENT = "10.214.0.1", "10.214.0.2"
DEVICE = "bucket0"
"""What both ends are called, each in its own namespace."""
BURST, LATENCY = "256kb", "100ms"
"""A bucket of tokens that holds a few segments of 64 KB, and a queue that lets TCP find its speed."""
_CLONE_NEWNET = 0x40000000


class NoNetwork(RuntimeError):
    """Namespaces cannot be made here; the message says why."""


@dataclass(frozen=True)
class Cable:
    """The two namespaces of one benchmark."""

    server: str
    client: str

    @classmethod
    def of(cls, owner: int) -> Cable:
        """Those that belong to a process."""
        return cls(f"{PREFIX}{owner}-s", f"{PREFIX}{owner}-c")

    def lay(self) -> None:
        """Make both, and link them."""
        for name in (self.server, self.client):
            _run("ip", "netns", "add", name)
        _run(
            "ip", "link", "add", DEVICE, "netns", self.server, "type", "veth",
            "peer", "name", DEVICE, "netns", self.client,
        )  # fmt: skip
        for name, address in ((self.server, SERVER), (self.client, CLIENT)):
            # Neighbours that look for each other over IPv6 would count as bytes moved.
            command = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
            with contextlib.suppress(NoNetwork):
                _run(*inside(name), "sh", "-c", command)
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            _run("ip", "-n", name, "link", "set", DEVICE, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")

    def limit(self, rate: str | None) -> None:
        """What the server may send in a second, as tc says it (``200mbit``); None for no limit."""
        base = ("tc", "-n", self.server, "qdisc")
        if rate is None:
            with contextlib.suppress(NoNetwork):
                _run(*base, "del", "dev", DEVICE, "root")
            return
        _run(*base, "replace", "dev", DEVICE, "root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY)

    def remove(self) -> None:
        """End what runs in them, and take them away."""
        for name in (self.server, self.client):
            remove(name)


def inside(name: str) -> list[str]:
    """What runs a command in a namespace, as the process that is started; nothing else changes for it.

    (``ip netns exec`` would exchange /sys, too, in which loaders look for their control group's limits.)
    """
    return ["nsenter", f"--net=/run/netns/{name}"]


def enter(name: str) -> None:
    """Move this process (which has one thread) into a namespace."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def check() -> None:
    """Raise ``NoNetwork`` where namespaces cannot be made."""
    if os.geteuid() != 0:
        raise NoNetwork("network namespaces need root")
    for tool in ("ip", "tc", "nsenter"):
        if shutil.which(tool) is None:
            raise NoNetwork(f"{tool} was not found (Debian: iproute2, util-linux)")


def stale(names: list[str], alive: set[int]) -> list[str]:
    """Which of all ``names`` are ours, of a process that is not ``alive`` any more."""
    found = []
    for name in names:
        owner, _, _side = name.removeprefix(PREFIX).partition("-")
        if name.startswith(PREFIX) and owner.isdigit() and int(owner) not in alive:
            found.append(name)
    return found


def sweep() -> list[str]:
    """Take away what a benchmark that was killed has left behind; returns the names."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    alive = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    found = stale([line.split()[0] for line in listed.splitlines() if line], alive)
    for name in found:
        remove(name)
    return found


def remove(name: str) -> None:
    """What still runs in a namespace would keep it alive without a name, so that ends first."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in pids:
        if int(pid) != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


def moved() -> tuple[int, int]:
    """Bytes received and sent over the cable so far, as seen from the namespace that this process is in."""
    with open("/proc/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == DEVICE:
                fields = numbers.split()
                return int(fields[0]), int(fields[8])
    raise NoNetwork(f"there is no {DEVICE} in this network namespace")


def _run(*command: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise NoNetwork(f"`{' '.join(command)}` failed: {run.stderr.strip()}")
