"""Simulates what ``make bench-sharing`` measured last, and says how far off it is; and the largest scenario.

    make bench-simulate          (QUICK=1: few cases, and a cluster of an eighth)

Costs are fitted to the processor time and the rates of a few cases of headrace in ``results/sharing.json``
(``cases.FITTED``), and every case is then simulated with them in the same set-up; three seeds each. Only cases that
were held out count for the targets. Rates are compared as multiples of one job alone with nothing cached, so that how
fast the machine was that day does not matter. Runs that were disturbed do not count for those, and what little others
used of the machine is allowed for.
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

import msgspec
from benchmarks.common.progress import say
from benchmarks.common.report import RESULTS, Target, header, publish, table, target
from benchmarks.common.rounds import undisturbed
from benchmarks.simulate.cases import ALONE, FITTED, Measured, group_of, scenario_of
from benchmarks.simulate.fit import GUESSES, Equation, fit, nearest

from headrace.simulate import Costs, Result, read_scenario, simulate

SEEDS = 3
ROUNDS = 2
"""How often costs are fitted: how often each is paid depends a little on the others."""
NOISES = (0.0, 0.1, 0.2, 0.3, 0.4)
WITHIN = 0.05
FIELDS = ("decodes_per_sample", "hit_rate", "speed")
"""That have targets; ``cpu_s_per_1000`` is what was fitted."""
NAMES = {
    "decodes_per_sample": "decodes per sample and epoch",
    "hit_rate": "hit rate",
    "speed": "images/s over one job alone",
}
QUICK_CLUSTER = ("nodes.count=8", "data.samples=1750000", "storage.rate=5GB")


def run_case(document: dict[str, Any], costs: Costs, seed: int = 0) -> Result:
    """One simulation of a case."""
    return simulate(read_scenario({**document, "costs": msgspec.to_builtins(costs), "seed": seed}))


def fit_costs(result: Measured) -> Costs:
    """The costs that explain processor time and rates of the cases that are for it."""
    cases = {case["name"]: case for case in result["cases"] if case["name"] in FITTED}
    documents = {name: scenario_of(case, result) for name, case in cases.items()}
    missing = [name for name in FITTED if documents.get(name) is None]
    if missing:
        raise ValueError(f"there is no measurement of {', '.join(missing)}, to which costs are fitted")
    costs = msgspec.structs.replace(Costs(), noise=0.0, **GUESSES)

    def run_all() -> dict[str, Result]:
        return {name: run_case(document, costs) for name, document in documents.items() if document}

    for number in range(ROUNDS):
        say(f"fitting costs, {number + 1} of {ROUNDS}")
        equations = [
            Equation(
                {cost: often / found.images for cost, often in found.paid.items()},
                cases[name]["summary"]["cpu_s_per_1000"]["median"] / 1000,
            )
            for name, found in run_all().items()
        ]
        costs = msgspec.structs.replace(fit(equations), noise=0.0)
    rates: dict[float, list[tuple[float, float]]] = {}
    measured = {name: quiet_rate(case, result["machine"]["cpus"]) for name, case in cases.items()}
    for noise in NOISES:
        say(f"rates with noise {noise:g}")
        costs = msgspec.structs.replace(costs, noise=noise)
        rates[noise] = [
            (found.images_s, measured[name]) for name, found in run_all().items() if measured[name]
        ]
    return msgspec.structs.replace(costs, noise=nearest(rates))


def quiet_rate(case: Measured, cpus: int) -> float:
    """Images/s of a case as it was measured, 0 where all runs were disturbed."""
    quiet = [whole_rate(run, cpus) for run in undisturbed(case["runs"]) if run is not None]
    return statistics.median(quiet) if quiet else 0.0


def simulate_case(document: dict[str, Any], costs: Costs, seeds: int) -> dict[str, float]:
    """The medians of a case over seeds."""
    found = [run_case(document, costs, seed) for seed in range(seeds)]
    fields = ("images_s", "decodes_per_sample", "hit_rate", "cpu_s_per_1000")
    return {field: statistics.median(getattr(one, field) for one in found) for field in fields}


def compare(result: Measured, costs: Costs, *, seeds: int, quick: bool) -> list[dict[str, Any]]:
    """Every case, as measured and as simulated with these costs."""
    rows: list[dict[str, Any]] = []
    cpus = result["machine"]["cpus"]
    for case in result["cases"]:
        document = scenario_of(case, result)
        fitted = case["name"] in FITTED
        if document is None or (quick and not fitted and case["jobs"] not in (1, 4)):
            continue
        say(f"simulating {case['name']}")
        measured = {field: item["median"] for field, item in case["summary"].items()}
        measured["images_s"] = quiet_rate(case, cpus)
        simulated = simulate_case(document, costs, seeds)
        rows.append({"name": case["name"], "fitted": fitted, "measured": measured, "simulated": simulated})
    alone = next((row for row in rows if row["name"] == ALONE), None)
    for row in rows:
        for kind in ("measured", "simulated"):
            if alone is not None and alone[kind]["images_s"]:
                row[kind]["speed"] = row[kind]["images_s"] / alone[kind]["images_s"]
        row["errors"] = {
            field: row["simulated"][field] / row["measured"][field] - 1
            for field in (*FIELDS, "cpu_s_per_1000")
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
    heads = ("decodes", "hit rate", "speed", "CPU")
    lines = [["", "", *(cell for head in heads for cell in (head, "simulated", "off"))]]
    for row in rows:
        cells = [row["name"], "fitted" if row["fitted"] else "held out"]
        for field in (*FIELDS, "cpu_s_per_1000"):
            cells += [f"{row[kind].get(field, 0):.3f}" for kind in ("measured", "simulated")]
            cells.append(f"{row['errors'][field]:+.1%}" if field in row["errors"] else "")
        lines.append(cells)
    return table(lines, text=(0, 1))


def errors_by_group(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """For each policy and scenario the largest error of the cases that were held out, and which has it."""
    rows = [row for row in rows if not row["fitted"]]
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
    try:
        costs = fit_costs(measured)
    except ValueError as error:
        say(str(error))
        return
    shown = ", ".join(f"{name} {1e6 * getattr(costs, name):.3g}" for name in GUESSES)
    print(f"costs, in microseconds: {shown}; noise {costs.noise:g}")
    rows = compare(measured, costs, seeds=1 if quick else SEEDS, quick=quick)
    print(case_table(rows))
    targets = errors_by_group(rows)
    result = {**header("simulate", quick), "measured_when": measured["when"]}
    result |= {"costs": msgspec.to_builtins(costs), "cases": rows}
    if not options.no_cluster:
        say("simulating the cluster")
        result["cluster"] = run_cluster(quick)
        targets += cluster_targets(result["cluster"], quick)
    publish("simulate", quick, result, targets)


if __name__ == "__main__":
    main()
