"""Folding of crops, resizes and flips into one resampling: which part of the source a row shows.

All arithmetic is over the rows of an order at once. An axis of a framing maps the current image onto the source:
its pixels ``0 .. size`` show ``start .. start + span`` of the source, mirrored where ``mirrored`` is true. After
padding, only ``body`` pixels from ``inset`` on show the source; the rest are fill.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Axis:
    """The horizontal or vertical half of a framing."""

    __slots__ = ("body", "high", "inset", "low", "mirrored", "size", "span", "start")

    def __init__(self, size: Floats) -> None:
        self.size: Floats = size
        self.start: Floats = np.zeros(len(size))
        self.span: Floats = size
        self.mirrored: NDArray[np.bool_] | None = None
        self.low: Floats | None = None
        self.high: Floats | None = None
        self.inset: Floats | None = None
        self.body: Floats = size

    def crop(self, at: Any, length: Any) -> None:
        """Keep the ``length`` pixels from ``at`` on. What lies outside the image becomes padding."""
        length = self._each(length)
        if self.inset is None:
            scale = None if self.low is None else self.span / self.size
            if self.mirrored is not None:
                at = np.where(self.mirrored, self.size - at - length, at)
            self.start = self.start + (at if scale is None else at * scale)
            self.span = length if scale is None else length * scale
            self.size = self.body = length
            return
        first = np.maximum(at, self.inset)
        body = np.maximum(np.minimum(at + length, self.inset + self.body) - first, 0)
        skipped = first - self.inset
        if self.mirrored is not None:
            skipped = np.where(self.mirrored, self.body - skipped - body, skipped)
        scale = self.span / np.maximum(self.body, 1)
        self.start = self.start + skipped * scale
        self.span = body * scale
        self.inset, self.body, self.size = np.minimum(first - at, length), body, length

    def pad(self, before: Any, after: Any) -> None:
        """Add pixels of fill on both sides."""
        inset = np.zeros(len(self.size)) if self.inset is None else self.inset
        self.inset = inset + before
        self.size = self.size + before + after

    def mirror(self, which: NDArray[np.bool_]) -> None:
        """Mirror the rows where ``which`` is true."""
        self.mirrored = which if self.mirrored is None else self.mirrored ^ which
        if self.inset is not None:
            self.inset = np.where(which, self.size - self.inset - self.body, self.inset)

    def resize(self, length: Any) -> None:
        """Resample to ``length`` pixels; from here on, nothing outside the current part may be looked at."""
        if self.inset is not None or self.low is not None:
            raise AssertionError("a framing resamples once, and before it pads")
        self.low, self.high = self.start, self.start + self.span
        self.size = self.body = self._each(length)

    def _each(self, length: Any) -> Floats:
        """A length for each row."""
        if isinstance(length, np.ndarray):
            return length
        return np.full(len(self.start), float(length))


class Framing:
    """What each row of an order shows of its source image."""

    __slots__ = ("faults", "x", "y")

    def __init__(self, width: Floats, height: Floats) -> None:
        self.x = Axis(width)
        self.y = Axis(height)
        self.faults: dict[int, str] = {}

    def resize(self, height: Any, width: Any) -> None:
        """Resample to ``height`` by ``width``."""
        self.x.resize(width)
        self.y.resize(height)

    def write(self, jobs: NDArray[Any]) -> None:
        """Fill in box, clamp and flips of each row's job."""
        box, clamp = jobs["box"], jobs["clamp"]
        for at, (axis, flip) in enumerate(((self.x, "hflip"), (self.y, "vflip"))):
            box[:, at] = axis.start
            box[:, at + 2] = axis.span
            clamp[:, at] = axis.start if axis.low is None else axis.low
            clamp[:, at + 2] = axis.start + axis.span if axis.high is None else axis.high
            if axis.mirrored is not None:
                jobs[flip] = axis.mirrored

    @property
    def exact(self) -> bool:
        """Whether every pixel shown is one of the source's, and none is resampled."""
        return self.x.low is None and self.y.low is None

    @property
    def pads(self) -> bool:
        """Whether a part of any row may be fill."""
        return self.x.inset is not None or self.y.inset is not None

    def padded(self) -> list[int]:
        """The rows of which a part is fill."""
        if not self.pads:
            return []
        rows: list[int] = np.flatnonzero((self.x.body < self.x.size) | (self.y.body < self.y.size)).tolist()
        return rows

    def bodies(self) -> list[tuple[int, int, int, int]]:
        """For each row where the source shows: left, top, width and height of that part of the row."""
        zeros = np.zeros(len(self.x.start))
        left, top = (zeros if axis.inset is None else axis.inset for axis in (self.x, self.y))
        edges = np.stack([left, top, self.x.body, self.y.body], axis=1).astype(np.int64)
        return [(a, b, c, d) for a, b, c, d in edges.tolist()]
