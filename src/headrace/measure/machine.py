"""The machine that something was measured on."""

from __future__ import annotations

import hashlib
import platform
import socket

import msgspec

from headrace.core.memory import total_memory, usable_cpus

_ARM = ("CPU implementer", "CPU part")
"""Arm's CPUs do not say their names, only whose they are and which."""


class Machine(msgspec.Struct, frozen=True):
    """What a measurement holds for: another machine, or another share of this one, has to be measured anew."""

    hostname: str
    cpu: str
    """The CPU's model."""
    cpus: int
    """That this process may use."""
    memory: int
    """GiB, rounded: the exact number changes with the kernel."""

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        return cls(socket.gethostname(), _model(), usable_cpus(), round(total_memory() / (1 << 30)))

    @property
    def key(self) -> str:
        """A short name for files."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def _model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        lines = []
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    arm = "/".join(said[name] for name in _ARM if name in said)
    return said.get("model name") or f"{platform.machine()} {arm}".strip()
