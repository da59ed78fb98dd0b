"""Image steps at work: what runs for the rows of an order.

A stage takes one value per row and gives one back. A row that has failed carries a single black pixel from
there on, so that the other rows keep their places and one call serves all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image import kernels
from headrace.recipes.image.geometry import Geometry, RandomCrop, RandomResizedCrop, Resize
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.rows import Normalise, RandomErasing, to_storage
from headrace.recipes.image.rowspec import MAX_PIXELS
from headrace.recipes.image.view import View
from headrace.recipes.op import Size
from headrace.recipes.order import Batch, Order, Placed, misfit

_BLACK = {channels: np.zeros((1, 1, channels), np.uint8) for channels in (1, 3)}


class Scratch:
    """Memory that is used again for every order: fresh pages cost more than most steps."""

    def __init__(self) -> None:
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.uint8]]:
        """Uninitialised arrays of the given shapes, valid until the next call."""
        sizes = [int(np.prod(shape)) for shape in shapes]
        if sum(sizes) > self._buffer.size:
            self._buffer = np.empty(sum(sizes) + sum(sizes) // 4, np.uint8)
        out, at = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            out.append(self._buffer[at : at + size].reshape(shape))
            at += size
        return out


@dataclass(frozen=True)
class Finish:
    """How rows are written: plain uint8 pixels, or normalised; by pixel, or planar."""

    normalise: Normalise | None = None
    planar: bool = False

    @property
    def dtype(self) -> str:
        """The rows' dtype."""
        return "uint8" if self.normalise is None else self.normalise.dtype

    @property
    def plain(self) -> bool:
        """Whether rows are the pixels as they are."""
        return self.normalise is None and not self.planar

    def shape(self, height: int, width: int, channels: int) -> tuple[int, ...]:
        """The shape of a row."""
        return (channels, height, width) if self.planar else (height, width, channels)

    def empty(self, rows: int, height: int, width: int, channels: int) -> NDArray[Any]:
        """Memory for rows."""
        dtype = to_storage(np.empty(0), self.dtype).dtype
        return np.empty((rows, *self.shape(height, width, channels)), dtype)


PLAIN = Finish()


