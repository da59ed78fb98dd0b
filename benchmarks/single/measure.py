"""One measured run, in a process of its own: JSON of what happened on standard output.

    python -m benchmarks.single.measure NAME --photos DIR --data DIR --root PID [--prepare]

``--root`` is the process below which everything counts: the one that starts the runs, so that daemons which
outlive their parent are counted too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.contenders import Contender, Setup
from benchmarks.common.rounds import take_stdout
from benchmarks.common.tree import tree_cpu, tree_pss
from benchmarks.single.contenders import BY_NAME, Entry


@dataclass(frozen=True)
class Epoch:
    """One epoch: images, seconds, and the moment and size of its first batch."""

    images: int
    began: float
    ended: float
    first_at: float
    first: int

    @property
    def seconds(self) -> float:
        """From beginning to end."""
        return self.ended - self.began

    @property
    def after_start(self) -> float | None:
        """Images per second from the first batch on, when workers have started; None without a second one."""
        return (self.images - self.first) / (self.ended - self.first_at) if self.images > self.first else None


@dataclass
class Mark:
    """The meters, read at one moment between epochs."""

    tree_cpu_s: float
    own_cpu_s: float

    @classmethod
    def now(cls, root: int) -> Mark:
        """Read them."""
        return cls(tree_cpu(root), time.process_time())


def run_epoch(contender: Contender, number: int) -> Epoch:
    """One epoch."""
    images, first, first_at = 0, 0, 0.0
    began = time.perf_counter()
    for count in contender.epoch(number):
        if not images:
            first, first_at = count, time.perf_counter()
        images += count
    return Epoch(images, began, time.perf_counter(), first_at, first)


def full_bytes(setup: Setup) -> float:
    """Mean bytes of a photo of the setup, decoded at full size."""
    from PIL import Image

    sizes = []
    for path in setup.samples()[0]:
        with Image.open(path) as photo:
            sizes.append(3 * photo.width * photo.height)
    return sum(sizes) / len(sizes)


def measure(entry: Entry, setup: Setup, root: int, min_epochs: int, min_seconds: float) -> dict[str, Any]:
    """Open the contender and run its first epoch, then later ones until there are enough."""
    open_contender = entry.load()
    start = Mark.now(root)
    began = time.perf_counter()
    contender: Contender = open_contender(setup)
    begun = run_epoch(contender, 0)
    images = begun.images
    filled = Mark.now(root)
    for number in range(1, entry.fills):
        run_epoch(contender, number)
    warm = Mark.now(root)
    memory = tree_pss(root)
    later_images = 0
    later_s: list[float] = []
    while len(later_s) < min_epochs or sum(later_s) < min_seconds:
        later = run_epoch(contender, entry.fills + len(later_s))
        later_images += later.images
        later_s.append(later.seconds)
    end = Mark.now(root)
    memory = max(memory, tree_pss(root))
    result = {
        "images_per_epoch": images,
        "first_epoch_images_s": images / begun.seconds,
        "first_epoch_after_start_images_s": begun.after_start,
        "later_images_s": later_images / sum(later_s),
        "later_epochs": len(later_s),
        "later_epoch_s": later_s,
        "cpu_s_per_1000": 1000 * (end.tree_cpu_s - warm.tree_cpu_s) / later_images,
        "first_epoch_cpu_s_per_1000": 1000 * (filled.tree_cpu_s - start.tree_cpu_s) / images,
        "first_batch_s": begun.first_at - began if entry.loads else None,
        "consumer_us_per_image": 1e6 * (end.own_cpu_s - warm.own_cpu_s) / later_images
        if entry.loads
        else None,
        "pss_bytes": memory,
        "notes": getattr(contender, "notes", {}),
    }
    cached = result["notes"].get("cached")
    if cached:
        result["cached_part"] = result["notes"]["cached_bytes"] / cached / full_bytes(setup)
    contender.close()
    return result


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(BY_NAME))
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--root", type=int, default=os.getppid())
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-epochs", type=int, default=2)
    parser.add_argument("--min-seconds", type=float, default=6.0)
    parser.add_argument(
        "--prepare", action="store_true", help="make what the contender reads, and do not measure"
    )
    args = parser.parse_args()
    out = take_stdout()
    entry = BY_NAME[args.name]
    batch = 32 if entry.large else 128
    setup = Setup(
        args.photos.resolve(), args.data.resolve(), batch=batch, workers=args.workers, seed=args.seed
    )
    if args.prepare:
        entry.prepare(setup)
        result: dict[str, Any] = {"versions": entry.versions()}
    else:
        result = measure(entry, setup, args.root, args.min_epochs, args.min_seconds)
    with out:
        json.dump(result, out)


if __name__ == "__main__":
    main()
