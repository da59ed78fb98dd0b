"""Do models learn as well from shared samples? Fashion-MNIST through torch's loader and through headrace's policies.

    python benchmarks/learning.py               (QUICK=1 for two seeds on fewer images)

Four jobs train at the same time, each its own small network from its own seed, on the same images: through torch's
DataLoader, and through headrace with a shared cache for a fifth of the decoded images and each way to draw. That is
repeated with five sets of seeds. A loader teaches as well as torch's if its mean test accuracy is at most three
standard errors away from torch's. Of four comparisons, one will then fail by chance in about a hundred runs; and a
target of its own asks that these standard errors are small, so that a difference worth speaking of would be seen.

The orders that the jobs really saw are tested too: uniform and dependent sampling promise that every position of
the epoch is equally likely for every sample, whatever came before. The others do not, and are reported.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks.common.progress import say  # noqa: E402
from benchmarks.common.report import Target, header, publish, table, target  # noqa: E402
from benchmarks.training.analyse import Accuracy, Positions  # noqa: E402
from benchmarks.training.data import DataUnavailable, Fashion, load  # noqa: E402
from benchmarks.training.jobs import JobFailed, Outcome, run_together  # noqa: E402
from benchmarks.training.loaders import BATCH, CACHED, LABELS, LOADERS, SAMPLINGS  # noqa: E402

JOBS = 4
LIMIT_S = 1200
MOST_ERRORS = 3.0
SMALL_ERROR = 0.3
"""Points of accuracy; single trainings differ by more than this from each other."""
LEAST_P = 0.001
PROMISED = ("uniform", "dependent")
Outcomes = dict[str, list[list[Outcome]]]


def measure(data: Fashion, names: list[str], seeds: int, epochs: int) -> tuple[Outcomes, dict[str, str]]:
    """All loaders with one set of seeds, then with the next; and why, for those that failed."""
    outcomes: Outcomes = {name: [] for name in names}
    failed: dict[str, str] = {}
    done, began = 0, time.monotonic()
    for seed in range(seeds):
        for name in names:
            done += 1
            if name in failed:
                continue
            mine = [1000 * (seed + 1) + job for job in range(JOBS)]
            try:
                found = run_together(data, name, mine, epochs, LIMIT_S)
            except JobFailed as error:
                failed[name] = str(error)
                say(f"[{done}/{len(names) * seeds}] {name}: failed: {error}")
                continue
            outcomes[name].append(found)
            accuracies = ", ".join(f"{100 * outcome.accuracy:.2f}" for outcome in found)
            seconds = max(outcome.seconds for outcome in found)
            say(
                f"[{done}/{len(names) * seeds}, {time.monotonic() - began:.0f} s] {name}: "
                f"{accuracies} %, {seconds:.1f} s"
            )
    return {name: found for name, found in outcomes.items() if name not in failed}, failed


def analyse(outcomes: Outcomes, size: int, epochs: int) -> dict[str, dict[str, Any]]:
    """A row of numbers for each loader."""
    accuracies = {name: Accuracy.of(found) for name, found in outcomes.items()}
    base = accuracies.get("torch")
    rows: dict[str, dict[str, Any]] = {}
    for name, accuracy in accuracies.items():
        every = [outcome for together in outcomes[name] for outcome in together]
        rows[name] = {"accuracy": vars(accuracy), "positions": vars(Positions.of(outcomes[name], size))}
        rows[name]["runs"] = [[outcome.accuracy for outcome in together] for together in outcomes[name]]
        rows[name]["seconds"] = [max(o.seconds for o in together) for together in outcomes[name]]
        if all(outcome.decoded is not None for outcome in every):
            total = sum(outcome.decoded or 0 for outcome in every)
            rows[name]["decodes_per_sample_and_epoch"] = total / (size * epochs * len(outcomes[name]))
        if base is not None and name != "torch":
            error = math.hypot(accuracy.error, base.error)
            difference = accuracy.mean - base.mean
            # Equal accuracies of all runs have no error: then any difference is one, and none is none.
            away = abs(difference) / error if error else (math.inf if difference else 0.0)
            rows[name]["difference"] = {"points": difference, "error": error, "errors_away": away}
    return rows


def targets(rows: dict[str, dict[str, Any]]) -> list[Target]:
    """What is promised."""
    found = []
    for name in SAMPLINGS:
        compared = rows.get(name, {}).get("difference")
        found.append(
            target(
                f"{name}: accuracy from torch's, in standard errors",
                [compared["errors_away"]] if compared else [],
                "<=",
                MOST_ERRORS,
                f"{compared['points']:+.2f} ± {compared['error']:.2f} points" if compared else "not measured",
            )
        )
    errors = [rows[name]["difference"]["error"] for name in SAMPLINGS if "difference" in rows.get(name, {})]
    name = "largest of these standard errors, points"
    found.append(target(name, [max(errors)] if errors else [], "<=", SMALL_ERROR))
    for name in PROMISED:
        ps = [rows[name]["positions"]["p"]] if name in rows else []
        found.append(target(f"{name}: p-value of uniform positions", ps, ">=", LEAST_P))
    for name in SAMPLINGS:
        wrong = [rows[name]["positions"]["wrong"]] if name in rows else []
        found.append(target(f"{name}: samples not given exactly once an epoch", wrong, "<=", 0))
    return found


def loader_table(rows: dict[str, dict[str, Any]]) -> str:
    """The numbers, for people."""
    lines = [
        ["", "accuracy %", "deviation", "from torch", "std. error", "within noise", "chi2/dof", "p", "first again",
         "decodes", "s"]
    ]  # fmt: skip
    for name, row in rows.items():
        accuracy, positions, compared = row["accuracy"], row["positions"], row.get("difference")
        decodes = row.get("decodes_per_sample_and_epoch")
        lines.append(
            [
                LABELS[name],
                f"{accuracy['mean']:.2f}",
                f"{accuracy['deviation']:.2f}",
                f"{compared['points']:+.2f}" if compared else "-",
                f"{compared['error']:.2f}" if compared else "-",
                ("yes" if compared["errors_away"] <= MOST_ERRORS else "NO") if compared else "-",
                f"{positions['chi2']:.2f}",
                f"{positions['p']:.2g}",
                f"{positions['again']:.1%}",
                "-" if decodes is None else f"{decodes:.2f}",
                f"{sum(row['seconds']) / len(row['seconds']):.1f}",
            ]
        )
    return table(lines)


def main() -> None:
    """Run the benchmark. What it finds never makes it fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, fewer images; as QUICK=1")
    parser.add_argument("--seeds", type=int, help="sets of seeds (default 5, quick 2)")
    parser.add_argument("--only", action="append", choices=list(LOADERS), help="run these alone")
    args = parser.parse_args()
    quick = args.quick or os.environ.get("QUICK", "") not in ("", "0")
    count, epochs, seeds = (3000, 4, 2) if quick else (8000, 6, 5)
    seeds = args.seeds or seeds
    names = args.only or ["torch", *SAMPLINGS]
    try:
        data = load(REPOSITORY, count)
    except DataUnavailable as error:
        print(f"Nothing was measured. {error}", file=sys.stderr)
        return
    outcomes, failed = measure(data, names, seeds, epochs)
    rows = analyse(outcomes, count, epochs)
    settings = {
        "data": "Fashion-MNIST (Debian's dataset-fashion-mnist)",
        "images": count,
        "test_images": len(data.test_labels),
        "epochs": epochs,
        "batch": BATCH,
        "jobs": JOBS,
        "seeds": seeds,
        "cached_share": CACHED,
        "within_noise": f"at most {MOST_ERRORS:g} standard errors of the difference",
    }
    print(
        f"\n{count} images of Fashion-MNIST, {epochs} epochs, {JOBS} jobs at a time, {seeds} sets of seeds; "
        f"cache for {CACHED:.0%} of the decoded images\n"
    )
    if rows:
        print(loader_table(rows))
        print(
            "\nchi2/dof, p: positions of samples in the epochs; first again: share of an epoch's first quarter that"
            "\nwas in the one before too (random: 25 %); decodes: per sample and epoch of one job, over all jobs;"
            "\ns: of one training, with all jobs running"
        )
    for name, reason in failed.items():
        print(f"not measured: {LABELS[name]}: {reason}")
    result = {
        **header("learning", quick),
        "settings": settings,
        "loaders": [{"name": name, "label": LABELS[name], **row} for name, row in rows.items()],
        "failed": failed,
    }
    publish("learning", quick, result, targets(rows))


if __name__ == "__main__":
    main()
