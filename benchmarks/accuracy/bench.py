"""What a ResNet-18 learns from real pictures through torch's loader and through headrace's, the import changed only.

With torchvision's ImageFolder and v2 transforms where torchvision is installed, else with its pipeline written out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import data
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table
from benchmarks.common.rounds import RunFailed, run_process

REPOSITORY = Path(__file__).resolve().parents[2]
LOADERS = ("torch", "headrace")
WITHIN = 0.5
"""Points by which accuracies may differ in any case."""
LIMIT_S = 1800
FIELDS = ("accuracy", "images_s")


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    train: int
    test: int
    stored: int
    """Pixels of a side, as the files have it."""
    side: int
    """Pixels of a side, as the network gets it."""
    width: int
    epochs: int
    batch: int


FULL = Size(train=12000, test=2000, stored=160, side=128, width=64, epochs=10, batch=128)
QUICK = Size(train=1500, test=500, stored=40, side=32, width=8, epochs=4, batch=32)


def train(
    root: Path, loader: str, seed: int, transforms: str, size: Size, workers: int
) -> dict[str, Any] | str:
    """One run; why there is none."""
    command = [sys.executable, "-m", "benchmarks.accuracy.job", str(root), loader, "--seed", str(seed)]
    command += ["--transforms", transforms, "--side", str(size.side), "--width", str(size.width)]
    command += ["--epochs", str(size.epochs), "--batch", str(size.batch), "--workers", str(workers)]
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    environment = {"PYTHONPATH": paths, "HEADRACE_RECORD": "0"}
    try:
        found = run_process(command, REPOSITORY, environment, LIMIT_S)
    except RunFailed as error:
        return str(error)
    return found


def compare(runs: dict[str, list[Any]]) -> Target:
    """The difference of the mean accuracies, against two of its standard errors or half a point."""
    name = "ResNet-18: mean test accuracies through torch and through headrace differ by, points"
    found = [[run["accuracy"] for run in runs[loader] if not isinstance(run, str)] for loader in LOADERS]
    if min(len(one) for one in found) < 2:
        return Target(name, None, f"<= {WITHIN:g}", False, note="too few runs")
    means = [statistics.mean(one) for one in found]
    error = math.sqrt(sum(statistics.variance(one) / len(one) for one in found))
    limit = max(WITHIN, 2 * error)
    value = abs(means[0] - means[1])
    note = ", ".join(f"{loader} {mean:.2f} %" for loader, mean in zip(LOADERS, means, strict=True))
    return Target(name, value, f"<= {limit:.3g}", value <= limit, note=f"{note}; standard error {error:.2f}")


def main() -> None:
    """Run the benchmark. What it finds never makes it fail."""
    parser = argparse.ArgumentParser(prog="benchmarks/accuracy/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few small pictures, a narrow network")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=min(8, len(os.sched_getaffinity(0))))
    parser.add_argument("--data", type=Path, help="pictures that --pack wrote (default: Debian's package)")
    parser.add_argument(
        "--pack", type=Path, metavar="FILE", help="write the pictures into one .npz file, and end"
    )
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    counts = (size.train, size.test)
    try:
        arrays = data.packed(args.data, counts) if args.data else data.installed(REPOSITORY, counts)
    except RuntimeError as error:
        print(f"Nothing was measured. {error}", file=sys.stderr)
        return
    if args.pack:
        data.pack(arrays, args.pack)
        return
    root = REPOSITORY / ".data" / f"fashion-{size.train}-{size.stored}"
    data.write(arrays, root, size.stored)
    transforms = "torchvision v2" if importlib.util.find_spec("torchvision") else "written out"
    runs: dict[str, list[Any]] = {loader: [] for loader in LOADERS}
    for seed in range(args.seeds):
        for loader in LOADERS[:: 1 if seed % 2 else -1]:
            found = train(root, loader, seed, transforms, size, args.workers)
            runs[loader].append(found)
            told = found if isinstance(found, str) else f"{found['accuracy']:.2f} %, {found['seconds']:.0f} s"
            say(f"[{seed + 1}/{args.seeds}] {loader}: {told}")
    report(runs, transforms, size, args)


def report(runs: dict[str, list[Any]], transforms: str, size: Size, args: argparse.Namespace) -> None:
    """Print, and write."""
    rows = [("loader", "test accuracy, %", "mean", "images/s")]
    for loader, mine in runs.items():
        good = [run for run in mine if not isinstance(run, str)]
        each = "  ".join(f"{run['accuracy']:.2f}" for run in good)
        means = [statistics.mean(run[field] for run in good) if good else math.nan for field in FIELDS]
        rows.append((loader, each, f"{means[0]:.2f}", f"{means[1]:,.0f}"))
    print(f"\n{table(rows, text=(0, 1))}")
    result = {
        **header("accuracy", args.quick),
        "settings": {**asdict(size), "transforms": transforms, "workers": args.workers},
        "runs": runs,
    }
    publish("accuracy", args.quick, result, [compare(runs)])


if __name__ == "__main__":
    main()
