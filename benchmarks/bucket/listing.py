"""A bucket of ten million objects: what its listing takes of memory, and how soon the first batch is there.

``python -m benchmarks.bucket.listing``. The objects are made up, in names as ImageNet has them: a listing of so many
from a real server would take hours. All else is as in a job: gathered page by page, written, and
opened in another process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.bucket.server import Server
from benchmarks.common.report import Target, target

import headrace as hr
from headrace.sources.buckets.gathering import Found, Gathering, Spill
from headrace.sources.buckets.listing import Listed, write
from headrace.sources.buckets.manifest import Manifest
from headrace.sources.buckets.source import BucketSource
from headrace.sources.buckets.storage import BucketStorage
from headrace.sources.buckets.urls import parse

_CLASS = 10_000
_PAGE = 1000
_LISTING = "listing, peak bytes of memory a sample"
_ALL = "opened, and all looked at, bytes of memory a sample"


def _status(name: str) -> int:
    """Bytes that /proc says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1]) * 1024


def _pages(number: int, count: int) -> Iterator[list[Found]]:
    """The objects of one class, as a listing gives them."""
    rng = np.random.default_rng(number)
    name = b"n%08d" % number
    keys = sorted(
        b"%s/%s_%d.JPEG" % (name, name, one) for one in rng.choice(1_000_000, count, replace=False).tolist()
    )
    versions = rng.bytes(16 * count).hex().encode()
    for start in range(0, count, _PAGE):
        some = enumerate(keys[start : start + _PAGE], start)
        yield [Found(key, 100_000 + at, versions[32 * at : 32 * at + 32]) for at, key in some]


def _write(count: int, folder: Path) -> dict[str, Any]:
    """Gather and write a listing; what that takes."""
    for _ in _pages(0, min(count, _CLASS)):
        pass  # (what is needed to make names up does not count)
    before, cpu = _status("VmHWM"), time.process_time()
    spill = Spill(folder)
    listed = Listed(anything=True)
    for number in range(-(-count // _CLASS)):
        group = listed.groups[b"n%08d" % number] = Gathering(spill)
        for page in _pages(number, min(_CLASS, count - number * _CLASS)):
            group.add(page)
        group.settle()
    write(listed, parse("s3://bench/train"), sorted(listed.groups), folder, folder / "manifest")
    spill.close()
    return {
        _LISTING: round((_status("VmHWM") - before) / count, 2),
        "listing, CPU seconds": round(time.process_time() - cpu, 1),
        "bytes of the file a sample": round(os.path.getsize(folder / "manifest") / count, 2),
    }


def _open(count: int, folder: Path) -> dict[str, Any]:
    """Open a listing, look at some of it, and at all; what that takes."""
    before, own, begun = _status("VmHWM"), _status("RssAnon"), time.perf_counter()
    source = BucketSource(Manifest(folder / "manifest"))
    opened = time.perf_counter() - begun
    source.fingerprint()
    for at in range(0, count, count // 1000):
        source.name(at)
    some = _status("VmHWM") - before
    for at in range(0, count, 1 << 16):
        source.identity_bytes(np.arange(at, min(count, at + (1 << 16)), 16))  # (every block of names)
    assert source.targets is not None
    int(np.asarray(source.targets).sum())
    return {
        "opening, seconds": round(opened, 4),
        "opened, and 1000 samples looked at, bytes of memory a sample": round(some / count, 2),
        _ALL: round((_status("VmHWM") - before) / count, 2),
        "of these its own, not the file's": round((_status("RssAnon") - own) / count, 2),
    }


def _decode(data: Any) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def _start(count: int, folder: Path, workers: int) -> dict[str, Any]:
    """From the opening of a listing to the first batch. (What is read is made up.)"""
    BucketStorage.read = lambda self, locations: [bytes(64)] * len(locations)  # type: ignore[method-assign,assignment]
    import_module("torch")  # (which takes seconds by itself)
    begun, cpu = time.perf_counter(), time.process_time()
    recipe = hr.Recipe(BucketSource(Manifest(folder / "manifest")), decode=_decode)
    with hr.DataLoader(recipe, batch_size=64, shuffle=True, num_workers=workers) as loader:
        next(iter(loader))
        name = f"first batch, {workers} workers"
        return {
            f"{name}, seconds": round(time.perf_counter() - begun, 2),
            f"{name}, CPU seconds of the job's own process": round(time.process_time() - cpu, 2),
        }


def measure(count: int = 10_000_000) -> dict[str, Any]:
    """All of it, each in a process of its own."""
    out: dict[str, Any] = {"objects": count}
    with tempfile.TemporaryDirectory(prefix="hr-listing-") as folder:
        for step in ("write", "open", "start 0", "start 2"):
            command = [sys.executable, "-m", "benchmarks.bucket.listing", "--step", step, "--folder", folder]
            ran = subprocess.run([*command, "--count", str(count)], stdout=subprocess.PIPE, check=True)
            out.update(json.loads(ran.stdout))
    return out


def targets(server: Server, data: Path, quick: bool) -> list[Target]:
    """What headrace promises of large buckets. Of bytes per sample the most, while it is listed or after; the first
    batch with workers."""
    millions = 1 if quick else 10
    found = measure(millions * 1_000_000)
    most = max(found[_LISTING], found[_ALL])
    return [
        target(f"listing of {millions} million keys: bytes per sample", [most], "<=", 40),
        target(
            f"listing of {millions} million keys: seconds to the first batch, manifest cached",
            [found["first batch, 2 workers, seconds"]],
            "<=",
            3,
        ),
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--step")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.step is None:
        print(json.dumps(measure(given.count), indent=1))
        return
    os.environ["XDG_CACHE_HOME"] = str(given.folder)
    step, *more = given.step.split()
    if step == "start":
        found = _start(given.count, given.folder, int(more[0]))
    else:
        found = {"write": _write, "open": _open}[step](given.count, given.folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
