"""Microseconds of CPU per image for the image kernels, beside OpenCV and simplejpeg, on one thread.

    python benchmarks/kernels.py DIRECTORY_OF_JPEGS [--images 100] [--repeats 10] [--json FILE]

Random resized crops to 224 of each photo, the same for every contestant. All contestants run in turn, `repeats`
times; the table shows the median of each, and ratios are medians of the ratios within a turn, so that a machine
that is busy with other things slows both sides alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from headrace.recipes.image import kernels
from headrace.recipes.image.kernels import JOB, RowSpec, Workspace

SIZE = 224


def random_crops(infos: Any, seed: int = 0) -> Any:
    """Boxes as torchvision's RandomResizedCrop draws them: 8 to 100 % of the area, sides 3:4 to 4:3."""
    rng = np.random.default_rng(seed)
    boxes = []
    for _, width, height, _, _ in infos.tolist():
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
        boxes.append((rng.integers(0, width - w + 1), rng.integers(0, height - h + 1), w, h))
    return np.array(boxes, np.int32)


def contestants(blobs: list[bytes]) -> dict[str, Callable[[], object]]:
    """Everything that is measured, by name."""
    n, ws = len(blobs), Workspace()
    infos = kernels.probe_many(blobs)
    boxes = random_crops(infos)
    flips = np.random.default_rng(1).integers(0, 2, n).astype(np.uint8)
    jobs = np.zeros(n, JOB)
    jobs["is_jpeg"], jobs["width"], jobs["height"], jobs["orientation"] = (
        1,
        infos[:, 1],
        infos[:, 2],
        infos[:, 3],
    )
    jobs["box"], jobs["hflip"] = boxes, flips
    jobs["clamp"] = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    raw_jobs = jobs.copy()
    raw_jobs["is_jpeg"], raw_jobs["orientation"] = 0, 1
    wholes = [np.empty((h, w, 3), np.uint8) for _, w, h, _, _ in infos.tolist()]
    parts = [np.empty((h, w, 3), np.uint8) for _, _, w, h in boxes.tolist()]
    origins = np.ascontiguousarray(boxes[:, :2])
    if kernels.decode_many(ws, blobs, infos, wholes).any():
        raise SystemExit("some photos cannot be decoded")
    batch = np.empty((n, SIZE, SIZE, 3), np.uint8)
    tuples = boxes.tolist()
    flipped = flips.tolist()

    def resize(images: list[Any], crop: bool, flip: bool = False) -> None:
        for i, (x, y, w, h) in enumerate(tuples):
            image = images[i][y : y + h, x : x + w] if crop else images[i]
            if flip and flipped[i]:
                cv2.flip(cv2.resize(image, (SIZE, SIZE)), 1, dst=batch[i])
            else:
                cv2.resize(image, (SIZE, SIZE), dst=batch[i])

    def full_simplejpeg() -> None:
        for i, (x, y, w, h) in enumerate(tuples):
            image = simplejpeg.decode_jpeg(blobs[i], fastdct=False, fastupsample=False)
            cv2.resize(image[y : y + h, x : x + w], (SIZE, SIZE), dst=batch[i])

    def region() -> object:
        return kernels.decode_many(ws, blobs, infos, parts, origins=origins)

    def region_and_resize() -> None:
        region()
        resize(parts, False)

    def rows(sources: list[Any], jobs: Any, spec: RowSpec) -> Callable[[], object]:
        out = np.empty((n, *spec.shape), spec.storage_dtype)
        return lambda: kernels.rows_many(ws, sources, jobs, out, spec)

    normalised: dict[str, Any] = {"scale": (1 / 58.4, 1 / 57.1, 1 / 57.4), "bias": (-2.12, -2.04, -1.80)}
    plain, planar = RowSpec(SIZE, SIZE), RowSpec(SIZE, SIZE, layout="CHW")
    float32 = RowSpec(SIZE, SIZE, layout="CHW", dtype="float32", **normalised)
    float16 = RowSpec(SIZE, SIZE, layout="CHW", dtype="float16", **normalised)
    bfloat16 = RowSpec(SIZE, SIZE, layout="CHW", dtype="bfloat16", **normalised)
    return {
        "JPEG: simplejpeg whole + cv2.resize": full_simplejpeg,
        "JPEG: headrace whole": lambda: kernels.decode_many(ws, blobs, infos, wholes),
        "JPEG: headrace region": region,
        "JPEG: headrace region + cv2.resize": region_and_resize,
        "JPEG: headrace rows uint8 HWC": rows(blobs, jobs, plain),
        "JPEG: headrace rows float32 CHW": rows(blobs, jobs, float32),
        "array: cv2.resize": lambda: resize(wholes, True),
        "array: cv2.resize + cv2.flip": lambda: resize(wholes, True, flip=True),
        "array: headrace rows uint8 HWC": rows(wholes, raw_jobs, plain),
        "array: headrace rows uint8 CHW": rows(wholes, raw_jobs, planar),
        "array: headrace rows float32 CHW": rows(wholes, raw_jobs, float32),
        "array: headrace rows float16 CHW": rows(wholes, raw_jobs, float16),
        "array: headrace rows bfloat16 CHW": rows(wholes, raw_jobs, bfloat16),
        "headers: headrace": lambda: kernels.probe_many(blobs),
    }


RATIOS = (
    ("JPEG: headrace rows uint8 HWC", "JPEG: headrace region + cv2.resize"),
    ("JPEG: headrace rows uint8 HWC", "JPEG: simplejpeg whole + cv2.resize"),
    ("array: headrace rows uint8 HWC", "array: cv2.resize"),
    ("array: headrace rows uint8 HWC", "array: cv2.resize + cv2.flip"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    paths = sorted(options.directory.rglob("*.jpg"))[: options.images]
    if not paths:
        raise SystemExit(f"no *.jpg in {options.directory}")
    blobs = [path.read_bytes() for path in paths]
    measured = contestants(blobs)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(options.repeats + 1):
        for name, run in measured.items():
            start = time.process_time()
            run()
            if turn:  # the first turn warms caches and pages
                times[name].append((time.process_time() - start) / len(blobs) * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {f"{a} / {b}": statistics.median(map(float.__truediv__, times[a], times[b])) for a, b in RATIOS}
    size = statistics.mean(map(len, blobs)) / 1000
    print(f"{kernels.describe()}\n{len(blobs)} photos of {size:.0f} kB on average\n")
    for name, value in medians.items():
        print(f"{name:<42}{value:>9.1f} µs")
    print()
    for name, value in ratios.items():
        print(f"{name:<76}{value:>6.2f}")
    if options.json:
        result = {
            "kernels": kernels.describe(),
            "images": len(blobs),
            "microseconds": medians,
            "ratios": ratios,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
