"""A bottleneck that moves: storage becomes five times slower in mid-run, then fast again while decoding gets heavier.

Each division of threads that is fixed goes through the same run; the best of them, phase by phase, is what a loader
that is told nothing is held against.
"""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.common.report import Target, table, target
from benchmarks.common.rounds import Run
from benchmarks.ranks.contenders import FIXED, READS
from benchmarks.ranks.node import SETTLED
from benchmarks.ranks.runs import Node, Runs, calm
from benchmarks.ranks.targets import joined

PHASES = ("as it is", "storage slow", "decoding heavy")
LATENCY_S = 0.002
SLOWER = 5
IN_FLIGHT = (1, 4, 16, 32)
SHARE = 0.9
AUTO = "headrace"
Division = tuple[int, int]
"""Workers, and reads in flight."""


def divisions(cpus: int, ranks: int, quick: bool) -> list[Division]:
    """Those that are tried: half of a rank's CPUs, all, or twice as many workers, by reads in flight."""
    share = max(1, cpus // ranks)
    workers = sorted({max(1, share // 2), share, 2 * share})
    if quick:
        return [(share, 4), (share, 32), (workers[-1], 16)]
    return list(itertools.product(workers, IN_FLIGHT))


def name(division: Division) -> str:
    """A division in words."""
    workers, reads = division
    return f"{workers} worker{'s' if workers > 1 else ''}, {reads} in flight"


def orders(steps: int) -> dict[str, Any]:
    """What every run is told; ``steps`` of each phase."""
    return {
        "scenario": str(LATENCY_S),
        "steps": 3 * steps,
        "step_s": 0.0,
        "heavy": True,
    }


def measure(node: Node, ranks: int, quick: bool, repeats: int) -> Runs:
    """All rounds with so many ranks."""
    # What was ahead when a phase began is used up in a small part of it. (Several ranks take more images for a step.)
    steps = SETTLED + (160 if quick else 320) // (2 if ranks > 1 else 1)
    fixed = {name(one): one for one in divisions(node.cpus, ranks, quick)}

    def one(which: str, number: int) -> Run:
        told: dict[str, Any] = {}
        if which != AUTO:
            workers, reads = fixed[which]
            told = {"workers": workers, "variables": {**FIXED, READS: str(reads)}}
        warm = SETTLED
        changes = {warm + steps: (SLOWER, False), warm + 2 * steps: (1, True)}
        return node.run(
            AUTO, ranks=ranks, warm=warm, seed=number + 1, changes=changes, **orders(steps), **told
        )

    return node.rounds(f"shift, {ranks} rank{'s' if ranks > 1 else ''}", [AUTO, *fixed], repeats, one)


def best(runs: Runs, phase: int) -> tuple[str, float] | None:
    """The division that gave most in a phase, by the median of the rounds, and what it gave."""
    rates = {
        which: sorted(run["phases"][phase] for run in row if run is not None)
        for which, row in runs.items()
        if which != AUTO and any(row)
    }
    medians = {which: values[len(values) // 2] for which, values in rates.items()}
    which = max(medians, key=medians.__getitem__, default=None)
    return None if which is None else (which, medians[which])


def targets(ranks: int, every: Runs) -> list[Target]:
    """The wanted numbers: nearly the best division's rate, in each phase."""
    runs, note = calm(every)
    found = []
    for phase, words in enumerate(PHASES):
        top = best(runs, phase)
        values = []
        if top is not None:
            values = [run["phases"][phase] / top[1] for run in runs[AUTO] if run is not None]
        said = joined(note, f"best: {top[0]}" if top else "")
        title = (
            f"shift, {ranks} rank{'s' if ranks > 1 else ''}, {words}: images/s over the best fixed division"
        )
        found.append(target(title, values, ">=", SHARE, said))
    return found


def show(runs: Runs) -> str:
    """Images per second by phase, for people."""
    rows = [["division of threads", *PHASES]]
    for which, row in runs.items():
        rates = [run["phases"] for run in row if run is not None]
        if rates:
            middle = [sorted(column)[len(column) // 2] for column in zip(*rates, strict=True)]
            rows.append(
                [which if which != AUTO else "headrace, told nothing", *(f"{one:,.0f}" for one in middle)]
            )
    return table(rows)
