"""Eight nodes send rows to one at the same time, through its cable: how long batches are waited for, with pacing and
without.

No Ray: nine nodes, each in a network namespace. The cable of the one is short, and the queue before it too, as in a
switch: what does not fit is dropped, and sent again by TCP after a while. Its CPU is busy with other work, so
that rows come from the others.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.bucket.network import inside
from benchmarks.cluster.groups import busy, enter, make_cpuset, move
from benchmarks.cluster.network import Lan, address
from benchmarks.cluster.plain_nodes import Place, PlainNodes

REPOSITORY = Path(__file__).resolve().parents[2]
SENDERS = 8
RATE, QUEUE = "200mbit", "5ms"
MEMORY = 64 << 20
IMAGES = 4800
BATCHES = (256, 32)
"""Images of a batch: as they are trained with, and as few as take no longer than rows are on their way."""
WAITS = 100
"""Batches, about, at least: of few, the 99th percentile would be the longest wait of all."""


class Incast:
    """The nine nodes."""

    def __init__(self, photos: Path, images: int = IMAGES) -> None:
        """``images``: of an epoch."""
        self._photos, self._images = many(photos, images), images
        self.lan = Lan(1 + SENDERS)
        places = [
            Place(address(number), 1 if number else 0, inside(name))
            for number, name in enumerate(self.lan.nodes)
        ]
        try:
            self._nodes = PlainNodes(places, MEMORY)
        except BaseException:
            self.lan.close()
            raise
        self.lan.limit(self.lan.nodes[0], RATE, latency=QUEUE)

    def measure(self, batch: int, *, paced: bool, waits: int = WAITS) -> dict[str, Any]:
        """A job on the first node."""
        epochs = 1 + max(2, round(waits * batch / self._images))  # (the first one does not count)
        own, others = make_cpuset("rank", 0), make_cpuset("rest", 1)
        move(self.lan.nodes, others)
        before = self.lan.moved(self.lan.nodes[0])[0]
        command = [
            *inside(self.lan.nodes[0]), sys.executable, "-m", "benchmarks.cluster.job", "uniform", "--source",
            str(self._photos), "--workers", "1", "--epochs", str(epochs), "--batch", str(batch),
        ]  # fmt: skip
        environment = {**self._nodes.environment(0), "HEADRACE_PACING": "1" if paced else "0"}
        with busy(own):
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                preexec_fn=lambda: enter(own),
            )
        if done.returncode or not done.stdout:
            raise RuntimeError(f"incast: {done.stderr[-600:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        waited = np.array([wait for epoch in told["epochs"][1:] for wait in epoch["waits"]])
        cluster = next((row for row in told["stats"].splitlines() if row.startswith("cluster")), "")
        return {
            "p50": float(np.quantile(waited, 0.5)),
            "p99": float(np.quantile(waited, 0.99)),
            "ratio": float(np.quantile(waited, 0.99) / np.quantile(waited, 0.5)),
            "images_s": statistics.mean(one["images"] / one["seconds"] for one in told["epochs"][1:]),
            "mb": (self.lan.moved(self.lan.nodes[0])[0] - before) / 1e6,
            "cluster": cluster,
            "waits_ms": [round(1000 * one) for one in waited.tolist()],
        }

    def close(self) -> None:
        """End all of it."""
        self._nodes.close()
        self.lan.close()


def many(photos: Path, images: int = IMAGES, name: str = "incast") -> Path:
    """Each photo several times, so that an epoch is long."""
    into = REPOSITORY / ".data" / name
    shutil.rmtree(into, ignore_errors=True)
    paths = sorted(photos.rglob("*.jpg"))
    for number in range(images):
        path = paths[number % len(paths)]
        folder = into / "train" / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        os.link(path, folder / f"{number // len(paths)}-{path.name}")
    return into / "train"


def main() -> None:
    """Only this, for a look."""
    incast = Incast(Path(sys.argv[1]))
    try:
        for batch in BATCHES:
            for paced in (True, False):
                print(batch, paced, incast.measure(batch, paced=paced))
    finally:
        incast.close()


if __name__ == "__main__":
    main()
