"""A small network: nodes and a storage server, each in a network namespace, joined by a switch, with limited cables.

Nothing in it leads anywhere else.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from benchmarks.bucket.network import NoNetwork, check, inside, remove

PREFIX = "hrcluster-"
BURST, LATENCY = "128kb", "80ms"
STORAGE = "10.215.0.1"


def address(node: int) -> str:
    """Of a node."""
    return f"10.215.0.{11 + node}"


class Lan:
    """The namespaces of one benchmark."""

    def __init__(self, nodes: int) -> None:
        check()
        sweep()
        self._owner = os.getpid()
        self.hub = f"{PREFIX}{self._owner}-hub"
        self.storage = f"{PREFIX}{self._owner}-s"
        self.nodes = [f"{PREFIX}{self._owner}-n{node}" for node in range(nodes)]
        _run("ip", "netns", "add", self.hub)
        _run("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self.hub, "link", "set", "br0", "up")
        for number, name in enumerate([self.storage, *self.nodes]):
            port = f"p{number}"
            _run("ip", "netns", "add", name)
            _run(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                self.hub,
            )
            _run("ip", "-n", self.hub, "link", "set", port, "master", "br0", "up")
            at = STORAGE if not number else address(number - 1)
            _run("ip", "-n", name, "address", "add", f"{at}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")

    def limit(self, name: str, rate: str | None, *, latency: str = LATENCY) -> None:
        """What a namespace may send, and what may be sent to it, in a second, as tc says it; None: as it comes.
        ``latency``: what the queue before it holds."""
        port = f"p{[self.storage, *self.nodes].index(name)}"
        for where, device in ((name, "eth0"), (self.hub, port)):
            base = ("tc", "-n", where, "qdisc")
            with contextlib.suppress(NoNetwork):
                _run(*base, "del", "dev", device, "root")
            if rate is not None:
                _run(
                    *base,
                    "add",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    rate,
                    "burst",
                    BURST,
                    "latency",
                    latency,
                )

    def cut(self, name: str, *, cut: bool) -> None:
        """Cut the cable of a namespace, or mend it."""
        port = f"p{[self.storage, *self.nodes].index(name)}"
        _run("ip", "-n", self.hub, "link", "set", port, "down" if cut else "up")

    def moved(self, name: str) -> tuple[int, int]:
        """Bytes that a namespace has received and sent so far."""
        text = subprocess.run([*inside(name), "cat", "/proc/net/dev"], capture_output=True, text=True).stdout
        for line in text.splitlines():
            device, _, numbers = line.partition(":")
            if device.strip() == "eth0":
                fields = numbers.split()
                return int(fields[0]), int(fields[8])
        raise NoNetwork(f"there is no eth0 in {name}")

    def close(self) -> None:
        """End what runs in them, and take them away."""
        for name in [*self.nodes, self.storage, self.hub]:
            remove(name)


def sweep() -> None:
    """Take away what a benchmark that was killed has left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line else ""
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            remove(name)


def _run(*command: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise NoNetwork(f"`{' '.join(command)}` failed: {run.stderr.strip()}")
