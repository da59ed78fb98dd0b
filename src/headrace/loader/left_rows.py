"""Rows that workers left to the device: decoded there, cut, and put where they belong in the batch.

Decoding is waited for, so a thread of its own does it, some batches ahead of what the loop asks for. What the device
cannot decode is decoded here as a worker would have done it, and so what is wrong with a sample is said in the same
words.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.loader import cutting_kernel
from headrace.loader.cuts import cuts_of, plain_cut
from headrace.loader.device_decoders import DeviceDecoder
from headrace.planning.device_share import DeviceShare
from headrace.recipes.image import kernels, left
from headrace.recipes.image.rowspec import JOB, RowSpec
from headrace.recipes.program import Fault

_BATCHES, _SECONDS = 8, 0.5
"""What the loop gets is looked at over so many batches, and so long a time, at least."""
COPIES = 3
"""Batches whose way to the device is begun before they are asked for, where some of their rows are decoded there."""


class Opening:
    """Rows of one batch that are being decoded."""

    def __init__(self, memory: NDArray[np.uint8], rows: list[int]) -> None:
        """``memory``: all rows of the batch; ``rows``: those that were left."""
        self.memory, self.rows = memory, rows
        self.images: dict[int, torch.Tensor] = {}
        """By row: what was decoded on the device."""
        self.jobs: dict[int, Any] = {}
        self.faults: dict[int, str] = {}
        """By row: why it cannot be had at all."""
        self.error: BaseException | None = None
        self._over = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether it is over."""
        return self._over.is_set()

    def end(self) -> None:
        """All is done."""
        self._over.set()

    def wait(self, timeout: float | None) -> None:
        """Until it is over. TimeoutError: that takes too long."""
        if not self._over.wait(timeout):
            raise TimeoutError
        if self.error is not None:
            raise self.error


class Division:
    """Which share of the rows is left to the device: as it was given, else by what the loop gets."""

    def __init__(self, given: float | None) -> None:
        self.share = 0.0 if given is None else given
        self._finds = DeviceShare() if given is None else None
        self._since: tuple[float, float] | None = None
        """When the time began that is looked at, and for how long the loop had waited in all by then."""
        self._rows = self._batches = 0

    def taken(self, rows: int, waited: float) -> float:
        """The loop takes a batch, and has waited for so long in all. Returns the share from now on."""
        if self._finds is None:
            return self.share
        now = time.perf_counter()
        if self._since is not None:
            self._rows += rows
            self._batches += 1
            seconds = now - self._since[0]
            if self._batches < _BATCHES or seconds < _SECONDS:
                return self.share
            self.share = self._finds.note(self._rows, seconds, waited - self._since[1])
        self._since, self._rows, self._batches = (now, waited), 0, 0
        return self.share

    def pause(self) -> None:
        """An epoch begins: the time since the last one is not the loop's."""
        self._since = None


class LeftRows:
    """Makes rows of what workers left."""

    def __init__(
        self, spec: RowSpec, decoder: DeviceDecoder, device: torch.device, share: bool | float = True
    ) -> None:
        """``share``: of rows that are left, as far as they can be; True: as it is of use."""
        self._spec, self._decoder, self._device = spec, decoder, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.division = Division(None if share is True else float(share))
        self._workspace = kernels.Workspace()
        self._queue: queue.SimpleQueue[Opening | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.decoded = 0
        """Images that the device decoded."""
        self.refused = 0
        """Images that it could not decode."""
        self.seconds = 0.0
        """In which it was at work on them."""
        self.waited = 0.0
        """Seconds for which the loop waited for it."""

    def begin(self, memory: NDArray[np.uint8], rows: list[int]) -> Opening:
        """Begin to decode rows of a batch."""
        opening = Opening(memory, sorted(rows))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-decode", daemon=True)
            self._thread.start()
        self._queue.put(opening)
        return opening

    def close(self) -> None:
        """Nothing more is begun; what was begun is done."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _run(self) -> None:
        while (opening := self._queue.get()) is not None:
            try:
                self._open(opening)
            except BaseException as error:  # to be raised where it is waited for
                opening.error = error
            opening.end()
            del opening

    def _open(self, opening: Opening) -> None:
        begun = time.perf_counter()
        found = {}
        for row in opening.rows:
            try:
                found[row] = left.get(opening.memory[row])
            except ValueError as error:
                opening.faults[row] = str(error)
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            images = self._decoder([blob for blob, _ in found.values()]) if found else []
        if self._stream is not None:
            self._stream.synchronize()  # (until then bytes may be read where they lie)
        lost = []
        for (row, (_, job)), image in zip(found.items(), images, strict=True):
            if image is not None and _is_of(image, job):
                opening.images[row], opening.jobs[row] = image, job
            else:
                lost.append(row)
        self.seconds += time.perf_counter() - begun
        self.decoded += len(opening.images)
        for row in lost:
            self._here(opening, row, *found[row])

    def _here(self, opening: Opening, row: int, blob: NDArray[np.uint8], job: Any) -> None:
        """Make a row as a worker would have made it, in its place."""
        self.refused += 1
        made = np.empty((1, *self._spec.shape), np.uint8)
        try:
            (status,) = kernels.rows_many(self._workspace, [blob], np.array([job], JOB), made, self._spec)
            if status:
                opening.faults[row] = kernels.status_text(int(status), blob)
                return
        except Exception as error:
            opening.faults[row] = Fault.of(error).reason
            return
        opening.memory[row] = made[0]

    def cut(self, opening: Opening, pixels: torch.Tensor, kept: NDArray[np.int64] | None) -> None:
        """Put what was decoded into its rows, on the stream that is current. ``pixels``: the batch on the device
        (rows, height, width, channels); ``kept``: which row of the batch each of them is, if not all are there."""
        order = range(len(pixels)) if kept is None else kept.tolist()
        rows = [(at, row) for at, row in enumerate(order) if row in opening.images]
        if not rows:
            return
        images = [opening.images[row] for _, row in rows]
        cuts = cuts_of(np.array([opening.jobs[row] for _, row in rows], JOB), self._spec)
        if self._stream is not None:
            stream = torch.cuda.current_stream(self._device)
            for image in images:
                image.record_stream(stream)
        cut = cutting_kernel.cut if cutting_kernel.usable(pixels) else plain_cut
        cut(images, cuts, pixels, [at for at, _ in rows])


def _is_of(image: torch.Tensor, job: Any) -> bool:
    """Whether it is the image that was measured."""
    scale = max(int(job["scale"]), 1)
    height, width = (-(-side // scale) for side in image.shape[:2])
    return (height, width) == (int(job["height"]), int(job["width"]))
