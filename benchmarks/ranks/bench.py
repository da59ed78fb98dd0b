"""Ranks in lockstep on one machine: who waits for whom where storage is skewed, and where the bottleneck moves.

Parts: ``tails`` (one sample in a hundred is slow, one in a thousand very slow), ``directory`` (one folder is slow),
``shift`` (storage becomes slow in mid-run, then decoding heavy).
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from benchmarks.common.bench import REPOSITORY
from benchmarks.common.environments import PEERS, install_peers
from benchmarks.common.photos import PhotosUnavailable
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table
from benchmarks.common.rounds import Run, RunFailed, summarise
from benchmarks.ranks import shift, storage
from benchmarks.ranks.contenders import BY_NAME, ENTRIES
from benchmarks.ranks.pictures import SMALL
from benchmarks.ranks.runs import HEADROOM, WARM, Node, Runs
from benchmarks.ranks.targets import at_once, best_torch, compute

LOCKSTEP = ("tails", "directory")
PARTS = (*LOCKSTEP, "shift")
RANKS = (4, 8)
SHIFT_RANKS = (1, 4)
READY = "ready"


class RanksBench:
    """One invocation."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick = bool(args.quick)
        self.repeats = args.repeats or (1 if self.quick else 2)
        self.steps = args.steps or (150 if self.quick else 600)
        self.parts = [part for part in PARTS if not args.only or part in args.only]
        self.ranks: list[int] | None = args.ranks or None
        self.partly = bool(args.only or args.ranks or args.contender)
        self.node = Node(args.patience, args.photos, args.batch)
        self.names = [
            entry.name
            for entry in ENTRIES
            if (entry.name in args.contender if args.contender else entry.name != READY)
        ]
        self.steps_s: dict[int, dict[str, float]] = {}
        self.lockstep: dict[str, Runs] = {}
        self.shifts: dict[int, Runs] = {}
        self.ready: dict[int, Run] = {}

    def main(self) -> None:
        """Run the benchmark. What it finds never makes it fail."""
        try:
            self.node.prepare()
            self.peers()
            for part in self.parts:
                if part == "shift":
                    for ranks in self.ranks or SHIFT_RANKS:
                        self.shifts[ranks] = shift.measure(self.node, ranks, self.quick, self.repeats)
                else:
                    for ranks in self.ranks or RANKS:
                        self.run_lockstep(part, ranks)
        except (PhotosUnavailable, RunFailed) as error:
            print(f"Nothing more was measured. {error}", file=sys.stderr)
        self.report()

    def peers(self) -> None:
        """Install what is missing; who cannot be is left out and named."""
        wanted = tuple(
            peer for peer in PEERS if peer.name in self.names and BY_NAME[peer.name].environment == "peers"
        )
        if not wanted or not set(self.parts) & set(LOCKSTEP):
            return
        try:
            failed = install_peers(REPOSITORY, wanted)
        except PackageNotFoundError as error:
            # Peers get the versions of the libraries that are here; without these there is nothing to compare.
            failed = {peer.name: f"not installed here: {error.name}" for peer in wanted}
        for name, reason in failed.items():
            self.node.missing[name] = reason
            self.names.remove(name)

    def step(self, ranks: int) -> float:
        """Seconds of a training step with so many ranks; measured once."""
        if ranks not in self.steps_s:
            self.steps_s[ranks] = found = self.node.calibrate(ranks)
            say(
                f"{ranks} ranks: {1000 * found['cpu_s']:.2f} CPU-ms an image, "
                f"so a training step takes {1000 * found['step_s']:.0f} ms"
            )
            # What the machine itself does to ranks that wait for nothing.
            self.ready[ranks] = self.node.run(
                READY, scenario="fast", ranks=ranks, steps=100, step_s=found["step_s"]
            )
        return self.steps_s[ranks]["step_s"]

    def run_lockstep(self, scenario: str, ranks: int) -> None:
        """All rounds of one scenario with one number of ranks."""
        step_s = self.step(ranks)

        def measure(name: str, number: int) -> Run:
            return self.node.run(
                name, scenario=scenario, ranks=ranks, steps=self.steps, step_s=step_s, seed=number + 1
            )

        names = list(self.names)
        if "torch-few" in names and "torch-four" in names and self.node.cpus // ranks == 4:
            names.remove("torch-few")  # the same
        case = f"{scenario}, {ranks} ranks"
        self.lockstep[case] = self.node.rounds(case, names, self.repeats, measure)

    def report(self) -> None:
        """Print and write."""
        targets: list[Target] = []
        for case, runs in self.lockstep.items():
            print(f"\n{case}\n{show(runs)}")
            targets += compute(case, runs, self.node.cpus)
        for ranks, runs in self.shifts.items():
            print(f"\nshift, {ranks} rank{'s' if ranks > 1 else ''}\n{shift.show(runs)}")
            targets += shift.targets(ranks, runs)
        for name, reason in self.node.missing.items():
            print(f"not measured: {name}: {reason}")
        every = {**self.lockstep, **{f"shift, {ranks}": runs for ranks, runs in self.shifts.items()}}
        result = {
            **header("ranks", self.quick),
            "settings": {
                "batch": self.node.batch,
                "pictures": {"of": self.node.made_of, "pixels": f"{SMALL[0]}x{SMALL[1]}"},
                "steps": self.steps,
                "warm": WARM,
                "repeats": self.repeats,
                "headroom": HEADROOM,
                "barrier": "pipes",
                "by_ranks": self.steps_s,
                "storage": {
                    "usual_s": storage.USUAL_S,
                    "rare": [storage.RARE, storage.RARE_S],
                    "rarer": [storage.RARER, storage.RARER_S],
                    "slow_directory_s": storage.SLOW_S,
                },
                "shift": {"latency_s": shift.LATENCY_S, "slower": shift.SLOWER, "phases": shift.PHASES},
            },
            "missing": self.node.missing,
            "ready": self.ready,
            "cases": [describe(case, runs) for case, runs in every.items()],
        }
        publish("ranks-" + "-".join(self.parts) if self.partly else "ranks", self.quick, result, targets)


