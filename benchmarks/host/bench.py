"""What the shared host deals out, and what sharing costs where there is nothing to gain by it. Started by ``run``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common.bench import DATA, REPOSITORY
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, interleave, ratio, run_process, summarise
from benchmarks.common.tree import wait_until_idle
from benchmarks.host.images import SIDE, make_images

LIMIT_S = 300
BATCHES = (64, 256)
DEALT = 4000
"""Batches/s that the host is to deal out."""
SHARING = 0.95
"""Of what jobs with caches of their own reach."""
BYTES = SIDE * SIDE * 3


class HostBench:
    """One invocation."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick = bool(args.quick)
        self.patience_s = float(args.patience)
        self.repeats = args.repeats or (1 if self.quick else 3)
        self.cpus = len(os.sched_getaffinity(0))
        self.numbers = args.jobs or ((1, 4) if self.quick else (1, 2, 4, 8))
        self.samples = 16_384 if self.cpus >= 8 else 4096
        self.seconds = 3 if self.quick else 6
        self.images = DATA
        self.missing: dict[str, str] = {}

    def main(self) -> None:
        """Run the benchmark. What it finds never makes it fail."""
        self.images = make_images(DATA, self.samples)
        dealt = [f"dealt@{n}x{size}" for n in self.numbers for size in BATCHES]
        dealt += [f"dealt-alike@{n}x{size}" for n in self.numbers for size in BATCHES if n > 1]
        jobs = [f"{kind}@{n}x{size}" for n in self.numbers for size in BATCHES for kind in ("shared", "own")]
        begun, done, total = time.monotonic(), 0, self.repeats * (len(dealt) + len(jobs))

        def one(name: str, number: int) -> Run | str:
            nonlocal done
            done += 1
            wait_until_idle(self.patience_s)
            try:
                run = self.measure(name)
            except RunFailed as error:
                say(f"[{done}/{total}] {name}: failed: {error}")
                return str(error)
            beside = (
                f"  (others keep {run['others_cpu']:.1f} CPUs busy)" if run["others_cpu"] > DISTURBED else ""
            )
            say(f"[{done}/{total}, {time.monotonic() - begun:.0f} s] {name}: {told(run)}{beside}")
            return run

        runs, self.missing = interleave([*dealt, *jobs], self.repeats, one)
        self.report(runs)

    def measure(self, name: str) -> Run:
        """One run of a case."""
        kind, terms = name.split("@")
        jobs, batch = (int(word) for word in terms.split("x"))
        wanted: dict[str, Any] = {
            "jobs": jobs,
            "batch": batch,
            "samples": self.samples,
            "seconds": self.seconds,
        }
        if kind.startswith("dealt"):
            module = "benchmarks.host.direct"
            wanted |= {"bytes": BYTES, "sampling": "auto", "alike": kind == "dealt-alike", "settle": 1}
        else:
            module = "benchmarks.host.measure"
            cache = 4 * self.samples * BYTES
            wanted |= {"images": str(self.images), "share": kind == "shared", "cache": cache, "settle": 2}
        environment = {
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]),
            "HEADRACE_RECORD": "0",
        }
        return run_process(
            [sys.executable, "-m", module, json.dumps(wanted)], REPOSITORY, environment, LIMIT_S
        )

    def targets(self, runs: dict[str, list[Run | None]]) -> list[Target]:
        """The wanted numbers."""
        found = []
        for n in self.numbers:
            for size in BATCHES:
                dealt = calm(runs[f"dealt@{n}x{size}"])
                name = f"{n} jobs, batches of {size}"
                found.append(target(f"dealt out, {name}: batches/s", values(dealt, "batches_s"), ">=", DEALT))
                # What another process does beside it does not count here, so this says it on any machine.
                every = [run for run in runs[f"dealt@{n}x{size}"] if run is not None]
                per_batch = values(every, "host_ms")
                found.append(
                    target(f"dealt out, {name}: CPU-ms of the host for a batch", per_batch, "<=", 1e3 / DEALT)
                )
        for n in self.numbers:
            for size in BATCHES:
                shared, own = runs[f"shared@{n}x{size}"], runs[f"own@{n}x{size}"]
                quiet = [
                    (a, b) if a and b and max(a["others_cpu"], b["others_cpu"]) <= DISTURBED else (None, None)
                    for a, b in zip(shared, own, strict=True)
                ]
                left, right = [a for a, _ in quiet], [b for _, b in quiet]
                for what, field in (("all cached", "images_s"), ("first epoch", "first_images_s")):
                    name = f"{n} jobs, batches of {size}, {what}: images/s, sharing over not sharing"
                    found.append(target(name, ratio(left, right, field), ">=", SHARING))
        return found

    def report(self, runs: dict[str, list[Run | None]]) -> None:
        """Print and write."""
        print(f"\n{self.samples} images of {SIDE} x {SIDE} pixels; {self.cpus} CPUs\n")
        rows = [
            [
                "host alone: jobs without workers",
                "batches/s",
                "host CPU-ms/batch",
                "job CPU-ms/batch",
                "first",
            ]
        ]
        rows += [
            [
                name,
                *cells(
                    runs[name],
                    ("batches_s", ",.0f"),
                    ("host_ms", ".3f"),
                    ("job_ms", ".3f"),
                    ("first_host_ms", ".3f"),
                ),
            ]
            for name in runs
            if name.startswith("dealt")
        ]
        print(table(rows))
        rows = [
            [
                "jobs",
                "images/s",
                "batches/s",
                "first epoch",
                "CPU-s/1000",
                "host CPU-ms/batch",
                "decodes/sample",
            ]
        ]
        fields = (
            ("images_s", ",.0f"),
            ("batches_s", ",.0f"),
            ("first_images_s", ",.0f"),
            ("cpu_s_per_1000", ".3f"),
            ("host_ms", ".3f"),
            ("decodes_per_sample", ".2f"),
        )
        rows += [[name, *cells(runs[name], *fields)] for name in runs if not name.startswith("dealt")]
        print(f"\n{table(rows)}")
        for name, reason in self.missing.items():
            print(f"not measured, or not every time: {name}: {reason}")
        result = {
            **header("host", self.quick),
            "settings": {
                "samples": self.samples,
                "side": SIDE,
                "seconds": self.seconds,
                "repeats": self.repeats,
            },
            "missing": self.missing,
            "cases": {name: {"summary": summarise(found), "runs": found} for name, found in runs.items()},
        }
        publish("host", self.quick, result, self.targets(runs))


