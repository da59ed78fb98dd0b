"""One measured run, in a process of its own: JSON of what happened on standard output.

    python -m benchmarks.bucket.measure NAME --setup JSON --counters SOCKET --root PID [--epochs N | --versions]

``--root`` is the process below which everything counts, as in the benchmark of one job. The server does not: it is
nobody's child.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.bucket.contenders import BY_NAME, Contender, Entry, Setup
from benchmarks.bucket.server import Counters, ask
from benchmarks.common.contenders import touch
from benchmarks.common.rounds import take_stdout
from benchmarks.common.tree import tree_cpu


def exactness(numbers: Sequence[Any], count: int) -> dict[str, int]:
    """How many photos an epoch left out, and how many it gave more than once, by the numbers of its batches."""
    if not numbers:
        return {"missing": count, "repeated": 0}
    seen = np.bincount(np.concatenate([np.asarray(batch, np.int64) for batch in numbers]), minlength=count)
    return {"missing": int((seen[:count] == 0).sum()), "repeated": int((seen > 1).sum())}


def run_epoch(contender: Contender, number: int, step_s: float) -> tuple[list[Any], int, float]:
    """One epoch: the numbers of its batches, its images, and when the first batch came."""
    numbers: list[Any] = []
    images, first_at = 0, 0.0
    for batch, its in contender.epoch(number):
        if not images:
            first_at = time.perf_counter()
        images += touch(batch)
        numbers.append(np.asarray(its).copy())
        time.sleep(step_s)
    return numbers, images, first_at


def measure(entry: Entry, setup: Setup, counters: Path, root: int, epochs: int) -> dict[str, Any]:
    """Open the contender and run its epochs. The first begins with opening, which may list the bucket."""
    open_contender = entry.load()
    before: Counters = ask(counters)
    cpu, began = tree_cpu(root), time.perf_counter()
    start = began
    contender: Contender = open_contender(setup)
    found: list[dict[str, Any]] = []
    first_batch_s = 0.0
    for number in range(epochs):
        numbers, images, first_at = run_epoch(contender, number, entry.step_s)
        ended = time.perf_counter()
        if not number:
            first_batch_s = first_at - start
            named = getattr(contender, "numbers_of", None)
            photos = None if named is None else np.asarray(named(range(setup.count)))
        if photos is not None:
            numbers = [photos[batch] for batch in numbers]
        after, cpu_now = ask(counters), tree_cpu(root)
        did = after.since(before)
        found.append(
            {
                "images": images,
                "seconds": ended - began,
                "images_s": images / (ended - began),
                "requests": did.requests,
                "by_kind": did.by_kind,
                "bytes": did.sent,
                "bytes_both_ways": did.bytes,
                "cpu_s_per_1000": 1000 * (cpu_now - cpu) / max(1, images),
                "server_cpu_s_per_1000": 1000 * did.cpu_s / max(1, images),
                **exactness(numbers, setup.count),
            }
        )
        before, cpu, began = after, cpu_now, time.perf_counter()
    cached = sum(path.stat().st_blocks * 512 for path in setup.cache.rglob("*") if path.is_file())
    contender.close()
    return {"epochs": found, **summarise(found), "first_batch_s": first_batch_s, "cached_bytes": cached}


def summarise(epochs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first epoch, and the later ones: means for an epoch of theirs.

    Loaders may fetch for the next epoch while one ends. So the last one is there for what was fetched ahead of it,
    and the second for how far ahead that is to become what it stays.
    """
    first, later = epochs[0], epochs[2:-1]
    seconds = sum(epoch["seconds"] for epoch in later)
    out: dict[str, Any] = {f"first_{field}": first[field] for field in _FIELDS}
    out["later_images_s"] = sum(epoch["images"] for epoch in later) / seconds if seconds else 0.0
    for field in _FIELDS[1:]:
        out[f"later_{field}"] = sum(epoch[field] for epoch in later) / max(1, len(later))
    out["missing"] = max(epoch["missing"] for epoch in epochs)
    out["repeated"] = max(epoch["repeated"] for epoch in epochs)
    return out


_FIELDS = ("images_s", "requests", "bytes", "cpu_s_per_1000", "server_cpu_s_per_1000")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(BY_NAME))
    parser.add_argument("--setup", type=json.loads, required=True)
    parser.add_argument("--counters", type=Path, required=True)
    parser.add_argument("--root", type=int, default=os.getppid())
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--versions", action="store_true", help="import what it needs, and do not measure")
    args = parser.parse_args()
    out = take_stdout()
    entry = BY_NAME[args.name]
    fields = {**args.setup, "cache": Path(args.setup["cache"]), "shards": tuple(args.setup["shards"])}
    if args.versions:
        entry.load()
        result: dict[str, Any] = {"versions": entry.versions()}
    else:
        result = measure(entry, Setup(**fields), args.counters, args.root, args.epochs)
    with out:
        json.dump(result, out)
    out_of_here()


def out_of_here() -> None:
    """End at once: what is measured is, and threads of some libraries take their time to go."""
    os._exit(0)


if __name__ == "__main__":
    main()
