"""Network namespaces: machines that see each other over a link and share nothing else, as far as the network goes."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest

_numbers = itertools.count()


@dataclass(frozen=True)
class Namespace:
    """One of them."""

    name: str
    address: str
    device: str

    def command(self, *command: str) -> list[str]:
        """What runs a command in it, as the process that is started."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """Nothing leaves or reaches it any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", self.device, "down")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def existing() -> set[str]:
    """The names of all namespaces."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line}


@contextmanager
def linked() -> Iterator[tuple[Namespace, Namespace]]:
    """Two that are linked; skips the test where they cannot be made. They are gone afterwards, whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("there is no ip(8): network namespaces need iproute2")
    mark = f"hr{os.getpid()}x{next(_numbers)}"
    both = tuple(
        Namespace(f"{mark}{side}", f"10.213.{at}.{at + 1}", f"{mark}{side}"[-15:])
        for at, side in enumerate("ab")
    )
    with ExitStack() as stack:
        try:
            for one in both:
                _ip("netns", "add", one.name)
                stack.callback(_delete, one.name)
            here, there = both
            _ip(
                "link", "add", here.device, "netns", here.name, "type", "veth",
                "peer", "name", there.device, "netns", there.name,
            )  # fmt: skip
            for one in both:
                _ip("-n", one.name, "address", "add", f"{one.address}/16", "dev", one.device)
                _ip("-n", one.name, "link", "set", one.device, "up")
                _ip("-n", one.name, "link", "set", "lo", "up")
                subprocess.run(one.command("true"), check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no right to make network namespaces: {error.stderr.strip()}")
        yield both[0], both[1]


def _delete(name: str) -> None:
    """What still runs in it would keep it alive without a name."""
    left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in left:
        with suppress(OSError):
            os.kill(int(pid), 9)
    _ip("netns", "del", name)