def describe(case: str, runs: Runs) -> dict[str, Any]:
    """A case, as it is written."""
    return {
        "case": case,
        "contenders": [
            {"name": name, "summary": summarise(row), "runs": row} for name, row in runs.items() if any(row)
        ],
    }


def show(runs: Runs) -> str:
    """The medians, for people."""
    rows = [["", "images/s", "of the most", "imbalanced", "p50 ms", "p95", "p99", "CPU-s/1000", "at once"]]
    torch = best_torch(runs)
    fields = (
        ("images_s", "{:,.0f}", 1.0),
        ("of_the_most", "{:.0f} %", 100.0),
        ("imbalanced", "{:.1f} %", 100.0),
        ("p50_ms", "{:.0f}", 1.0),
        ("p95_ms", "{:.0f}", 1.0),
        ("p99_ms", "{:.0f}", 1.0),
        ("cpu_s_per_1000", "{:.2f}", 1.0),
    )
    for name, row in runs.items():
        if not any(row):
            continue
        found = summarise(row)
        label = BY_NAME[name].label + (" (the better)" if name == torch else "")
        cells = [shape.format(scale * found[field]["median"]) for field, shape, scale in fields]
        rows.append([label, *cells, str(max(at_once(run) for run in row if run is not None))])
    return table(rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks/ranks/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="150 steps, one round, few fixed divisions")
    parser.add_argument("--repeats", type=int, help="rounds (default 2, quick 1)")
    parser.add_argument("--steps", type=int, help="steps that count (default 600, quick 150)")
    parser.add_argument(
        "--only", action="append", default=[], choices=PARTS, help="measure these parts alone"
    )
    parser.add_argument("--ranks", action="append", default=[], type=int, help="numbers of ranks")
    parser.add_argument("--contender", action="append", default=[], choices=sorted(BY_NAME))
    parser.add_argument(
        "--photos", type=Path, help="a folder of class folders (default: the benchmarks' own)"
    )
    parser.add_argument("--batch", type=int, help="of a rank (default: 32, more with more than four CPUs)")
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds to wait for an idle machine per run"
    )
    RanksBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
