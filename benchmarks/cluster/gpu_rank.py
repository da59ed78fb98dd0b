"""A rank that trains on a GPU with too few CPUs for it, while other nodes have some to spare.

On a machine with a GPU and many CPUs. No Ray: the nodes are processes on one machine, each with CPUs of its own, that
talk TLS to each other over loopback addresses. Started by ``make bench-gpu-rank``; needs CUDA and torchvision.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cluster.incast import many
from benchmarks.cluster.plain_nodes import Place, PlainNodes, kept_to
from benchmarks.common.photos import make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target

REPOSITORY = Path(__file__).resolve().parents[2]
NODES, MEMORY = 4, 1 << 30
IMAGES, FEW = 24_000, 4_800
"""Of an epoch; and so few that a cache holds them decoded."""
RUNS = {
    "synthetic": ["synthetic"],
    "one machine": ["headrace"],
    "no help": ["headrace", "--cache", "1MiB"],
    "helped": ["headrace", "--cache", "1MiB"],
    "decoded, no help": ["headrace"],
    "decoded, helped": ["headrace"],
}
"""A batch that is in the GPU's memory; all CPUs in the rank's own node; few of them, and those of helpers; and the
same where the rank's node has a cache that holds all of it decoded."""


class GpuRank:
    """Nodes, and runs on the first of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.cpus = args, sorted(os.sched_getaffinity(0))
        self.own, others = self.cpus[: args.own], self.cpus[args.own :]
        # (the first has no helpers, the others one for each CPU that they have)
        theirs = [others[place :: NODES - 1] for place in range(NODES - 1)]
        places = [Place("127.0.0.1", 0, cpus=self.own)]
        places += [
            Place(f"127.0.0.{number}", len(cpus), cpus=cpus) for number, cpus in enumerate(theirs, start=2)
        ]
        self.nodes = PlainNodes(places, MEMORY)

    def run(self, name: str, photos: tuple[Path, Path]) -> dict[str, Any] | None:
        """A job; None: it failed."""
        args = self.args
        command = [
            sys.executable, "-m", "benchmarks.gpu.job", *RUNS[name], "--model", args.model, "--photos",
            str(photos[name.startswith("decoded")]),
            "--seconds", str(args.seconds), "--warm", str(args.warm), "--stats",
            *(["--prefetch", str(args.prefetch)] if args.prefetch and name != "synthetic" else []),
        ]  # fmt: skip
        environment = self.nodes.environment(0)
        if name.endswith(("helped", "no help")):
            environment["HEADRACE_SHARE"] = "ray"
        if name.endswith("no help"):
            environment["HEADRACE_HELP"] = "0"
        cpus = self.cpus if name == "one machine" else self.own
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, preexec_fn=kept_to(cpus)
        )
        if done.returncode or not done.stdout:
            say(f"{name}: {done.stderr[-600:]}")
            return None
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        say(f"{name}: {found['images_s']:,.0f} images/s\n{found.pop('stats', '')}")
        return found


def targets(runs: dict[str, dict[str, Any]]) -> list[Target]:
    """What helpers are to give."""

    def over(name: str, other: str) -> list[float]:
        return [runs[name]["images_s"] / runs[other]["images_s"]] if name in runs and other in runs else []

    return [
        target("a rank with helpers, over no help", over("helped", "no help"), ">=", 1.5),
        target(
            "one that has all of it decoded, over no help",
            over("decoded, helped", "decoded, no help"), ">=", 0.95,
        ),
    ]  # fmt: skip


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", default="", help="a folder of photos (default: the other benchmarks')")
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--own", type=int, default=4, help="CPUs of the rank's own node")
    parser.add_argument("--quick", action="store_true", help="six seconds of each")
    parser.add_argument("--seconds", type=float, default=0.0, help="that each run is measured for")
    parser.add_argument("--warm", type=float, default=0.0, help="seconds before that")
    parser.add_argument("--prefetch", type=int, default=0, help="batches ahead, for each worker")
    parser.add_argument("--only", action="append", default=[], choices=RUNS)
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("No CUDA device: nothing was measured, and the last results stay.")
        return
    args.seconds = args.seconds or (6.0 if args.quick else 20.0)
    # (it takes a while to find out how orders are best divided)
    args.warm = args.warm or (12.0 if args.quick else 25.0)
    given = Path(args.photos) if args.photos else make_photos(REPOSITORY / ".data", 1000)
    photos = many(given, IMAGES, "gpu-rank"), many(given, FEW, "gpu-rank-few")
    bench, runs = GpuRank(args), {}
    try:
        for name in RUNS:
            if not args.only or name in args.only:
                found = bench.run(name, photos)
                if found is not None:
                    runs[name] = found
    finally:
        bench.nodes.close()
    print(table([["", "images/s"], *([name, f"{run['images_s']:,.0f}"] for name, run in runs.items())]))
    result = {**header("gpu_rank", args.quick), "own": args.own, "cpus": len(bench.cpus), "runs": runs}
    publish("gpu_rank", args.quick, result, targets(runs))


if __name__ == "__main__":
    main()
