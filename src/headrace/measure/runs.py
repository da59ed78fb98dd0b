"""Records of runs: what each loader measured, kept in a small JSON file while it runs and after it.

They lie below ``$XDG_STATE_HOME/headrace/runs``, or ``~/.local/state/headrace/runs``, and may be deleted at any time;
only the last ones are kept. A file that is damaged, or of another version, counts as none.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path

import msgspec

from headrace.core import environment
from headrace.core.files import PARTIAL, write_json
from headrace.planning import Situation

VERSION = 2
"""Raised when a record means something else than before."""
KEPT = 64
"""Runs that are kept."""
_LARGEST = 1 << 20
"""Bytes of a file that are looked at."""
_STALE = 3600.0
"""Seconds after which a file that nobody finished writing is taken away."""
_NAME = re.compile(r"\d{8}-\d{6}-\d+-\d+")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One loader's run in one process, as far as it has come."""

    name: str
    label: str
    """What people call the data."""
    hostname: str
    pid: int
    process_started: int
    """When the process began, in the kernel's ticks: a number of a process may be used again."""
    script: str = ""
    """What the process runs."""
    directory: str = ""
    """Where it was when the loader began."""
    rank: int = 0
    world_size: int = 1
    started: float
    """Seconds since 1970, as those below."""
    updated: float
    finished: bool = False
    """The loader was closed, or its process came to its end."""
    epoch: int = 0
    batches: int = 0
    samples: int = 0
    situation: Situation | None = None
    native: tuple[str, ...] = ()
    """What headrace does in the place of a dataset that it knows."""
    own_code: tuple[str, ...] = ()
    """What that dataset and its loader do in the user's own code, each with the reason."""
    hint: str = ""
    """What would let headrace do more of it."""
    version: int = VERSION


def runs_dir() -> Path:
    """Where records lie."""
    return Path(environment.state_home(), "headrace", "runs")


def run_name(started: float, pid: int, number: int) -> str:
    """A name that no other run has: when it began, and which loader of which process it is."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(started))}-{pid}-{number}"


def save_run(run: Run) -> bool:
    """Write a record in place of what it said before; whether that worked. Never an error."""
    place = runs_dir()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(place / f"{run.name}.json", run)
    except OSError:
        return False
    return True


def prune_runs(keep: int = KEPT) -> None:
    """Take away all but the last records, and what was never finished. Never an error."""
    with contextlib.suppress(OSError):
        entries = list(os.scandir(runs_dir()))
        names = sorted(entry.name for entry in entries if _is_record(entry.name))
        old = names[: max(0, len(names) - keep)]
        for entry in entries:
            with contextlib.suppress(OSError):
                left = entry.name.endswith(PARTIAL) and time.time() - entry.stat().st_mtime > _STALE
                if left or entry.name in old:
                    os.unlink(entry.path)


def list_runs() -> list[Run]:
    """All records that can be read, those first that were written last."""
    try:
        names = [name for name in os.listdir(runs_dir()) if _is_record(name)]
    except OSError:
        return []
    found = [run for run in map(load_run, (runs_dir() / name for name in names)) if run is not None]
    return sorted(found, key=lambda run: (run.updated, run.name), reverse=True)


def load_run(path: Path) -> Run | None:
    """The record in a file; None where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            run = msgspec.json.decode(file.read(_LARGEST), type=Run)
    except (OSError, ValueError, RecursionError):  # (what msgspec raises is a ValueError)
        return None
    return run if run.version == VERSION else None


def state_of(run: Run) -> str:
    """``running``; ``finished``, as it should; ``ended``, without a word; or ``elsewhere``, on another machine."""
    if run.finished:
        return "finished"
    if run.hostname != socket.gethostname():
        return "elsewhere"
    return "running" if process_start(run.pid) == run.process_started else "ended"


def process_start(pid: int) -> int | None:
    """When a process began, in the kernel's ticks since the machine started; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _is_record(name: str) -> bool:
    stem, dot, ending = name.rpartition(".")
    return bool(dot) and ending == "json" and _NAME.fullmatch(stem) is not None
