"""One training job: epochs until it is settled, then some seconds that count.

Takes its orders as JSON on the command line and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common.rounds import take_stdout
from benchmarks.model.job import drop
from benchmarks.model.job import photos as cold_photos
from numpy.typing import NDArray

import headrace as hr

CROP = 224
CELL = 2


def dither(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What nobody should write in Python: a loop over the pixels, which holds the interpreter lock."""
    height, width, _ = image.shape
    error = 0
    for y in range(0, height, CELL):
        row = image[y]
        for x in range(0, width, CELL):
            value = int(row[x, 0]) + error
            error = value - 255 if value > 127 else value
    image[0, 0, 0] = error & 255
    return image


def recipe(wanted: dict[str, Any]) -> hr.Recipe:
    """The recipe that a job was told of."""
    steps: list[Any] = [hr.image.random_resized_crop(CROP), hr.image.horizontal_flip()]
    if wanted.get("python"):
        steps.append(dither)
    if wanted.get("group"):
        source: Any = cold_photos(wanted["photos"], wanted["count"]).source
        for path in Path(wanted["photos"]).rglob("*.jpg"):  # what others have read of them
            drop(path)
    else:
        source = hr.folder(wanted["photos"])
    return hr.Recipe(source=source, decode=hr.image.decode(), augment=steps)


def main() -> None:
    """Run."""
    out = take_stdout()
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    if wanted.get("group"):
        Path(wanted["group"]).write_text(str(os.getpid()))
    if wanted.get("cpus"):
        os.sched_setaffinity(0, range(wanted["cpus"]))
    made = recipe(wanted)
    if wanted.get("profile"):
        from headrace.measure import save_profile, take_profile

        save_profile(take_profile(made, seconds=wanted["profile"]))
        print("{}", file=out)
        return
    with hr.DataLoader(
        made,
        batch_size=64,
        shuffle=True,
        drop_last=True,
        cache=wanted.get("cache"),
        split=wanted.get("split"),
        seed=wanted["seed"],
    ) as loader:
        for _ in range(wanted["settle"]):
            for _batch in loader:
                pass
        begun, images = time.perf_counter(), 0
        while time.perf_counter() - begun < wanted["seconds"]:
            for batch, _targets in loader:
                images += len(batch)
        rate = images / (time.perf_counter() - begun)
        hit_rate = loader.stats().hit_rate
    print(json.dumps({"rate": rate, "hit_rate": hit_rate}), file=out)


if __name__ == "__main__":
    main()