class Resample:
    """Any run of crops, resizes and flips, and the writing of rows: one kernel call for all rows."""

    def __init__(
        self,
        steps: list[tuple[int, Geometry]],
        size: Size,
        finish: Finish,
        *,
        fresh: bool = False,
        dct_scaling: bool = True,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.steps = steps
        self.size = size
        self.finish = finish
        self._fresh = fresh
        self._dct_scaling = dct_scaling
        self._max_pixels = max_pixels
        names = [step.interpolation for _, step in steps if isinstance(step, Resize | RandomResizedCrop)]
        self._interpolation: Any = names[0] if names else "bilinear"
        fills = [step.fill for _, step in steps if isinstance(step, RandomCrop) and step.pads]
        self._fill = fills[0] if fills else (0,)
        self._workspace = kernels.Workspace()
        self._scratch = Scratch()
        self._specs: dict[tuple[int, int, int, Finish], Any] = {}
        self._row_seconds: float | None = None

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Placed:
        """The rows, in ``into`` if given. Without it, rows of unequal size become arrays of their own."""
        values = batch.values
        channels = self._channels(values, into, order)
        jobs = self._jobs(batch, order, channels)
        view = View(jobs["width"].astype(np.float64), jobs["height"].astype(np.float64))
        for position, step in self.steps:
            step.fold(view, order.draw(position))
        view.write(jobs)
        for row, reason in view.faults.items():
            order.fault(row, reason)
            self._blacken(values, jobs, row, channels)
        height, width = self.size.height, self.size.width
        if into is not None:
            height, width = into.shape[2:] if self.finish.planar else into.shape[1:3]
        if height is None or width is None:
            sizes = {
                (int(h), int(w)) for h, w in zip(view.y.size.tolist(), view.x.size.tolist(), strict=True)
            }
            if len(sizes) > 1:
                return self._unequal(batch, jobs, view, order, channels)
            height, width = sizes.pop()
        if not self.size.fixed:
            self._fit(values, jobs, view, order, channels, (height, width))
        if into is None:
            into = self._memory(order, height, width, channels)
        padded = view.padded()
        if len(padded):
            self._with_padding(batch, jobs, view, order, into, padded.tolist())
        else:
            self._call(batch, jobs, order, into, self._spec(height, width, channels, self.finish))
        return Placed(into)

    def _memory(self, order: Order, height: int, width: int, channels: int) -> NDArray[Any]:
        if self._fresh or not self.finish.plain:
            return self.finish.empty(order.size, height, width, channels)
        return self._scratch.take([(order.size, height, width, channels)])[0]

    def _channels(self, values: list[Any], into: NDArray[Any] | None, order: Order) -> int:
        """How many channels the rows have; images of user code that have another number fail."""
        if self.size.channels is not None:
            return self.size.channels
        found = [0 if order.failed(row) else value.shape[2] for row, value in enumerate(values)]
        channels = next(filter(None, found), 3)
        if into is not None:
            channels = into.shape[1 if self.finish.planar else 3]
        for row, count in enumerate(found):
            if count and count != channels:
                order.fault(row, f"the image has {count} channels where others have {channels}")
        return channels

    def _jobs(self, batch: Batch, order: Order, channels: int) -> NDArray[Any]:
        values = batch.values
        jobs = np.zeros(len(values), kernels.JOB)
        if order.any_failed:
            for row in order.failed_rows():
                values[row] = _BLACK[channels]
                if batch.jpeg is not None:
                    batch.jpeg[row] = False
        if batch.jpeg is not None and batch.infos is not None:
            jobs["is_jpeg"] = batch.jpeg
            jobs["width"], jobs["height"], jobs["orientation"] = batch.infos[:, 1:4].T
            rows = np.flatnonzero(~batch.jpeg)
        else:
            rows = np.arange(len(values))
        if len(rows):
            shapes = np.array([values[row].shape for row in rows.tolist()])
            jobs["width"][rows], jobs["height"][rows] = shapes[:, 1], shapes[:, 0]
            jobs["orientation"][rows] = 1
        return jobs

    def _blacken(self, values: list[Any], jobs: NDArray[Any], row: int, channels: int) -> None:
        """Put a black pixel in the place of a row, so that it costs nothing and cannot fail."""
        values[row] = _BLACK[channels]
        jobs[row] = np.zeros((), kernels.JOB)
        for name in ("width", "height", "orientation"):
            jobs[name][row] = 1
        jobs["box"][row] = (0, 0, 1, 1)
        jobs["clamp"][row] = (0, 0, 1, 1)

    def _fit(
        self,
        values: list[Any],
        jobs: NDArray[Any],
        view: View,
        order: Order,
        channels: int,
        want: tuple[int, int],
    ) -> None:
        """Rows that do not have the batch's size fail."""
        wrong = (view.y.size != want[0]) | (view.x.size != want[1])
        for row in np.flatnonzero(wrong).tolist():
            if not order.failed(row):
                order.fault(row, misfit((int(view.y.size[row]), int(view.x.size[row])), want))
            self._blacken(values, jobs, row, channels)

    def _spec(self, height: int, width: int, channels: int, finish: Finish) -> Any:
        key = (height, width, channels, finish)
        if key not in self._specs:
            scale: Any = (1.0,)
            bias: Any = (0.0,)
            if finish.normalise is not None:
                scale, bias = finish.normalise.factors(channels)
            if len(self._specs) > 1024:  # images of ever new sizes must not fill the memory
                self._specs.clear()
            self._specs[key] = kernels.RowSpec(
                out_h=height,
                out_w=width,
                channels=channels,
                layout="CHW" if finish.planar else "HWC",
                dtype=finish.dtype,
                scale=scale,
                bias=bias,
                interpolation=self._interpolation,
                dct_scaling=self._dct_scaling,
                max_pixels=self._max_pixels,
            )
        return self._specs[key]

    def _call(self, batch: Batch, jobs: NDArray[Any], order: Order, out: NDArray[Any], spec: Any) -> None:
        begin = time.perf_counter()
        status = kernels.rows_many(self._workspace, batch.values, jobs, out, spec)
        seconds = time.perf_counter() - begin
        if batch.jpeg is None:
            self._row_seconds = seconds / len(jobs)
        elif batch.jpeg.any():
            # Decoding and augmenting are one here. What rows of arrays took last time is the augmenting.
            share = float(batch.jpeg.mean())
            known = self._row_seconds
            order.decoding.append(seconds * share if known is None else max(seconds - known * len(jobs), 0.0))
        if status.any():
            for row in np.flatnonzero(status).tolist():
                order.fault(row, kernels.status_text(int(status[row]), batch.values[row]))

    def _unequal(self, batch: Batch, jobs: NDArray[Any], view: View, order: Order, channels: int) -> Placed:
        """Rows of different sizes: each size is a call of its own, into memory of its own."""
        sizes: dict[tuple[int, int], list[int]] = {}
        for row, size in enumerate(zip(view.y.size.tolist(), view.x.size.tolist(), strict=True)):
            sizes.setdefault((int(size[0]), int(size[1])), []).append(row)
        out: list[Any] = [None] * order.size
        for (height, width), rows in sizes.items():
            part = batch.part(rows)
            memory = self.finish.empty(len(rows), height, width, channels)
            spec = self._spec(height, width, channels, self.finish)
            self._call(part, jobs[rows], order.part(rows), memory, spec)
            for at, row in enumerate(rows):
                out[row] = memory[at]
        return Placed(None, out)

    def _with_padding(
        self,
        batch: Batch,
        jobs: NDArray[Any],
        view: View,
        order: Order,
        into: NDArray[Any],
        padded: list[int],
    ) -> None:
        """Rows that are partly fill get their visible part alone, and then all rows are finished together."""
        height, width = self.finish_size(into)
        channels = into.shape[1] if self.finish.planar else into.shape[3]
        pixels = into if self.finish.plain else self._scratch.take([(order.size, height, width, channels)])[0]
        parts = {row: (batch.values[row], jobs[row].copy()) for row in padded}
        jpeg = None if batch.jpeg is None else batch.jpeg.copy()
        for row in padded:
            self._blacken(batch.values, jobs, row, channels)
            if batch.jpeg is not None:
                batch.jpeg[row] = False
        self._call(batch, jobs, order, pixels, self._spec(height, width, channels, PLAIN))
        zeros = np.zeros(order.size)
        x, y = (axis.inset if axis.inset is not None else zeros for axis in (view.x, view.y))
        bodies = np.stack([x, y, view.x.body, view.y.body], axis=1).astype(np.int64).tolist()
        for row, (source, job) in parts.items():
            pixels[row] = self._fill
            left, top, w, h = bodies[row]
            if order.failed(row) or not (w and h):
                continue
            alone = Batch([source], None if jpeg is None else jpeg[row : row + 1])
            visible = np.empty((1, h, w, channels), np.uint8)
            self._call(alone, job[None], order.part([row]), visible, self._spec(h, w, channels, PLAIN))
            pixels[row, top : top + h, left : left + w] = visible[0]
        if pixels is not into:
            rows = Batch(list(pixels))
            self._call(
                rows, _whole(rows.values), order, into, self._spec(height, width, channels, self.finish)
            )

    def finish_size(self, into: NDArray[Any]) -> tuple[int, int]:
        """Height and width of the rows in ``into``."""
        return (into.shape[2], into.shape[3]) if self.finish.planar else (into.shape[1], into.shape[2])


def _whole(values: list[Any]) -> NDArray[Any]:
    """Jobs that show all of each image."""
    jobs = np.zeros(len(values), kernels.JOB)
    height, width = values[0].shape[:2]
    jobs["width"], jobs["height"], jobs["orientation"] = width, height, 1
    jobs["box"] = jobs["clamp"] = (0, 0, width, height)
    return jobs


class Paint:
    """Steps on single uint8 images, row by row."""

    def __init__(self, steps: list[tuple[int, Pixels]]) -> None:
        self.steps = steps

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Placed:
        """New images; ``into`` is left to the stage that writes rows."""
        values = list(batch.values)
        for position, step in self.steps:
            for row, parameters in enumerate(step.parameters(order.draw(position))):
                if parameters is None or order.failed(row):
                    continue
                try:
                    values[row] = step.apply(values[row], parameters)
                except Exception as error:
                    order.fault(row, error)
        return Placed(None, values)


class Erase:
    """``random_erasing``, in place on written rows, or on copies of images that belong to somebody else."""

    def __init__(self, position: int, step: RandomErasing, finish: Finish, *, owned: bool) -> None:
        self._position, self._step, self._finish, self._owned = position, step, finish, owned

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Placed:
        """The rows with their boxes erased."""
        draw = order.draw(self._position)
        values = list(batch.values)
        planar = self._finish.planar
        live = [row for row in range(order.size) if not order.failed(row)]
        sizes = np.ones((order.size, 2))
        for row in live:
            sizes[row] = values[row].shape[1:] if planar else values[row].shape[:2]
        boxes = self._step.boxes(sizes[:, 0], sizes[:, 1], draw)
        for row in live:
            box = boxes[row]
            if box is not None:
                if not self._owned:
                    values[row] = values[row].copy()
                self._step.erase(values[row], box, planar, self._finish.dtype, (draw, row))
        return Placed(batch.block, values)


class Transpose:
    """``layout`` on rows that are already written: by pixel to planar or back."""

    def __init__(self, planar: bool) -> None:
        self._axes = (2, 0, 1) if planar else (1, 2, 0)

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Placed:
        """The rows in their new order."""
        values = list(batch.values)
        for row in range(order.size):
            if order.failed(row):
                continue
            value = values[row].transpose(self._axes)
            if into is None:
                values[row] = np.ascontiguousarray(value)
            elif into.shape[1:] == value.shape:
                into[row] = value
            else:
                order.fault(row, misfit(value.shape, into.shape[1:]))
        return Placed(None, values) if into is None else Placed(into)
