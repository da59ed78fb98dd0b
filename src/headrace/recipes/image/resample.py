"""Crops, resizes, flips and the writing of rows at work: one kernel call for all rows of an order.

A row that has failed carries a single black pixel from there on, so that the other rows keep their places and
one call still serves all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.layout import BFLOAT16
from headrace.recipes.image import kernels, left
from headrace.recipes.image.framing import Framing
from headrace.recipes.image.geometry import Geometry, Resampling
from headrace.recipes.image.rows import Normalise
from headrace.recipes.image.rowspec import MAX_PIXELS
from headrace.recipes.op import Size
from headrace.recipes.row_groups import RowGroup, RowValues, misfit

_BLACK = {channels: np.zeros((1, 1, channels), np.uint8) for channels in (1, 3)}
_SPECS = 256
"""Specs that are remembered; images of ever new sizes must not fill the memory."""


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

    def size(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Height, width and channels of a row of the given shape."""
        first, second, third = shape
        return (second, third, first) if self.planar else (first, second, third)

    def empty(self, rows: int, height: int, width: int, channels: int) -> NDArray[Any]:
        """Memory for rows."""
        dtype = "uint16" if self.dtype == BFLOAT16 else self.dtype
        return np.empty((rows, *self.shape(height, width, channels)), dtype)


PLAIN = Finish()


