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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.cache.arena import Arena
from headrace.engine.held import HeldSamples
from headrace.loader import cutting_kernel
from headrace.loader.cuts import Pictures, cuts_of, plain_cut
from headrace.loader.device import Event
from headrace.loader.device_cache import DeviceCache, OwnRooms, Room, Rooms
from headrace.loader.device_decoders import DeviceDecoder
from headrace.planning.device_share import DeviceShare
from headrace.recipes.image import kernels, left
from headrace.recipes.image.rowspec import RowSpec
from headrace.recipes.program import Fault

_BATCHES, _SECONDS = 8, 0.5
"""What the loop gets is looked at over so many batches, and so long a time, at least."""
_FILLING = 0.5
"""The share of rows that is left to a device, at least, while there is room for their images."""
_NONE = Pictures.of([])
COPIES = 3
"""Batches whose way to the device is begun before they are asked for, where some of their rows are decoded there."""


class Opening:
    """Rows of one batch that are made on the device."""

    def __init__(
        self, memory: NDArray[np.uint8], rows: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> None:
        """``memory``: all rows of the batch; ``rows``: those that were left, and which samples they are."""
        self.memory, self.rows, self.samples = memory, rows, samples
        self.nbytes, self.jobs = left.get(memory, rows)
        self.pictures = _NONE
        """Images on the device, from which rows are cut,"""
        self.cuts_from: NDArray[np.int64] = np.empty(0, np.int64)
        """and for each of them the one of ``rows`` that it is for."""
        self.faults: dict[int, str] = {}
        """By row: why it cannot be had at all."""
        self.error: BaseException | None = None
        self._over = threading.Event()

    @property
    def whole(self) -> bool:
        """Whether no row of the batch is made anywhere else."""
        return len(self.pictures) == len(self.memory)

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
        self._last: tuple[float, float] | None = None
        """When a batch was taken last in this epoch, and for how long the loop had waited in all by then."""
        self._rows, self._batches, self._seconds, self._waited = 0, 0, 0.0, 0.0

    def taken(self, rows: int, waited: float) -> float:
        """The loop takes a batch, and has waited for so long in all. Returns the share from now on."""
        if self._finds is None:
            return self.share
        now = time.perf_counter()
        if self._last is not None:
            self._rows += rows
            self._batches += 1
            self._seconds += now - self._last[0]
            self._waited += waited - self._last[1]
            if self._batches >= _BATCHES and self._seconds >= _SECONDS:
                self.share = self._finds.note(self._rows, self._seconds, self._waited)
                self._rows, self._batches, self._seconds, self._waited = 0, 0, 0.0, 0.0
        self._last = now, waited
        return self.share

    def pause(self) -> None:
        """An epoch begins: the time since the last one is not the loop's."""
        self._last = None


@dataclass(frozen=True)
class Leaves:
    """What is to be left to a device."""

    device: torch.device
    decoder: DeviceDecoder
    share: bool | float
    cache: int
    """Bytes for images there."""
    pool: Callable[..., Rooms] | None = None
    """Makes the rooms of these, where they are shared with other jobs."""

    def room(self, arena: Arena, samples: int) -> tuple[int, int] | None:
        """Where workers look which samples are there, if any will be."""
        return HeldSamples.make(arena, samples) if self.cache else None

    def rows(self, spec: RowSpec, arena: Arena, room: tuple[int, int] | None, samples: int) -> LeftRows:
        """What makes rows of it."""
        cache = None
        if room is not None:
            cache = DeviceCache(samples, HeldSamples(arena, room, samples))
            if self.pool is None:
                cache.rooms = OwnRooms(self.cache, self.device)
            else:
                cache.rooms = self.pool(samples=samples, budget=self.cache, learn=cache.learn)
        return LeftRows(spec, self.decoder, self.device, self.share, cache)


class LeftRows:
    """Makes rows of what workers left."""

    def __init__(
        self,
        spec: RowSpec,
        decoder: DeviceDecoder,
        device: torch.device,
        share: bool | float,
        cache: DeviceCache | None = None,
    ) -> None:
        """``share``: of rows that are left, as far as they can be; True: as it is of use. ``cache``: keeps images."""
        self._spec, self._decoder, self._device, self.cache = spec, decoder, device, cache
        self._on_gpu = device.type == "cuda"
        self._division = Division(None if share is True else float(share))
        self._workspace = kernels.Workspace()
        self._queue: queue.SimpleQueue[Opening | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._one = threading.Lock()
        """Held by whichever of them does what one of them does at a time."""
        self._read: deque[tuple[Any, list[torch.Tensor]]] = deque()
        """Images that are read on another stream than they were made on, until the event has happened."""
        self.decoded = 0
        """Images that the device decoded."""
        self.refused = 0
        """Images that it could not decode."""
        self.waited = 0.0
        """Seconds for which the loop waited for it."""

    @property
    def share(self) -> float:
        """Of rows that are left. More are, while there is room for their images."""
        share = self._division.share
        return max(share, _FILLING) if self.holds else share

    @property
    def holds(self) -> bool:
        """Whether images stay on the device that are decoded there."""
        return self.cache is not None and not self.cache.full

    @property
    def counts(self) -> dict[str, int]:
        """What there was of all this, for ``stats``."""
        found = {"decoded": self.decoded, "refused": self.refused}
        if self.cache is not None:
            found |= {"held": self.cache.samples, "held_bytes": self.cache.bytes, "hits": self.cache.hits}
        return found

    def taken(self, rows: int, waited: float) -> float:
        """The loop takes a batch of so many rows, and has waited for so long for workers. Returns the share from now
        on."""
        self._division.taken(rows, waited + self.waited)
        return self.share

    def pause(self) -> None:
        """An epoch begins."""
        self._division.pause()

    def begin(self, memory: NDArray[np.uint8], rows: list[int], samples: NDArray[np.int64]) -> Opening:
        """Begin to make rows of a batch: of its samples, those at ``rows``."""
        which = np.sort(np.array(rows, np.int64))
        opening = Opening(memory, which, samples[which])
        if not opening.nbytes.any():  # (all of them are there)
            self._find(opening)
            opening.end()
            return opening
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, name=f"headrace-decode-{number}", daemon=True)
                for number in range(self._decoder.threads)
            ]
            for thread in self._threads:
                thread.start()
        self._queue.put(opening)
        return opening

    def close(self) -> None:
        """Nothing more is begun; what was begun is done."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join()
        while self._read:
            self._read.popleft()[0].synchronize()
        if self.cache is not None:
            self.cache.rooms.close()

    def _run(self) -> None:
        # (what it does is little, and training would have it wait for long)
        stream: Any = torch.cuda.Stream(self._device, priority=-1) if self._on_gpu else None  # type: ignore[no-untyped-call]
        while (opening := self._queue.get()) is not None:
            try:
                self._open(opening, stream)
            except BaseException as error:  # to be raised where it is waited for
                opening.error = error
            opening.end()
            del opening

    def _find(self, opening: Opening) -> None:
        """Images that are on the device already."""
        held = np.flatnonzero(opening.nbytes == 0)
        if not len(held):
            return
        assert self.cache is not None
        opening.pictures = Pictures.planes(*self.cache.find(opening.samples[held]))
        opening.cuts_from = held

    def _open(self, opening: Opening, stream: Any) -> None:
        with self._one:
            self._find(opening)
        for at in np.flatnonzero(opening.nbytes < 0).tolist():
            opening.faults[int(opening.rows[at])] = "what a worker left of it cannot be read"
        given = np.flatnonzero(opening.nbytes > 0)
        blobs = [
            left.bytes_of(opening.memory, *one)
            for one in zip(opening.rows[given].tolist(), opening.nbytes[given].tolist(), strict=True)
        ]
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            pictures, which = self._decoder(blobs) if blobs else (_NONE, [])
            right = _are_of(pictures, opening.jobs[given[which]])
            pictures, made = pictures.part(np.flatnonzero(right)), given[which][right]
            kept = self._keep(opening.samples[made], pictures)
        if stream is not None:
            stream.synchronize()  # (until then bytes may be read where they lie)
        with self._one:
            for one in kept:
                assert self.cache is not None
                self.cache.publish(*one)
            self.decoded += len(made)
            done = set(made.tolist())
            for at, blob in zip(given.tolist(), blobs, strict=True):
                if at not in done:
                    self._here(opening, at, blob)
        opening.pictures = Pictures.together(opening.pictures, pictures)
        opening.cuts_from = np.concatenate([opening.cuts_from, made])

    def _keep(self, samples: NDArray[np.int64], pictures: Pictures) -> list[tuple[int, Room, int, int]]:
        """Copy images to where they stay, as far as there is room."""
        kept = []
        if self.cache is not None and not self.cache.full:
            with self._one:
                for at, sample in enumerate(samples.tolist()):
                    image = pictures.tensor(at, self._device)
                    room = self.cache.add(sample, image)
                    if room is not None:
                        kept.append((sample, room, *image.shape[:2]))
        return kept

    def _here(self, opening: Opening, at: int, blob: NDArray[np.uint8]) -> None:
        """Make a row as a worker would have made it, in its place."""
        self.refused += 1
        row = int(opening.rows[at])
        made = np.empty((1, *self._spec.shape), np.uint8)
        try:
            (status,) = kernels.rows_many(
                self._workspace, [blob], opening.jobs[at : at + 1].copy(), made, self._spec
            )
            if status:
                opening.faults[row] = kernels.status_text(int(status), blob)
                return
        except Exception as error:
            opening.faults[row] = Fault.of(error).reason
            return
        opening.memory[row] = made[0]

    def cut(self, opening: Opening, batch: torch.Tensor, kept: NDArray[np.int64] | None) -> torch.Tensor:
        """Put what is on the device into its rows, on the stream that is current. ``batch``: as it is there (rows,
        channels, height, width; empty where all of it is made there); ``kept``: which row of the batch each of them
        is, if not all are there."""
        if batch.numel():
            pixels = batch.permute(0, 2, 3, 1)
        else:
            pixels = torch.empty(
                (len(opening.memory), *self._spec.shape), dtype=torch.uint8, device=self._device
            )
        self._cut(opening, pixels, kept)
        return pixels.permute(0, 3, 1, 2)

    def _cut(self, opening: Opening, pixels: torch.Tensor, kept: NDArray[np.int64] | None) -> None:
        if not len(opening.pictures):
            return
        targets = opening.rows[opening.cuts_from]
        pictures, jobs = opening.pictures, opening.jobs[opening.cuts_from]
        if kept is not None:
            found = {row: at for at, row in enumerate(targets.tolist())}
            some = [(at, found[row]) for at, row in enumerate(kept.tolist()) if row in found]
            which = [one for _, one in some]
            targets, pictures, jobs = np.array([at for at, _ in some]), pictures.part(which), jobs[which]
        if not len(targets):
            return
        while self._read and self._read[0][0].query():
            self._read.popleft()
        if self._on_gpu:
            stream = torch.cuda.current_stream(self._device)
            if self.cache is not None:
                self.cache.rooms.read_on(stream)
        cut = cutting_kernel.cut if cutting_kernel.usable(pixels) else plain_cut
        cut(pictures, cuts_of(jobs, self._spec), pixels, targets.tolist())
        if self._on_gpu and pictures.tensors:
            self._read.append((Event(stream), pictures.tensors))


def _are_of(pictures: Pictures, jobs: NDArray[Any]) -> NDArray[np.bool_]:
    """Of each, whether it is the image that was measured."""
    scales = np.maximum(jobs["scale"], 1)
    high, wide = -(-pictures.shapes[:, 0] // scales), -(-pictures.shapes[:, 1] // scales)
    same: NDArray[np.bool_] = (high == jobs["height"]) & (wide == jobs["width"])
    return same
