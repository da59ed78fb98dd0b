"""Bare loops: what the work costs without any loader, in as many processes as the loaders have workers.

Everything that is not the work itself is done before: the encoded bytes (or decoded arrays) lie in memory,
and orders, boxes and flips are drawn, for a few epochs that repeat. Each process writes into a batch array of
its own. Nothing is read from files and nothing is handed to anybody. This is the cost of the usual
libraries; a loader with faster kernels than these can still come out below it.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from benchmarks.common.contenders import Setup
from benchmarks.common.crops import Box, draw_box
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Loop = Callable[["Drawn", Image], None]
EPOCHS = 3
"""How many epochs are drawn ahead; later ones repeat them."""


@dataclass
class Drawn:
    """One epoch of one process: which item, which box, flipped or not, in order."""

    items: list[int]
    boxes: list[Box]
    flips: list[bool]


def place(region: Image, row: Image, flip: bool, scratch: Image) -> None:
    """Resize a region into a row of the batch, mirrored or not."""
    if flip:
        cv2.resize(region, (row.shape[1], row.shape[0]), dst=scratch, interpolation=cv2.INTER_LINEAR)
        cv2.flip(scratch, 1, dst=row)
    else:
        cv2.resize(region, (row.shape[1], row.shape[0]), dst=row, interpolation=cv2.INTER_LINEAR)


def full_loop(blobs: list[bytes]) -> Loop:
    """Decode the whole image, resize the crop."""

    def loop(drawn: Drawn, batch: Image) -> None:
        scratch, rows = np.empty_like(batch[0]), len(batch)
        for at, (item, (x, y, w, h), flip) in enumerate(
            zip(drawn.items, drawn.boxes, drawn.flips, strict=True)
        ):
            image = simplejpeg.decode_jpeg(blobs[item])
            place(image[y : y + h, x : x + w], batch[at % rows], flip, scratch)

    return loop


def arrays_loop(blobs: list[bytes]) -> Loop:
    """Resize the crop of an array that lies decoded in memory."""
    images = [simplejpeg.decode_jpeg(blob) for blob in blobs]

    def loop(drawn: Drawn, batch: Image) -> None:
        scratch, rows = np.empty_like(batch[0]), len(batch)
        for at, (item, (x, y, w, h), flip) in enumerate(
            zip(drawn.items, drawn.boxes, drawn.flips, strict=True)
        ):
            place(images[item][y : y + h, x : x + w], batch[at % rows], flip, scratch)

    return loop


def region_loop(blobs: list[bytes], region: Path) -> Loop:
    """Decode the crop's region with libjpeg-turbo, resize it."""
    library = ctypes.CDLL(str(region))
    library.region_new.restype = ctypes.c_void_p
    decode = library.region_decode
    pointer, number = ctypes.c_void_p, ctypes.c_int
    decode.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t, *4 * [number], pointer, pointer]
    decoder = library.region_new()
    largest = max(w * h for h, w, *_ in map(simplejpeg.decode_jpeg_header, blobs))
    pixels = np.empty(3 * largest, np.uint8)
    stride = ctypes.c_int()
    pixels_at, stride_at = pixels.ctypes.data, ctypes.addressof(stride)

    def loop(drawn: Drawn, batch: Image) -> None:
        scratch, rows = np.empty_like(batch[0]), len(batch)
        for at, (item, (x, y, w, h), flip) in enumerate(
            zip(drawn.items, drawn.boxes, drawn.flips, strict=True)
        ):
            blob = blobs[item]
            skip = x - decode(decoder, blob, len(blob), x, y, w, h, pixels_at, stride_at)
            wide = stride.value
            image = pixels[: 3 * wide * h].reshape(h, wide, 3)
            place(image[:, skip : skip + w], batch[at % rows], flip, scratch)

    return loop


class Bare:
    """One loop, in ``setup.workers`` processes that each have a share of the photos."""

    def __init__(self, setup: Setup, make_loop: Callable[[list[bytes]], Loop]) -> None:
        paths = setup.samples()[0]
        self.images = len(paths) // setup.batch * setup.batch
        fork = mp.get_context("fork")
        self.pipes: list[Connection] = []
        self.workers = []
        for rank in range(setup.workers):
            ours, theirs = fork.Pipe()
            share = paths[: self.images][rank :: setup.workers]
            worker = fork.Process(target=_work, args=(share, setup, rank, make_loop, theirs), daemon=True)
            worker.start()
            theirs.close()
            self.pipes.append(ours)
            self.workers.append(worker)
        read_s = sum(pipe.recv() for pipe in self.pipes)
        self.notes: dict[str, float | str] = {"read_cpu_s_per_1000": 1000 * read_s / self.images}

    def epoch(self, number: int) -> Iterator[int]:
        """Let every process run its share, and count when all are done."""
        for pipe in self.pipes:
            pipe.send(number)
        for pipe in self.pipes:
            pipe.recv()
        yield self.images

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for worker in self.workers:
            worker.join()


def _work(
    paths: list[str], setup: Setup, rank: int, make_loop: Callable[[list[bytes]], Loop], pipe: Connection
) -> None:
    cv2.setNumThreads(0)
    began, blobs = time.process_time(), []
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            blobs.append(file.read())
    read_s = time.process_time() - began
    loop = make_loop(blobs)
    draw = random.Random(setup.seed * 1000 + rank)
    sizes = [(w, h) for h, w, *_ in map(simplejpeg.decode_jpeg_header, blobs)]
    epochs = []
    for _ in range(EPOCHS):
        items = draw.sample(range(len(paths)), len(paths))
        boxes = [draw_box(draw, *sizes[item]) for item in items]
        epochs.append(Drawn(items, boxes, [draw.random() < 0.5 for _ in items]))
    batch = np.zeros((setup.batch, setup.size, setup.size, 3), np.uint8)
    pipe.send(read_s)
    while (number := pipe.recv()) is not None:
        loop(epochs[number % EPOCHS], batch)
        pipe.send(len(paths))


def open_full(setup: Setup) -> Bare:
    """Full decode and resize."""
    return Bare(setup, full_loop)


def open_arrays(setup: Setup) -> Bare:
    """Resize over decoded arrays in memory."""
    return Bare(setup, arrays_loop)


def open_region(setup: Setup) -> Bare:
    """Region decode and resize."""
    libjpeg = find_libjpeg()
    ctypes.CDLL(libjpeg, mode=ctypes.RTLD_GLOBAL)
    region = build_region(setup.data)
    bare = Bare(setup, partial(region_loop, region=region))
    bare.notes["libjpeg"] = libjpeg
    return bare


def build_region(data: Path) -> Path:
    """Compile region.c, unless that is done; its libjpeg is whichever is loaded before it."""
    source = Path(__file__).with_name("region.c")
    built = data / "region.so"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get("CC", "gcc")
        subprocess.run([compiler, "-O3", "-shared", "-fPIC", "-o", str(built), str(source)], check=True)
    return built


def find_libjpeg() -> str:
    """The libjpeg that headrace's kernels use, so that both decode with the same; else what can be found."""
    try:
        from headrace.recipes.image.kernels import LIBJPEG
    except ImportError:
        return "libjpeg.so.62"
    return LIBJPEG or "libjpeg.so.62"


def prepare(setup: Setup) -> None:
    """Compile what the region loop needs; not part of any measurement."""
    build_region(setup.data)
