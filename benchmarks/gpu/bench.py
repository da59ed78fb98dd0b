"""What training on a GPU gets from loaders. Started by ``make bench-gpu``; needs CUDA, torchvision, and photos."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.photos import PhotosUnavailable, make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target

REPOSITORY = Path(__file__).resolve().parents[2]
Found = dict[str, list[dict[str, float]]]

RUNS: dict[str, list[str]] = {
    "resnet18 synthetic": ["synthetic", "--model", "resnet18"],
    "resnet18 torch": ["torch", "--model", "resnet18"],
    "resnet18 torchvision-gpu": ["torchvision-gpu", "--model", "resnet18"],
    "resnet18 headrace": ["headrace", "--model", "resnet18"],
    "alexnet synthetic": ["synthetic", "--model", "alexnet"],
    "alexnet torch": ["torch", "--model", "alexnet"],
    "alexnet torchvision-gpu": ["torchvision-gpu", "--model", "alexnet"],
    "alexnet headrace": ["headrace", "--model", "alexnet"],
    "alexnet headrace gpu_decode": ["headrace", "--model", "alexnet", "--gpu-decode", "--warm", "20"],
    "alexnet headrace decoded": ["headrace", "--model", "alexnet", "--cache", "DECODED"],
    "feed headrace decoded": ["headrace", "--model", "none", "--cache", "DECODED"],
    "feed headrace gpu_decode": ["headrace", "--model", "none", "--gpu-decode", "--warm", "20"],
    "feed headrace gpu_cache": ["headrace", "--model", "none", "--gpu-cache", "20GiB", "--warm", "20"],
}
FOUR = {
    "four resnet18 synthetic": ["synthetic", "--model", "resnet18"],
    "four resnet18 headrace": ["headrace", "--model", "resnet18", "--cache", "DECODED", "--share"],
}


class GpuBench:
    """All runs, one after the other, round by round."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick: bool = args.quick
        self.repeats: int = args.repeats or (1 if args.quick else 3)
        self.only: list[str] = args.only
        self.seconds: float = args.seconds or (5.0 if args.quick else 12.0)
        self.photos = args.photos
        self.cache = args.cache

    def main(self) -> None:
        """Measure and report."""
        import torch

        if not torch.cuda.is_available():
            print("No CUDA device: nothing was measured, and the last results stay.")
            return
        if not self.photos:
            try:
                self.photos = str(make_photos(REPOSITORY / ".data", 4000))
            except PhotosUnavailable as error:
                print(f"Nothing was measured. {error}", file=sys.stderr)
                return
        found: Found = {}
        for number in range(self.repeats):
            for name, words in {**RUNS, **FOUR}.items():
                if self.only and name not in self.only:
                    continue
                runs = self.at_once(words, 4 if name in FOUR else 1)
                if runs:
                    found.setdefault(name, []).append(_together(runs))
                    one = found[name][-1]
                    say(
                        f"[{number + 1}] {name}: {one['images_s']:,.0f} images/s, {one['cpu_us_per_image']:.1f} us"
                    )
        self.report(found, torch)

    def at_once(self, words: list[str], jobs: int) -> list[dict[str, float]]:
        """Several jobs of a kind at the same time."""
        with tempfile.TemporaryDirectory(prefix="hr-gpu-") as meeting:
            return self._run([self.cache if word == "DECODED" else word for word in words], jobs, meeting)

    def _run(self, words: list[str], jobs: int, meeting: str) -> list[dict[str, float]]:
        command = [
            sys.executable, "-m", "benchmarks.gpu.job", *words, "--photos", self.photos,
            "--seconds", str(self.seconds), "--meet", meeting, "--jobs", str(jobs),
        ]  # fmt: skip
        paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HEADRACE_RECORD": "0"}
        processes = [
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
            for _ in range(jobs)
        ]
        out = []
        for process in processes:
            said, error = process.communicate()
            if process.returncode or not said:
                say(
                    f"{' '.join(words)}: {error.strip().splitlines()[-1] if error.strip() else process.returncode}"
                )
            else:
                out.append(json.loads(said.splitlines()[-1]))
        return out if len(out) == jobs else []

    def report(self, found: Found, torch: Any) -> None:
        """Tables and targets."""
        rows = [["", "images/s", "CPU us/image"]]
        for name, runs in found.items():
            rows.append(
                [name, f"{_median(runs, 'images_s'):,.0f}", f"{_median(runs, 'cpu_us_per_image'):.1f}"]
            )
        print()
        print(table(rows))
        result = {
            **header("gpu", self.quick),
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "repeats": self.repeats,
            "seconds": self.seconds,
            "runs": found,
        }
        publish("gpu", self.quick, result, targets(found))


def _together(runs: list[dict[str, float]]) -> dict[str, float]:
    return {
        "images_s": sum(run["images_s"] for run in runs),
        "cpu_us_per_image": sum(run["cpu_us_per_image"] for run in runs) / len(runs),
    }


def _median(runs: list[dict[str, float]], field: str) -> float:
    return sorted(run[field] for run in runs)[len(runs) // 2]


def targets(found: Found) -> list[Target]:
    """What headrace promises, round by round."""

    def over(name: str, other: str) -> list[float]:
        pairs = zip(found.get(name, []), found.get(other, []), strict=False)
        return [mine["images_s"] / theirs["images_s"] for mine, theirs in pairs]

    def rates(name: str) -> list[float]:
        return [run["images_s"] for run in found.get(name, [])]

    return [
        target(
            "ResNet-18, cold, over synthetic", over("resnet18 headrace", "resnet18 synthetic"), ">=", 0.98
        ),
        target(
            "AlexNet, decoded in host memory, over synthetic",
            over("alexnet headrace decoded", "alexnet synthetic"),
            ">=",
            0.98,
        ),
        target("AlexNet, cold, images/s", rates("alexnet headrace gpu_decode"), ">=", 22_000),
        target(
            "feeding alone from the GPU's cache, images/s", rates("feed headrace gpu_cache"), ">=", 150_000
        ),
        target(
            "four ResNet-18 that share, over four synthetic",
            over("four resnet18 headrace", "four resnet18 synthetic"),
            ">=",
            0.98,
        ),
        target(
            "CPU time of the training process for feeding, us/image",
            [run["cpu_us_per_image"] for run in found.get("feed headrace decoded", [])],
            "<=",
            20,
        ),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of a few seconds each")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seconds", type=float, help="that each run is measured for")
    parser.add_argument(
        "--photos", default="", help="a folder of photos (default: those of the other benchmarks)"
    )
    parser.add_argument("--cache", default="8GiB", help="memory for decoded photos")
    parser.add_argument("--only", action="append", default=[], choices=sorted({**RUNS, **FOUR}))
    GpuBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
