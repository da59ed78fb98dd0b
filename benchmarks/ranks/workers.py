"""The number of workers left out, against the best that is chosen by hand: where the loop waits for storage, for
decoding, or for nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.photos import PhotosUnavailable
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target
from benchmarks.common.rounds import Run, RunFailed, ratio
from benchmarks.ranks.bench import describe
from benchmarks.ranks.runs import Node, Runs, calm
from benchmarks.ranks.targets import joined, median

FETCH_S = 0.02
BUSY = 2.0
"""A consumer that takes so many times as long as preparing."""
JOBS = ("fetch", "decode", "consumer")
RANKS = (1, 8)
SHARE = 0.95
LEFT_OUT = "left out"
SECONDS = 10.0
"""That the steps of a run are to take, roughly: what warming up left ahead is a small part of them."""


def numbers(cpus: int, ranks: int, quick: bool) -> list[int]:
    """Workers per rank that are tried: up to four for each CPU of the machine, and two for each rank."""
    most = max(2, 4 * cpus // ranks)
    found = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return found[-3:] if quick else found


class WorkersBench:
    """One invocation."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick = bool(args.quick)
        self.repeats = args.repeats or (1 if self.quick else 3)
        self.jobs = [job for job in JOBS if not args.only or job in args.only]
        self.ranks: tuple[int, ...] = tuple(args.ranks) or RANKS
        self.partly = bool(args.only or args.ranks)
        self.seconds = SECONDS * (0.8 if self.quick else 1)
        self.node = Node(args.patience, args.photos, args.batch)
        self.found: dict[str, tuple[int, Runs]] = {}
        self.costs: dict[int, dict[str, float]] = {}

    def main(self) -> None:
        """Run the benchmark. What it finds never makes it fail."""
        try:
            self.node.prepare()
            for ranks in self.ranks:
                self.costs[ranks] = self.node.calibrate(ranks)
                for job in self.jobs:
                    self.run(job, ranks)
        except (PhotosUnavailable, RunFailed) as error:
            print(f"Nothing more was measured. {error}", file=sys.stderr)
        self.report()

    def orders(self, job: str, ranks: int) -> dict[str, Any]:
        """What a job is, and how many steps of it count."""
        even = self.costs[ranks]["step_s"]
        told: dict[str, Any]
        if job == "fetch":
            told, step = {"scenario": str(FETCH_S), "step_s": 0.0}, 2 * even
        elif job == "decode":
            told, step = {"scenario": "fast", "step_s": 0.0, "pictures": "full"}, 2 * even
        else:
            step = BUSY * even
            told = {"scenario": "fast", "step_s": step}
        steps = max(60, min(2000, round(self.seconds / step)))
        # A number that is left out may still be looked for in the first steps; and there may be eighty batches ahead.
        return {**told, "ranks": ranks, "steps": steps, "warm": max(100, steps // 2)}

    def run(self, job: str, ranks: int) -> None:
        """All rounds of a job."""
        orders = self.orders(job, ranks)

        def measure(name: str, number: int) -> Run:
            chosen: dict[str, Any] = {} if name == LEFT_OUT else {"workers": int(name)}
            return self.node.run("headrace", seed=number + 1, **orders, **chosen)

        case = f"{job}-bound, {ranks} rank{'s' if ranks > 1 else ''}"
        names = [LEFT_OUT, *map(str, numbers(self.node.cpus, ranks, self.quick))]
        say(f"{case}: {orders['steps']} steps")
        self.found[case] = ranks, self.node.rounds(case, names, self.repeats, measure)

    def report(self) -> None:
        """Print and write."""
        targets = []
        for case, (ranks, runs) in self.found.items():
            print(f"\n{case}\n{show(runs, ranks)}")
            targets.append(against_best(case, runs))
        for name, reason in self.node.missing.items():
            print(f"not measured: {name}: {reason}")
        result = {
            **header("workers", self.quick),
            "settings": {
                "batch": self.node.batch,
                "pictures": self.node.made_of,
                "fetch_s": FETCH_S,
                "repeats": self.repeats,
                "by_ranks": self.costs,
            },
            "missing": self.node.missing,
            "cases": [describe(case, runs) for case, (_, runs) in self.found.items()],
        }
        publish("workers-" + "-".join(self.jobs) if self.partly else "workers", self.quick, result, targets)


def against_best(case: str, every: Runs) -> Target:
    """The wanted number: left out over the best number, which is that with the best median."""
    runs, note = calm(every)
    rates = {name: median(row, "images_s") for name, row in runs.items() if name != LEFT_OUT}
    there = {name: rate for name, rate in rates.items() if rate is not None}
    title = f"{case}: num_workers left out over the best number"
    if not there:
        return target(title, [], ">=", SHARE, note)
    best = max(there, key=there.__getitem__)
    values = ratio(runs[LEFT_OUT], runs[best], "images_s")
    return target(title, values, ">=", SHARE, joined(note, f"best: {best}"))


def show(runs: Runs, ranks: int) -> str:
    """The medians, for people."""
    rows = [
        ["num_workers" + (" (each rank)" if ranks > 1 else ""), "images/s", "p50 ms", "p99", "CPU-s/1000"]
    ]
    for name, row in runs.items():
        found = [median(row, field) for field in ("images_s", "p50_ms", "p99_ms", "cpu_s_per_1000")]
        shapes = ("{:,.0f}", "{:.0f}", "{:.0f}", "{:.2f}")
        rows.append(
            [
                name,
                *(
                    "-" if one is None else shape.format(one)
                    for one, shape in zip(found, shapes, strict=True)
                ),
            ]
        )
    return table(rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks/ranks/run workers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, short runs, fewer numbers")
    parser.add_argument("--repeats", type=int, help="rounds (default 3, quick 1)")
    parser.add_argument("--only", action="append", default=[], choices=JOBS, help="measure these jobs alone")
    parser.add_argument("--ranks", action="append", default=[], type=int, help="numbers of ranks")
    parser.add_argument(
        "--photos", type=Path, help="a folder of class folders (default: the benchmarks' own)"
    )
    parser.add_argument("--batch", type=int, help="of a rank (default: 32, more with more than four CPUs)")
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds to wait for an idle machine per run"
    )
    WorkersBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