class Resample:
    """Any run of crops, resizes and flips, with at most one resampling in it, and the writing of rows.

    ``size``: what comes out, as far as it is known. ``fresh``: what comes out may outlive the order.
    """

    def __init__(
        self,
        steps: list[tuple[int, Geometry]],
        size: Size,
        finish: Finish,
        *,
        fresh: bool = False,
        dct_scaling: bool = True,
        as_stored: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.steps = steps
        self.size = size
        self.finish = finish
        self._fresh = fresh
        how = next((step for _, step in steps if isinstance(step, Resampling)), None)
        self._options = {
            "interpolation": "bilinear" if how is None else how.interpolation,
            "antialias": how is not None and how.antialias,
            "dct_scaling": dct_scaling and (how is None or how.shrink_on_load),
            "as_stored": as_stored,
            "max_pixels": max_pixels,
        }
        fills = [step.fill for _, step in steps if step.pads]
        self._fill = fills[0] if fills else (0,)
        self._workspace = kernels.Workspace()
        self._scratch = Scratch()
        self._specs: dict[tuple[int, int, int, Finish], kernels.RowSpec] = {}
        self._row_seconds: float | None = None

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """The rows, in ``into`` if given. Without it, rows of unequal size become arrays of their own."""
        channels = self._channels(held, group, into)
        jobs = self._jobs(held, group, channels)
        framing = Framing(jobs["width"].astype(np.float64), jobs["height"].astype(np.float64))
        for position, step in self.steps:
            step.fold(framing, group.draw(position))
        framing.write(jobs)
        if group.track is not None:
            rows = [group.row(at) for at in range(group.size)]
            group.track.note(framing, rows, jobs["height"], jobs["width"])
        for row, reason in framing.faults.items():
            group.fault(row, reason)
            _blacken(held, jobs, row, channels)
        height, width = self.size.height, self.size.width
        if into is not None:
            height, width, _ = self.finish.size(into.shape[1:])
        if height is None or width is None:
            sizes = _sizes(framing)
            if len(sizes) > 1:
                return self._unequal(held, jobs, framing, sizes, group, channels)
            ((height, width),) = sizes
        if not self.size.fixed:
            self._fit(held, jobs, framing, group, (height, width, channels))
        if into is None:
            into = self._memory(group.size, height, width, channels)
        elif group.work.leave is not None and not framing.pads and group.track is None:
            rows = self._leave(held, jobs, group, into)
            if rows:
                self._write_others(held, jobs, rows, group, into)
                return RowValues(None, block=into)
        self._write(held, jobs, framing, range(group.size), group, into)
        return RowValues(None, block=into)

    @property
    def leaves(self) -> bool:
        """Whether rows may be left to a device, which resamples as this does."""
        return self.finish.plain and self._options["interpolation"] == "bilinear"

    @property
    def may_pad(self) -> bool:
        """Whether a part of a row may be fill, which is found out from each image."""
        return any(step.pads for _, step in self.steps)

    def spec(self, height: int, width: int, channels: int) -> kernels.RowSpec:
        """What rows of one size are, for whoever makes those that were left."""
        return self._spec(height, width, channels, self.finish)

    def _leave(self, held: RowValues, jobs: NDArray[Any], group: RowGroup, into: NDArray[Any]) -> list[int]:
        """Leave the rows to a device that are to be, and can be; returns them."""
        wanted = group.work.leave
        if wanted is None or held.jpeg is None or held.infos is None or not self.leaves:
            return []
        asked = [at for at in range(group.size) if wanted[group.row(at)] and held.jpeg[at]]
        asked = [at for at in asked if not group.failed(at)]
        if not asked:
            return []
        may = left.can_be_left(held.infos[asked], [held.values[at] for at in asked], into[0].nbytes)
        rows = [at for at, one in zip(asked, may.tolist(), strict=True) if one]
        if not rows:
            return []
        left.put(into, rows, [held.values[at] for at in rows], jobs[rows])
        group.work.left += [group.row(at) for at in rows]
        return rows

    def _write_others(
        self, held: RowValues, jobs: NDArray[Any], but: list[int], group: RowGroup, into: NDArray[Any]
    ) -> None:
        """All rows but some, which stand: a call for each run of them. (What is left lies together, as a rule.)"""
        spec = self._spec(*self.finish.size(into.shape[1:]), self.finish)
        edges = [-1, *sorted(but), group.size]
        for before, after in itertools.pairwise(edges):
            rows = range(before + 1, after)
            if rows:
                part = into[before + 1 : after]
                self._call(held.part(rows), jobs[before + 1 : after], group.part(rows), part, spec)

    def _write(
        self,
        held: RowValues,
        jobs: NDArray[Any],
        framing: Framing,
        rows: Sequence[int],
        group: RowGroup,
        into: NDArray[Any],
    ) -> None:
        """Rows of one size; ``rows`` are their places in the framing."""
        if framing.pads:
            padded, bodies = set(framing.padded()), framing.bodies()
            here = [at for at, row in enumerate(rows) if row in padded]
            if here:
                shown = [bodies[row] for row in rows]
                self._with_padding(held, jobs, shown, framing.exact, group, into, here)
                return
        height, width, channels = self.finish.size(into.shape[1:])
        self._call(held, jobs, group, into, self._spec(height, width, channels, self.finish))

    def _memory(self, rows: int, height: int, width: int, channels: int) -> NDArray[Any]:
        if self._fresh or not self.finish.plain:
            return self.finish.empty(rows, height, width, channels)
        return self._scratch.take([(rows, height, width, channels)])[0]

    def _channels(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> int:
        """How many channels the rows have; images of user code that have another number fail."""
        if self.size.channels is not None:
            return self.size.channels
        found = [0 if group.failed(row) else value.shape[2] for row, value in enumerate(held.values)]
        channels = next(filter(None, found), 3) if into is None else self.finish.size(into.shape[1:])[2]
        for row, count in enumerate(found):
            if count and count != channels:
                group.fault(row, f"the image has {count} channels where others have {channels}")
        return channels

    def _jobs(self, held: RowValues, group: RowGroup, channels: int) -> NDArray[Any]:
        """A job for each row, with what it says about the source."""
        values = held.values
        jobs = np.zeros(len(values), kernels.JOB)
        if group.any_failed:
            for row in group.failed_rows():
                values[row] = _BLACK[channels]
                if held.jpeg is not None:
                    held.jpeg[row] = False
        if held.jpeg is not None and held.infos is not None:
            jobs["is_jpeg"] = held.jpeg
            jobs["width"], jobs["height"], jobs["orientation"] = held.infos[:, 1:4].T
            if held.infos.shape[1] > len(kernels.PROBE):
                jobs["scale"] = held.infos[:, len(kernels.PROBE)]
            for row in np.flatnonzero(~held.jpeg).tolist():
                jobs["height"][row], jobs["width"][row] = values[row].shape[:2]
                jobs["orientation"][row] = 1
        else:
            jobs["height"] = [value.shape[0] for value in values]
            jobs["width"] = [value.shape[1] for value in values]
            jobs["orientation"] = 1
        return jobs

    def _fit(
        self,
        held: RowValues,
        jobs: NDArray[Any],
        framing: Framing,
        group: RowGroup,
        want: tuple[int, int, int],
    ) -> None:
        """Rows that do not have the batch's size fail."""
        height, width, channels = want
        for row in np.flatnonzero((framing.y.size != height) | (framing.x.size != width)).tolist():
            group.fault(row, misfit((int(framing.y.size[row]), int(framing.x.size[row])), (height, width)))
            _blacken(held, jobs, row, channels)

    def _spec(self, height: int, width: int, channels: int, finish: Finish) -> kernels.RowSpec:
        key = (height, width, channels, finish)
        spec = self._specs.get(key)
        if spec is None:
            if len(self._specs) >= _SPECS:
                self._specs.clear()
            options: dict[str, Any] = dict(self._options)
            if finish.normalise is not None:
                options["scale"], options["bias"] = finish.normalise.factors(channels)
            layout: Any = "CHW" if finish.planar else "HWC"
            spec = kernels.RowSpec(height, width, channels, layout, finish.dtype, **options)
            self._specs[key] = spec
        return spec

    def _call(
        self, held: RowValues, jobs: NDArray[Any], group: RowGroup, out: NDArray[Any], spec: kernels.RowSpec
    ) -> None:
        begin = time.perf_counter()
        status = kernels.rows_many(self._workspace, held.values, jobs, out, spec)
        seconds = time.perf_counter() - begin
        if held.jpeg is None:
            self._row_seconds = seconds / len(jobs)
        else:
            # Decoding and augmenting are one here. What rows of arrays took last time is the augmenting.
            known = self._row_seconds
            guess = seconds * float(held.jpeg.mean())
            group.decoding.append(guess if known is None else max(seconds - known * len(jobs), 0.0))
        if status.any():
            for row in np.flatnonzero(status).tolist():
                group.fault(row, kernels.status_text(int(status[row]), held.values[row]))

    def _unequal(
        self,
        held: RowValues,
        jobs: NDArray[Any],
        framing: Framing,
        sizes: dict[tuple[int, int], list[int]],
        group: RowGroup,
        channels: int,
    ) -> RowValues:
        """Rows of different sizes: each size is a call of its own, into memory of its own."""
        out: list[Any] = [None] * group.size
        for (height, width), rows in sizes.items():
            memory = self.finish.empty(len(rows), height, width, channels)
            self._write(held.part(rows), jobs[rows], framing, rows, group.part(rows), memory)
            for at, row in enumerate(rows):
                out[row] = memory[at]
        return RowValues(out)

    def _with_padding(
        self,
        held: RowValues,
        jobs: NDArray[Any],
        bodies: list[tuple[int, int, int, int]],
        exact: bool,
        group: RowGroup,
        into: NDArray[Any],
        padded: list[int],
    ) -> None:
        """Rows that are partly fill get their visible part alone; then all rows are finished together."""
        height, width, channels = self.finish.size(into.shape[1:])
        pixels = into if self.finish.plain else self._scratch.take([(group.size, height, width, channels)])[0]
        parts = [(row, held.part([row]), jobs[row : row + 1].copy()) for row in padded]
        for row in padded:
            _blacken(held, jobs, row, channels)
        if len(padded) < group.size:
            self._call(held, jobs, group, pixels, self._spec(height, width, channels, PLAIN))
        for row, alone, job in parts:
            pixels[row] = self._fill
            left, top, w, h = bodies[row]
            if group.failed(row) or not (w and h):
                continue
            place = pixels[row, top : top + h, left : left + w]
            if alone.jpeg is None and exact:
                place[...] = _cut(alone.values[0], job[0])
                continue
            visible = np.empty((1, h, w, channels), np.uint8)
            self._call(alone, job, group.part([row]), visible, self._spec(h, w, channels, PLAIN))
            place[...] = visible[0]
        if pixels is not into:
            rows = RowValues(None, block=pixels)
            spec = self._spec(height, width, channels, self.finish)
            self._call(rows, _full_boxes(group.size, height, width), group, into, spec)


def _blacken(held: RowValues, jobs: NDArray[Any], row: int, channels: int) -> None:
    """Put a black pixel in the place of a row, so that it costs nothing and cannot fail."""
    held.values[row] = _BLACK[channels]
    if held.jpeg is not None:
        held.jpeg[row] = False
    jobs[row : row + 1] = _full_boxes(1, 1, 1)


def _full_boxes(rows: int, height: int, width: int) -> NDArray[Any]:
    """Jobs that show all of images of one size."""
    jobs = np.zeros(rows, kernels.JOB)
    jobs["width"], jobs["height"], jobs["orientation"] = width, height, 1
    jobs["box"] = jobs["clamp"] = (0, 0, width, height)
    return jobs


def _sizes(framing: Framing) -> dict[tuple[int, int], list[int]]:
    """The rows of each size that comes out."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for row, (height, width) in enumerate(zip(framing.y.size.tolist(), framing.x.size.tolist(), strict=True)):
        sizes.setdefault((int(height), int(width)), []).append(row)
    return sizes


def _cut(image: NDArray[np.uint8], job: Any) -> NDArray[np.uint8]:
    """A part of an image as it is: numpy does this faster than a kernel call for one row."""
    x, y, w, h = (int(value) for value in job["box"])
    part = image[y : y + h, x : x + w]
    return part[:: -1 if job["vflip"] else 1, :: -1 if job["hflip"] else 1]
