"""The machine a benchmark ran on, as its result says."""

from __future__ import annotations

import os
import platform
from typing import Any


def describe_machine() -> dict[str, Any]:
    """CPU, memory, kernel, Python."""
    return {
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        fields = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    if "model name" in fields:
        return fields["model name"]
    parts = f"{fields.get('CPU implementer', '?')}/{fields.get('CPU part', '?')}"
    return {"0x41/0xd0c": "Arm Neoverse-N1", "0x41/0xd40": "Arm Neoverse-V1"}.get(parts, f"CPU part {parts}")
