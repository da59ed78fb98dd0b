"""From encoded to decoded: one class for each kind of decode step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.recipes.calls import Call
from headrace.recipes.image import kernels, left
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.reduction import Floor
from headrace.recipes.image.resample import Scratch
from headrace.recipes.row_groups import RowGroup, RowValues
from headrace.recipes.synthetic_decode import SyntheticDecode

DECODING = -1
"""The position of decode among the steps, for the key of its random numbers."""


class Decoder(Protocol):
    """Decodes the rows of an order."""

    def run(self, group: RowGroup, blobs: list[Any], keep: Sequence[int]) -> RowValues:
        """The decoded value of each row; those of rows ``keep`` will be cached, best in reserved memory."""
        ...


class ImageDecoder:
    """Images: JPEG by the native kernel, everything else by OpenCV.

    ``lazy``: the stage that follows reads JPEG bytes itself, and only the part of the image that it needs.
    ``fresh``: values outlive the order. ``floor``: JPEG images are decoded as small as that allows.
    """

    def __init__(self, step: Decode, *, lazy: bool, fresh: bool, floor: Floor | None = None) -> None:
        self._step = step
        self._floor = floor
        self._lazy = lazy
        self._fresh = fresh
        self._channels = step.size.channels or 3
        self._workspace = kernels.Workspace()
        self._scratch = Scratch()

    def run(self, group: RowGroup, blobs: list[Any], keep: Sequence[int]) -> RowValues:
        """Arrays, or JPEG bytes where these may stay."""
        infos = left.probed(blobs, lambda some: kernels.probe_many(some, as_stored=not self._step.upright))
        values: list[Any] = list(blobs)
        jpeg = infos[:, 0] == 0
        pixels = infos[:, 1].astype(np.int64) * infos[:, 2]
        large = pixels > self._step.max_pixels
        group.work.pixels += int(pixels[jpeg & ~large].sum())
        for row in np.flatnonzero(jpeg & large).tolist():
            try:
                self._step.check(int(infos[row, 1]), int(infos[row, 2]))
            except ValueError as error:
                group.fault(row, error)
                jpeg[row] = False
        if not jpeg.all():
            for row in np.flatnonzero(~jpeg).tolist():
                if not group.failed(row):
                    self._other(group, row, values)
        if self._floor is not None:
            infos = _reduced(infos, self._floor)
        now = [row for row in (keep if self._lazy else range(group.size)) if jpeg[row]]
        if now:
            self._jpegs(group, now, values, infos, set(keep))
            jpeg[now] = False
        return RowValues(values, jpeg if jpeg.any() else None, infos)

    def _other(self, group: RowGroup, row: int, values: list[Any]) -> None:
        step = self._step
        try:
            if step.upright:
                mode: Any = "RGB" if step.mode == "RGB" else "GRAY"
                values[row] = kernels.decode_any(values[row], mode=mode, max_pixels=step.max_pixels)
            else:
                values[row] = kernels.decode_stored(values[row], mode=step.mode, max_pixels=step.max_pixels)
        except Exception as error:
            group.fault(row, error)

    def _jpegs(
        self, group: RowGroup, rows: list[int], values: list[Any], infos: NDArray[np.int32], keep: set[int]
    ) -> None:
        """Whole JPEG images, straight into the memory where they will be cached, or into scratch."""
        shapes = [(int(infos[row, 2]), int(infos[row, 1]), self._channels) for row in rows]
        outs: list[Any] = [None] * len(rows)
        kept = [at for at, row in enumerate(rows) if row in keep]
        if kept:
            room = group.work.reserve([(shapes[at], "uint8") for at in kept])
            for at, array in zip(kept, room, strict=True):
                outs[at] = np.empty(shapes[at], np.uint8) if array is None else array
        rest = [at for at in range(len(rows)) if outs[at] is None]
        wanted = [shapes[at] for at in rest]
        memory = (
            [np.empty(shape, np.uint8) for shape in wanted] if self._fresh else self._scratch.take(wanted)
        )
        for at, array in zip(rest, memory, strict=True):
            outs[at] = array
        blobs = [values[row] for row in rows]
        limit = self._step.max_pixels
        scales = None if self._floor is None else infos[rows, 5]
        status = kernels.decode_many(
            self._workspace,
            blobs,
            None,
            outs,
            scales=scales,
            max_pixels=limit,
            as_stored=not self._step.upright,
        )
        for at, row in enumerate(rows):
            if status[at]:
                group.fault(row, kernels.status_text(int(status[at]), blobs[at]))
            else:
                values[row] = outs[at]
                if row in keep:
                    group.work.kept[group.row(row)] = outs[at]


def _reduced(infos: NDArray[np.int32], floor: Floor) -> NDArray[np.int32]:
    """What images hold once they are scaled down, with the scale as one more column."""
    scales = floor.scales(infos[:, 2], infos[:, 1])
    infos = np.column_stack([infos, scales])
    infos[:, 1:3] = -(-infos[:, 1:3] // scales[:, None])
    return infos


class CallDecoder:
    """A user's callable, on the bytes of each sample."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def run(self, group: RowGroup, blobs: list[Any], keep: Sequence[int]) -> RowValues:
        """Whatever the callable returns."""
        values: list[Any] = [None] * group.size
        work = group.work
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        for row, blob in enumerate(blobs):
            try:
                data = blob if isinstance(blob, bytes) else bytes(blob)
                self._call.seed(random.key(work.seed, work.epoch, DECODING, int(group.words[row])))
                values[row] = self._call(data)
            except Exception as error:
                group.fault(row, error)
        work.count_user(time.perf_counter() - begun, time.thread_time() - begun_cpu)
        return RowValues(values)


class SyntheticDecoder:
    """``synthetic.decode``."""

    def __init__(self, step: SyntheticDecode, shape: tuple[int, ...] | None) -> None:
        self._step = step
        self._shape = shape

    def run(self, group: RowGroup, blobs: list[Any], keep: Sequence[int]) -> RowValues:
        """Arrays made of the bytes."""
        return RowValues([self._step(blob, self._shape) for blob in blobs])


class NoDecoder:
    """No decode step: the value is the bytes."""

    def run(self, group: RowGroup, blobs: list[Any], keep: Sequence[int]) -> RowValues:
        """The bytes, as an object of their own."""
        return RowValues([blob if isinstance(blob, bytes) else bytes(blob) for blob in blobs])