def told(run: Run) -> str:
    """A run in a few words."""
    if "images_s" not in run:
        return f"{run['batches_s']:,.0f} batches/s, {run['host_ms']:.3f} CPU-ms of the host for each"
    return (
        f"{run['images_s']:,.0f} images/s, first epoch {run['first_images_s']:,.0f}, "
        f"{run['cpu_s_per_1000']:.3f} CPU-s per 1000"
    )


def calm(runs: Sequence[Run | None]) -> list[Run]:
    """The runs that had the machine to themselves."""
    return [run for run in runs if run is not None and run["others_cpu"] <= DISTURBED]


def values(runs: Sequence[Run], field: str) -> list[float]:
    """One number of each run."""
    return [float(run[field]) for run in runs]


def cells(runs: Sequence[Run | None], *fields: tuple[str, str]) -> list[str]:
    """Medians, for people."""
    found = summarise(runs)
    return [format(found[name]["median"], shape) if name in found else "-" for name, shape in fields]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks/host/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 and 4 jobs, one round")
    parser.add_argument("--repeats", type=int, help="rounds (default: 3)")
    parser.add_argument(
        "--jobs", type=int, action="append", help="numbers of jobs (default 1 2 4 8, quick 1 4)"
    )
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds to wait for an idle machine per run"
    )
    HostBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
