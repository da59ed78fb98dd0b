"""Nodes without Ray: processes with a server each, and helpers, that know of each other."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.cluster.messages import Node, View

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Place:
    """Where a node is."""

    host: str
    helpers: int
    inside: Sequence[str] = ()
    """What a command begins with there."""
    cpus: Sequence[int] = ()
    """Those that it may use; none: all."""


class PlainNodes:
    """All nodes, each with so much memory for samples."""

    def __init__(self, places: Sequence[Place], memory: int) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="hrn-"))
        self._nodes: list[subprocess.Popen[str]] = []
        token = secrets.token_hex(16)
        try:
            described = []
            for number, place in enumerate(places):
                command = [
                    *place.inside, sys.executable, "-m", "benchmarks.cluster.node", f"n{number}", place.host, token,
                    str(memory), str(place.helpers),
                ]  # fmt: skip
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=self.environment(number),
                    preexec_fn=kept_to(place.cpus),
                )
                self._nodes.append(process)
                assert process.stdout is not None
                described.append(msgspec.json.decode(process.stdout.readline(), type=Node))
            view = msgspec.json.encode(View(1, tuple(described))).decode() + "\n"
            for process in self._nodes:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(view)
                process.stdin.flush()
                process.stdout.readline()
        except BaseException:
            self.close()
            raise

    def environment(self, node: int) -> dict[str, str]:
        """Of what runs on a node."""
        runtime = self._place / f"n{node}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "HEADRACE_RUNTIME_DIR": str(runtime),
            "HEADRACE_RECORD": "0",
            "HEADRACE_PROFILES": "0",
            "HEADRACE_HOST_IDLE": "1",
        }

    def close(self) -> None:
        """End all of them."""
        for process in self._nodes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        shutil.rmtree(self._place, ignore_errors=True)


def kept_to(cpus: Sequence[int]) -> Callable[[], None]:
    """For a process that begins: to use these CPUs; none: all."""
    return lambda: os.sched_setaffinity(0, cpus) if cpus else None
