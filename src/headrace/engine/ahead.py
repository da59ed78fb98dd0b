"""Copying ahead of need: while a worker has no order, samples of batches to come go from storage to the disk tier.

What is copied when is decided by ``planning.best_effort``. The thread that claims tells of batches as it sees them,
and when there is nothing to claim; another one copies, a few samples at a time, until there is an order again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.messages import Order
from headrace.engine.disk_stage import DiskStage
from headrace.engine.reader import Reader
from headrace.planning import Spent
from headrace.planning.best_effort import BestEffort
from headrace.sources.source import Source

_AT_ONCE = 8
"""Samples that are read at a time: what cannot be interrupted."""


class AheadCopies:
    """What a worker copies while it has nothing else to do."""

    def __init__(self, source: Source, disk: DiskStage) -> None:
        self._disk = disk
        self._reader = Reader(source)
        self._plan = BestEffort()
        self._changed = threading.Condition()
        self._idle = self._stopped = False
        self._thread: threading.Thread | None = None
        self._segments: dict[int, list[int]] = {}
        """By batch, what its copies are released by."""
        self.report: Callable[[Spent], None] = lambda _: None
        """Told what was read."""

    def claimed(self, order: Order) -> None:
        """There is an order: nothing more is copied until it is done with."""
        with self._changed:
            self._idle = False
            over = self._plan.reached(order.sequence, order.epoch)
            if order.later:
                self._plan.commit(order.later_batch, np.frombuffer(order.later, np.int64))
            gone = [number for batch in over for number in self._segments.pop(batch, ())]
        self._disk.release(gone)

    def idle(self) -> None:
        """There has been no order for a while."""
        with self._changed:
            if self._stopped or not self._plan.waiting:
                return
            self._idle = True
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._copy, name="headrace-ahead", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop; what was copied and not used is released."""
        with self._changed:
            self._stopped, self._idle = True, False
            self._changed.notify()
            gone = [number for numbers in self._segments.values() for number in numbers]
            self._segments.clear()
        self._disk.release(gone)

    def _copy(self) -> None:
        while True:
            with self._changed:
                while not self._idle and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                found = self._plan.next(_AT_ONCE)
                if found is None:
                    self._idle = False
                    continue
            with contextlib.suppress(Exception):  # whoever needs it will hear of it
                self._copy_some(*found)

    def _copy_some(self, batch: int, samples: NDArray[np.int64]) -> None:
        names = self._disk.names(samples)
        missing = self._disk.missing(names)
        if not missing or not self._disk.has_room_ahead(len(missing)):
            return
        blobs, _ = self._reader.read(samples[missing], patient=False)
        read = [
            (names[row], blob)
            for row, blob in zip(missing, blobs, strict=True)
            if not isinstance(blob, BaseException)
        ]
        number = self._disk.keep_ahead(read)
        if number is not None:
            with self._changed:
                stopped = self._stopped
                if not stopped:
                    self._plan.copied(batch)
                    self._segments.setdefault(batch, []).append(number)
            if stopped:
                self._disk.release([number])
        self.report(Spent(fetched=len(read), fetched_bytes=sum(len(blob) for _, blob in read)))
