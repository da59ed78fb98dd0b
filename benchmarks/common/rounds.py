"""Measured runs: a process each, interleaved, so that what else the machine does hits all alike."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks.common.tree import (
    SAMPLING,
    PeakPss,
    adopt_orphans,
    busy_cpu,
    descendants,
    stolen_cpu,
    stolen_since,
    tree_cpu,
)

Run = dict[str, Any]
DISTURBED = 0.2
"""A run beside which others kept more CPUs busy than this says nothing about wall-clock times."""
STOLEN = 0.1
"""Nor does one in which another machine on the same hardware had more of all CPU time than this."""


class RunFailed(RuntimeError):
    """A measured process did not deliver; the message is its last telling line."""


def run_process(
    command: Sequence[str], cwd: Path, environment: dict[str, str], limit_s: float, sampling: float = SAMPLING
) -> Run:
    """Run a command that prints one JSON object, and add what only the outside sees of it.

    Added: ``pss_bytes`` (the peak of what the process says and what was sampled), and ``others_cpu``, the
    CPUs that the rest of the machine kept busy meanwhile: with that far from 0, the times mean little.
    ``sampling``: the part of a CPU that looking at memory may take.
    """
    adopt_orphans()
    busy, began, seen = busy_cpu(), time.monotonic(), _Seen()
    with PeakPss(os.getpid(), share=sampling) as peak:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            # No run may know what another one has learned.
            env={**os.environ, "HEADRACE_PROFILES": "0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            # Its children hold its pipes open: they end first, or reading on would never end.
            seen.end(patience_s=0.0)
            process.communicate()
            raise RunFailed(f"took longer than {limit_s:.0f} s") from None
        finally:
            seen.end()
    if process.returncode:
        raise RunFailed(last_words(err) or f"exit status {process.returncode}")
    result: Run = json.loads(out)
    wall = time.monotonic() - began
    result["pss_bytes"] = max(result.get("pss_bytes", 0), peak.bytes)
    result["others_cpu"] = max(0.0, (busy_cpu() - busy - seen.cpu_s()) / wall)
    return result


def least_stolen(
    measure: Callable[[], Run | None], tries: int, again: Callable[[float], None], most: float = STOLEN
) -> Run | None:
    """Measure, and again if other machines had much of the CPUs meanwhile, so often at most; the run that had most of
    them, with ``stolen``, the share of CPU time that it had not. None: it failed. ``again`` is told of each other;
    ``most``: the share that is not much."""
    best: Run | None = None
    for left in reversed(range(tries)):
        before = stolen_cpu()
        run = measure()
        if run is None:
            break
        run["stolen"] = stolen_since(before)
        if best is None or run["stolen"] < best["stolen"]:
            best = run
        if run["stolen"] <= most or not left:
            break
        again(run["stolen"])
    return best


def take_stdout() -> TextIO:
    """Standard output, for a measured process's result alone; what libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


class _Seen:
    """The CPU that this process's children used, and the end of those that it did not have before."""

    def __init__(self) -> None:
        self._others = frozenset(stat.pid for stat in descendants(os.getpid()))
        self._before = self._now()

    @staticmethod
    def _now() -> float:
        times = os.times()
        return sum(times[:4]) + tree_cpu(os.getpid())

    def cpu_s(self) -> float:
        """CPU seconds of this process and of all that it started, since this was made."""
        return self._now() - self._before

    def end(self, patience_s: float = 5.0) -> None:
        """Wait for processes that outlived the measured one, then end them: none may run beside the next."""
        until = time.monotonic() + patience_s
        while left := descendants(os.getpid(), self._others):
            over = time.monotonic() > until
            for stat in left:
                if over:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(stat.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):  # (it is a child's, or gone)
                    os.waitpid(stat.pid, os.WNOHANG)
            time.sleep(0.02)


def last_words(text: str) -> str:
    """The last line of a traceback that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def interleave(
    names: Sequence[str], repeats: int, run: Callable[[str, int], Run | str]
) -> tuple[dict[str, list[Run | None]], dict[str, str]]:
    """Run every name once per round, each round starting with another.

    ``run`` returns what was measured, or why nothing was; a name that failed is not run again. Returns the
    runs of each name by round (None where there is none), and the failures' reasons.
    """
    runs: dict[str, list[Run | None]] = {name: [None] * repeats for name in names}
    failed: dict[str, str] = {}
    for number in range(repeats):
        start = number * len(names) // repeats
        for name in [*names[start:], *names[:start]]:
            if name in failed:
                continue
            result = run(name, number)
            if isinstance(result, str):
                failed[name] = result
            else:
                runs[name][number] = result
    return runs, failed


def summarise(runs: Sequence[Run | None]) -> dict[str, dict[str, float]]:
    """Median, least and most of every number in the runs."""
    present = [run for run in runs if run is not None]
    out: dict[str, dict[str, float]] = {}
    for field in present[0] if present else ():
        values = [run[field] for run in present]
        if all(isinstance(value, int | float) for value in values):
            out[field] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return out


def undisturbed(runs: Sequence[Run | None]) -> list[Run | None]:
    """The runs that had the machine to themselves; None in place of the others."""
    return [run if run is not None and run["others_cpu"] <= DISTURBED else None for run in runs]


def ratio(
    over: Sequence[Run | None], under: Sequence[Run | None], field: str, other: str | None = None
) -> list[float]:
    """``over`` divided by ``under``, round by round; ``other``: the field of ``under``, if that is another one."""
    other = other or field
    pairs = zip(over, under, strict=True)
    return [
        a[field] / b[other] for a, b in pairs if a is not None and b is not None and a[field] and b[other]
    ]
