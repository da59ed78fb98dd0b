"""Runs the experiments of the papers, and prints the paper's figure beside ours.

    make papers                                         (QUICK=1: smaller, about two minutes)
    python -m benchmarks.papers.bench --only joader-table-1

A disagreement is a row like any other, marked NO; it never makes the command fail. Ctrl-C ends it with what was found
so far, and leaves the results of the last run as they were. ``--only`` renews some experiments and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.common.progress import say
from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.page import write_tables
from benchmarks.papers.registry import EXPERIMENTS
from benchmarks.papers.rows import SHOWN, Row, row_target, show, show_paper

INTERRUPTED = 130
Found = dict[str, list[Row]]
"""The rows of each experiment."""


def run_experiments(
    experiments: Sequence[Experiment], quick: bool, bar: Bar, found: Found, seconds: dict[str, float]
) -> None:
    """Run them one after the other; what is found goes into ``found``, also when this is interrupted."""
    for experiment in experiments:
        rows = found[experiment.name] = []
        bar.begin(experiment.title)
        begun = time.monotonic()
        for row in experiment.run(quick, bar):
            rows.append(row)  # noqa: PERF402  (one by one: those before an interruption stay)
        seconds[experiment.name] = time.monotonic() - begun


def result_table(found: Found) -> str:
    """All rows, for people."""
    lines = [("paper", "experiment", "quantity", "paper's", "ours", "how", "agrees", "note")]
    for name, rows in found.items():
        one = EXPERIMENTS[name]
        lines += [
            (one.paper, one.where, row.quantity, show_paper(row), show(row.ours, row.unit), row.how,
             SHOWN[row.agrees], row.note)
            for row in rows
        ]  # fmt: skip
    return report.table(lines, text=(0, 1, 2, 5, 7))


def summary(found: Found) -> str:
    """How many rows agree."""
    kinds = [row.agrees for rows in found.values() for row in rows]
    return (
        f"{kinds.count('yes')} agree, {kinds.count('no')} do not, "
        f"{kinds.count('later')} come with later capabilities, {kinds.count('absent')} were not measured, "
        f"{kinds.count('beside')} have nothing to agree with"
    )


def targets_of(found: Found) -> list[report.Target]:
    """Every row that was compared, as a target."""
    every = [
        row_target(f"{EXPERIMENTS[name].title}: {row.quantity} ({row.how})", row)
        for name, rows in found.items()
        for row in rows
    ]
    return [one for one in every if one is not None]


def read_rows(result: dict[str, Any]) -> Found:
    """The rows of a result, of those experiments that there still are."""
    return {
        name: [Row(**row) for row in result["experiments"][name]["rows"]]
        for name in EXPERIMENTS
        if name in result["experiments"]
    }


def merge(old: dict[str, Any] | None, found: Found, seconds: dict[str, float], quick: bool) -> dict[str, Any]:
    """The result: what was found now, and what an earlier one has of the experiments that were not run."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = {} if old is None else old["experiments"]
    experiments = {}
    for name, experiment in EXPERIMENTS.items():
        if name in found:
            experiments[name] = {
                "paper": experiment.paper,
                "where": experiment.where,
                "about": experiment.about,
                "when": when,
                "seconds": round(seconds[name], 1),
                "rows": [asdict(row) for row in found[name]],
            }
        elif name in kept:
            experiments[name] = kept[name]
    return {**report.header("papers", quick), "experiments": experiments}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smaller; results go to papers.quick.json")
    parser.add_argument(
        "--only", action="append", default=[], choices=list(EXPERIMENTS), metavar="NAME",
        help=f"one experiment, may be given several times: {', '.join(EXPERIMENTS)}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    quick = options.quick or os.environ.get("QUICK", "") not in ("", "0")
    chosen = [one for name, one in EXPERIMENTS.items() if not options.only or name in options.only]
    found: Found = {}
    seconds: dict[str, float] = {}
    bar = Bar(len(chosen))
    try:
        run_experiments(chosen, quick, bar, found, seconds)
    except KeyboardInterrupt:
        bar.clear()
        print(result_table(found))
        say("ended early: this is what was found so far; nothing was written")
        return INTERRUPTED
    bar.clear()
    print(result_table(found))
    print(f"\n{summary(found)}")
    path = report.RESULTS / ("papers.quick.json" if quick else "papers.json")
    write_result(path, found, seconds, quick, keep=bool(options.only))
    print(f"\nwritten: benchmarks/results/{path.name}")
    if not quick:
        write_tables()
    return 0


def write_result(path: Path, found: Found, seconds: dict[str, float], quick: bool, *, keep: bool) -> None:
    """Write the results in the house's format; ``keep``: with the rows of experiments that were not run."""
    old = json.loads(path.read_text(encoding="utf-8")) if keep and path.exists() else None
    result = merge(old, found, seconds, quick)
    report.write_json(path, result, targets_of(read_rows(result)))


if __name__ == "__main__":
    sys.exit(main())
