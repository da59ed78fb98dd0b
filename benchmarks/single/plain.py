"""Ordinary torch datasets through torch's loader and through headrace's: samples per second, CPU, memory.

    python -m benchmarks.single.plain KIND LOADER --photos DIR

is one measured run, in a process of its own: JSON of what happened on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.report import Target, table, target
from benchmarks.common.rounds import Run, ratio, run_process, summarise, take_stdout, undisturbed
from benchmarks.common.tree import PeakPss, tree_cpu, tree_memory
from benchmarks.single.plain_datasets import KINDS

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 120
LOADERS = ("torch", "headrace")
NAMES = tuple(f"{kind} {loader}" for kind in KINDS for loader in LOADERS)
Runs = Mapping[str, Sequence[Run | None]]


def measure(kind: str, loader: str, photos: Path, workers: int, root: int, seconds: float) -> dict[str, Any]:
    """One epoch, then more of them until they took ``seconds``. Those count; memory counts from the beginning."""
    if loader == "torch":
        from torch.utils.data import DataLoader
    else:
        from headrace import DataLoader  # type: ignore[assignment]
    made = KINDS[kind]
    dataset = made.make(photos)
    opened = DataLoader(
        dataset,
        batch_size=made.batch,
        shuffle=None if kind == "stream" else True,
        num_workers=workers,
        persistent_workers=True,
    )

    def epoch() -> int:
        return sum(_samples(batch) for batch in opened)

    epoch()
    cpu, begun, samples = tree_cpu(root), time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        samples += epoch()
    took = time.perf_counter() - begun
    return {
        "samples_s": samples / took,
        "cpu_us_per_sample": 1e6 * (tree_cpu(root) - cpu) / samples,
    }


def _samples(batch: Any) -> int:
    first = batch["image"] if isinstance(batch, dict) else batch[0]
    assert float(first.view(-1)[::512].max()) >= 0  # something of each page, as whoever trains reads it
    return len(first)


def run(name: str, python: str, photos: Path, workers: int, seconds: float) -> Run:
    """Measure one of ``NAMES`` in a process of its own; ``memory_bytes`` is the peak that is seen from outside."""
    words = [python, "-m", __name__, *name.split(), "--photos", str(photos), "--workers", str(workers)]
    words += ["--root", str(os.getpid()), "--seconds", str(seconds)]
    paths = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])}
    with PeakPss(os.getpid(), read=tree_memory) as peak:
        found = run_process(words, REPOSITORY, paths, LIMIT_S)
    return {**found, "memory_bytes": peak.bytes}


def tell(run: Run) -> str:
    """What came of it, in short."""
    return f"{run['samples_s']:,.0f} samples/s, {run['memory_bytes'] / 1e6:,.0f} MB"


def describe(runs: Runs) -> list[dict[str, Any]]:
    """As it is written."""
    return [
        {"name": name, "label": KINDS[name.split()[0]].label, "summary": summarise(mine), "runs": list(mine)}
        for name, mine in runs.items()
    ]


def show(runs: Runs) -> str:
    """The medians, for people."""
    rows = [["torch dataset", "batch", "loader", "samples/s", "CPU-µs/sample", "memory MB", "PSS MB"]]
    fields = (("samples_s", 1), ("cpu_us_per_sample", 1), ("memory_bytes", 1e-6), ("pss_bytes", 1e-6))
    for name, mine in runs.items():
        kind, loader = name.split()
        found = summarise(mine)
        cells = [
            f"{scale * found[field]['median']:,.0f}" if field in found else "-" for field, scale in fields
        ]
        rows.append([KINDS[kind].label, str(KINDS[kind].batch), loader, *cells])
    return table(rows, text=(0, 2))


def targets(runs: Runs, repeats: int) -> list[Target]:
    """No kind of dataset may be slower than through torch's loader, or take more memory."""
    none: list[Run | None] = [None] * repeats
    found = []
    for kind, made in KINDS.items():
        mine, theirs = (runs.get(f"{kind} {loader}", none) for loader in reversed(LOADERS))
        quick = ratio(undisturbed(mine), undisturbed(theirs), "samples_s")
        large = ratio(mine, theirs, "memory_bytes")
        found += [
            target(f"torch dataset, {made.label}: samples/s over torch's loader", quick, ">=", 1.0),
            target(f"torch dataset, {made.label}: peak memory over torch's loader", large, "<=", 1.0),
        ]
    return found


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--root", type=int, default=os.getppid())
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    out = take_stdout()
    found = measure(args.kind, args.loader, args.photos, args.workers, args.root, args.seconds)
    with out:
        json.dump(found, out)


if __name__ == "__main__":
    main()
