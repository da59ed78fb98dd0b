"""The import changed and nothing else: ImageFolder with the usual transforms through torch's loader and through ours.

With torchvision where it is installed, else with its pipeline written out with torch and Pillow.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.photos import PhotosUnavailable, describe_photos, make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import header, publish, table, target
from benchmarks.common.rounds import RunFailed, run_process

REPOSITORY = Path(__file__).resolve().parents[2]
LOADERS = ("torch", "headrace", "headrace, cached", "headrace, native=False")
LIMIT_S = 400


def measure(root: Path, loader: str, transforms: str, args: argparse.Namespace) -> dict[str, Any] | str:
    """One job; why there is none."""
    epochs = 3 if loader == "headrace, cached" else 2
    command = [sys.executable, "-m", "benchmarks.dropin.job", str(root), loader, "--transforms", transforms]
    command += ["--workers", str(args.workers), "--epochs", str(epochs), "--batch", str(args.batch)]
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    environment = {"PYTHONPATH": paths, "HEADRACE_RECORD": "0", "OMP_NUM_THREADS": "1"}
    try:
        found = run_process(command, REPOSITORY, environment, LIMIT_S)
    except RunFailed as error:
        return str(error)
    later = found["epochs"][1:]
    found["rate"] = sum(epoch["images"] for epoch in later) / sum(epoch["seconds"] for epoch in later)
    found["first"] = found["epochs"][0]["images"] / found["epochs"][0]["seconds"]
    return found


def main() -> None:
    """Run the benchmark. What it finds never makes it fail."""
    parser = argparse.ArgumentParser(prog="benchmarks/dropin/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1000 photos, one round")
    parser.add_argument("--repeats", type=int)
    parser.add_argument(
        "--photos", type=Path, help="a folder of class folders (default: the benchmarks' own)"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 3)
    try:
        root = args.photos or make_photos(REPOSITORY / ".data", 1000 if args.quick else 4000)
    except PhotosUnavailable as error:
        print(f"Nothing was measured. {error}", file=sys.stderr)
        return
    there = importlib.util.find_spec("torchvision") is not None
    pipelines = ["torchvision v1", "torchvision v2"] if there else ["written out"]
    runs: dict[tuple[str, str], list[Any]] = {}
    for number in range(repeats):
        for transforms in pipelines:
            for loader in LOADERS:
                found = measure(root, loader, transforms, args)
                runs.setdefault((transforms, loader), []).append(found)
                told = (
                    found
                    if isinstance(found, str)
                    else f"{found['rate']:,.0f} images/s, first epoch {found['first']:,.0f}"
                )
                say(f"[{number + 1}/{repeats}] {transforms}, {loader}: {told}")
    report(runs, pipelines, args, root)


def report(
    runs: dict[tuple[str, str], list[Any]], pipelines: list[str], args: argparse.Namespace, root: Path
) -> None:
    """Print, and write."""
    rows = [("transforms", "loader", "images/s", "first epoch", "times torch's")]
    targets = []
    for transforms in pipelines:
        ratios: dict[str, list[float]] = {}
        base = runs[transforms, "torch"]
        for loader in LOADERS:
            pairs = [
                (one, its)
                for one, its in zip(runs[transforms, loader], base, strict=True)
                if not isinstance(one, str) and not isinstance(its, str)
            ]
            ratios[loader] = [one["rate"] / its["rate"] for one, its in pairs]
            for one, its in pairs[-1:]:
                rows.append(
                    (
                        transforms,
                        loader,
                        f"{one['rate']:,.0f}",
                        f"{one['first']:,.0f}",
                        f"{one['rate'] / its['rate']:.2f}",
                    )
                )
        targets += [
            target(f"{transforms}: import changed, over torch", ratios["headrace"], ">=", 4.0),
            target(
                f"{transforms}: with cache=, from the second epoch, over torch",
                ratios["headrace, cached"],
                ">=",
                8.0,
            ),
        ]
    print(f"\n{table(rows, text=(0, 1))}")
    result = {
        **header("dropin", args.quick),
        "settings": {"workers": args.workers, "batch": args.batch, "output": "float32, normalised"},
        "photos": describe_photos(root) if args.photos is None else {"root": str(root)},
        "runs": {f"{transforms}: {loader}": found for (transforms, loader), found in runs.items()},
    }
    publish("dropin", args.quick, result, targets)


if __name__ == "__main__":
    main()
