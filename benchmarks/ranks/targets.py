"""The wanted numbers of ranks in lockstep, from what was measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.common.report import Target, target
from benchmarks.common.rounds import Run, ratio
from benchmarks.ranks.runs import Runs, calm

TORCH = ("torch-few", "torch-four")
IMBALANCED = 0.1
OVER_TORCH, OVER_FIXED = 1.5, 1.1
FIXED = {"headrace-fixed": "fixed threads", "headrace-equal": "fixed threads at equal priority"}
STEADY, UNSTEADY = 2.0, 5.0
"""p99 over p50 of step time: wanted, and what torch has to have for that to be asked."""


def median(runs: Sequence[Run | None], field: str) -> float | None:
    """The median of a figure."""
    values = [run[field] for run in runs if run is not None and field in run]
    return statistics.median(values) if values else None


def best_torch(runs: Runs) -> str | None:
    """Which of torch's set-ups gave more images per second: that one counts as torch's."""
    found = {name: median(runs.get(name, []), "images_s") for name in TORCH}
    rates = {name: rate for name, rate in found.items() if rate is not None}
    return max(rates, key=rates.__getitem__) if rates else None


def at_once(run: Run) -> int:
    """Threads that prepared at once: what headrace says, else what was seen from outside.

    Where each worker has one preparing thread, that is its first; else any that runs may be one.
    """
    seen = "seen_first" if run["told"].get("threads", 1) == 1 else "seen_all"
    return int(run["preparing"] if "preparing" in run else run[seen])


def compute(case: str, every: Runs, cpus: int) -> list[Target]:
    """The targets of one scenario with one number of ranks."""
    runs, note = calm(every)
    ours = runs.get("headrace", [])
    fixed = {words: runs.get(name, []) for name, words in FIXED.items()}
    torch = best_torch(runs)
    theirs = [] if torch is None else runs[torch]
    late = [run["imbalanced"] for run in ours if run is not None]
    found = [
        target(f"{case}: imbalanced steps", late, "<=", IMBALANCED, note),
        target(
            f"{case}: images/s over torch",
            ratio(ours, theirs, "images_s") if theirs else [],
            ">=",
            OVER_TORCH,
            joined(note, f"torch: {torch}" if torch else "torch was not measured"),
        ),
        *(
            target(
                f"{case}: images/s over {words}",
                ratio(ours, others, "images_s") if others else [],
                ">=",
                OVER_FIXED,
                joined(note, most(others)),
            )
            for words, others in fixed.items()
        ),
        steadiness(case, ours, theirs, note),
    ]
    threads = [float(at_once(run)) for run in every.get("headrace", []) if run is not None]
    said = any("preparing" in run for run in every.get("headrace", []) if run is not None)
    how = "as headrace says" if said else "runnable threads of workers, sampled"
    # The most that there ever were, and not the median of the rounds.
    found.append(
        target(f"{case}: preparing threads at once", [max(threads)] if threads else [], "<=", cpus, how)
    )
    return found


def steadiness(case: str, ours: Sequence[Run | None], theirs: Sequence[Run | None], note: str) -> Target:
    """p99 of step time over p50, which is asked for where torch's is large."""
    torch = median(theirs, "p99_over_p50")
    mine = [run["p99_over_p50"] for run in ours if run is not None]
    made = target(f"{case}: p99 of step time over p50", mine, "<=", STEADY, note)
    # A value above it that counts as met must not look as if it were below.
    made = replace(made, target=f"{made.target} if torch > {UNSTEADY:g}")
    if torch is None:
        return made
    said = f"torch: {torch:.1f}"
    if torch > UNSTEADY or made.met or made.value is None:
        return replace(made, note=joined(note, said))
    return replace(made, met=True, note=joined(note, f"{said}, so that no more is asked"))


def most(fixed: Sequence[Run | None]) -> str:
    """How near fixed threads come to what the training steps allow: there is no more to be had than that."""
    share = median(fixed, "of_the_most")
    return "" if share is None else f"the steps allow {1 / share:.2f}"


def joined(*notes: str) -> str:
    """Notes, one after the other."""
    return "; ".join(note for note in notes if note)
