"""Simulates what ``make bench-sharing`` measured last, and says how far off it is; and the largest scenario.

    make bench-simulate          (QUICK=1: few cases, and a cluster of an eighth)

Every case of headrace in ``results/sharing.json`` is simulated in the same set-up. Costs are the simulator's
defaults, the same for all cases; three seeds each. Rates are compared as multiples of one job alone with nothing
cached, so that how fast the machine was that day does not matter. Runs that were disturbed do not count for those,
and what little others used of the machine is allowed for.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common.progress import say
from benchmarks.common.report import RESULTS, Target, header, publish, table, target
from benchmarks.common.rounds import undisturbed
from benchmarks.simulate.cases import Measured, group_of, scenario_of

from headrace.simulate import read_scenario, simulate

ALONE = "headrace@1"
SEEDS = 3
WITHIN = 0.05
FIELDS = ("decodes_per_sample", "hit_rate", "speed")
NAMES = {
    "decodes_per_sample": "decodes per sample and epoch",
    "hit_rate": "hit rate",
    "speed": "images/s over one job alone",
}
QUICK_CLUSTER = ("nodes.count=8", "data.samples=1750000", "storage.rate=5GB")


def simulate_case(document: dict[str, Any], seeds: int) -> dict[str, float]:
    """The medians of a case over seeds."""
    found = [simulate(read_scenario({**document, "seed": seed})) for seed in range(seeds)]
    fields = ("images_s", "decodes_per_sample", "hit_rate", "cpu_s_per_1000")
    return {field: statistics.median(getattr(one, field) for one in found) for field in fields}


def compare(result: Measured, *, seeds: int, quick: bool) -> list[dict[str, Any]]:
    """Every case, as measured and as simulated."""
    rows: list[dict[str, Any]] = []
    cpus = result["machine"]["cpus"]
    for case in result["cases"]:
        document = scenario_of(case, result)
        if document is None or (quick and case["jobs"] not in (1, 4)):
            continue
        say(f"simulating {case['name']}")
        measured = {field: item["median"] for field, item in case["summary"].items()}
        quiet = [whole_rate(run, cpus) for run in undisturbed(case["runs"]) if run is not None]
        measured["images_s"] = statistics.median(quiet) if quiet else 0.0
        rows.append({"name": case["name"], "measured": measured, "simulated": simulate_case(document, seeds)})
    alone = next((row for row in rows if row["name"] == ALONE), None)
    for row in rows:
        for kind in ("measured", "simulated"):
            if alone is not None and alone[kind]["images_s"]:
                row[kind]["speed"] = row[kind]["images_s"] / alone[kind]["images_s"]
        row["errors"] = {
            field: row["simulated"][field] / row["measured"][field] - 1
            for field in FIELDS
            if row["measured"].get(field) and not (field == "speed" and row["name"] == ALONE)
        }
    return rows


def whole_rate(run: Measured, cpus: int) -> float:
    """Images/s of a run that had all CPUs to itself.

    Something else had a part of them meanwhile (``others_cpu``, up to 0.2). A run that used all that was left
    would have used that, too; one that is paced would not.
    """
    left = cpus - run["others_cpu"]
    used = run["images_s"] * run["cpu_s_per_1000"] / 1000
    rate: float = run["images_s"]
    return rate * cpus / left if used > 0.9 * left else rate


def case_table(rows: Sequence[dict[str, Any]]) -> str:
    """Measured, simulated, and the difference."""
    heads = ("decodes", "hit rate", "speed")
    lines = [["", *(cell for head in heads for cell in (head, "simulated", "off"))]]
    for row in rows:
        cells = [row["name"]]
        for field in FIELDS:
            cells += [f"{row[kind].get(field, 0):.3f}" for kind in ("measured", "simulated")]
            cells.append(f"{row['errors'][field]:+.1%}" if field in row["errors"] else "")
        lines.append(cells)
    return table(lines)


def errors_by_group(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """For each policy and scenario the largest error, with the case that has it."""
    found = []
    for field in FIELDS:
        for group in dict.fromkeys(group_of(row["name"]) for row in rows):
            errors = {
                row["name"]: abs(row["errors"][field])
                for row in rows
                if group_of(row["name"]) == group and field in row["errors"]
            }
            if errors:
                worst = max(errors, key=lambda name: errors[name])
                note = f"largest of {len(errors)}: {worst}" if len(errors) > 1 else ""
                found.append(target(f"{NAMES[field]}, {group}: off by", [errors[worst]], "<=", WITHIN, note))
    return found


def run_cluster(quick: bool) -> dict[str, Any]:
    """The largest scenario, in a process of its own."""
    settings = [word for setting in (QUICK_CLUSTER if quick else ()) for word in ("--set", setting)]
    command = [sys.executable, "-m", "headrace.cli", "simulate", "cluster", "--json", "-", *settings]
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    peak = 1024 * used.ru_maxrss
    result = json.loads(ran.stdout) if ran.returncode == 0 else {}
    for field in ("course", "nodes"):
        result.pop(field, None)
    return {
        "status": ran.returncode,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_bytes": peak,
        "result": result,
    }


def cluster_targets(cluster: dict[str, Any], quick: bool) -> list[Target]:
    """Time and memory of the largest scenario."""
    name = "an eighth of the cluster" if quick else "64 nodes, 8 GPUs each, 14 million samples"
    why = "" if cluster["status"] == 0 else f"it ended with status {cluster['status']}"
    seconds = [] if why else [cluster["seconds"]]
    peak = [] if why else [cluster["peak_bytes"] / (1 << 30)]
    return [
        target(
            f"{name}: seconds to simulate",
            seconds,
            "<=",
            600,
            why or f"{cluster['cpu_seconds']:.0f} s of CPU",
        ),
        target(f"{name}: peak memory, GiB", peak, "<=", 4, why),
    ]


def main() -> None:
    """Simulate, print, write. What it finds never makes it fail."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few cases, and a cluster of an eighth")
    parser.add_argument("--against", default=str(RESULTS / "sharing.json"), help="what was measured")
    parser.add_argument("--no-cluster", action="store_true", help="leave out the largest scenario")
    options = parser.parse_args()
    quick = options.quick or os.environ.get("QUICK", "") not in ("", "0")
    try:
        with open(options.against, encoding="utf-8") as file:
            measured = json.load(file)
    except FileNotFoundError:
        say(f"there is no {options.against} to compare with; make bench-sharing writes one")
        return
    rows = compare(measured, seeds=1 if quick else SEEDS, quick=quick)
    print(case_table(rows))
    targets = errors_by_group(rows)
    result = {**header("simulate", quick), "measured_when": measured["when"], "cases": rows}
    if not options.no_cluster:
        say("simulating the cluster")
        result["cluster"] = run_cluster(quick)
        targets += cluster_targets(result["cluster"], quick)
    publish("simulate", quick, result, targets)


if __name__ == "__main__":
    main()
