"""Reading from a source: as many samples at once as storage needs to keep up with preparing, and again what it could
not give just now. What is to be done when is decided by ``planning.window``."""

from __future__ import annotations

import itertools
import random
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import environment
from headrace.core.errors import StorageUnavailable
from headrace.engine.gate import Gate
from headrace.engine.queues import Closed
from headrace.engine.read_threads import Job, ReadThreads
from headrace.planning import window
from headrace.planning.window import Answer, Attempts, Patience
from headrace.sources.source import Source
from headrace.sources.temporary import doubtful, not_now

Blob = bytes | BaseException


class Reader:
    """Reads the samples of one source. Several threads may."""

    def __init__(self, source: Source, gate: Gate | None = None) -> None:
        """``gate``: told what is being read, in a worker. Without one it is the caller's thread that reads, unless
        several have to."""
        self._source = source
        self._watched = gate is not None
        self.gate = Gate() if gate is None else gate
        self.threads = ReadThreads()
        weakref.finalize(self, self.threads.close).atexit = False
        self.turns = itertools.count()
        self.rules = Patience(environment.storage_patience())
        self.luck = random.Random().random  # (the user's own random numbers stay as they are)
        self.usual = 0.0
        """Seconds that reading a sample takes."""
        self._known = False
        self._prepare_time = 1e-3

    @property
    def patience(self) -> float:
        """Seconds for which storage is asked again."""
        return self.rules.total

    def prepared(self, rows: int, seconds: float) -> None:
        """Take note of how long preparing takes: reading need not be faster."""
        if rows:
            self._prepare_time += 0.3 * (seconds / rows - self._prepare_time)

    def read(
        self, indices: NDArray[np.int64], *, patient: bool = True
    ) -> tuple[Sequence[bytes | BaseException], float]:
        """The bytes of each sample, or why there are none; and the seconds that one of them took.

        ``patient``: what storage does not give just now is waited for, until it raises ``StorageUnavailable``.
        """
        count = len(indices)
        if not count:
            return [], 0.0
        wide = self.gate.narrowed(window.width(self.usual, self._prepare_time))
        self.threads.allow(self.gate.allowed() or window.UNTOLD)
        fast = self._known and window.reads_itself(self.usual, count)
        if min(wide, count) == 1 and (fast or not self._watched):
            begun = time.perf_counter()
            with self.gate.reads_itself(lambda: self.name(int(indices[0]))):
                blobs = self.part(indices)
            seconds = time.perf_counter() - begun
            again = [
                row for row, blob in enumerate(blobs) if isinstance(blob, BaseException) and _may_come(blob)
            ]
            if again and patient:
                seconds += _Reads(self, indices, patient).go_on(blobs, again)
        else:
            blobs, seconds = _Reads(self, indices, patient).all(min(self.gate.parts(wide), count), wide)
        each = seconds / count
        self.usual += 0.3 * (each - self.usual)
        self._known = True
        return blobs, each

    def part(self, indices: NDArray[np.int64]) -> list[Blob]:
        """What the source gives. One that raises is asked again for each sample, to find the one at fault."""
        try:
            blobs = list(self._source.read_many(indices))
            if len(blobs) != len(indices):
                raise ValueError(f"the source was asked for {len(indices)} samples and gave {len(blobs)}")
            return blobs
        except Exception as error:
            if len(indices) == 1 or not_now(error):
                return [error] * len(indices)
        return [blob for at in range(len(indices)) for blob in self.part(indices[at : at + 1])]

    def name(self, index: int) -> str:
        """What messages call a sample."""
        try:
            return f"sample {index} ({self._source.name(index)})"
        except Exception:
            return f"sample {index}"


class _Reads:
    """The reads of one order, as far as other threads do them. The thread that fetches it waits here."""

    def __init__(self, reader: Reader, indices: NDArray[np.int64], patient: bool) -> None:
        self._reader, self._gate, self._threads = reader, reader.gate, reader.threads
        self._indices, self._patient = indices, patient
        self._attempts: Attempts
        self._turn = next(reader.turns)
        self._changed = threading.Condition()
        self._done: list[tuple[list[int], list[Blob] | BaseException, float]] = []
        """Rows, what came of them, and seconds."""
        self._pending = 0
        self._urgent = False
        """There is something to be done about what was read."""
        self._jobs: dict[int, list[Job]] = {}
        self._uncounted: set[Job] = set()
        """Jobs that are over, or hang: those are not pending."""
        self._last: dict[int, BaseException] = {}
        self._seconds = 0.0
        """Of the reads that gave an answer."""

    def all(self, parts: int, wide: int) -> tuple[list[Blob], float]:
        """Read all rows, in so many parts at once; and the seconds that single reads took. ``wide``: reads that are
        wanted at once, of this order and others."""
        count = len(self._indices)
        self._attempts = Attempts(range(count), self._reader.rules)
        for part in np.array_split(np.arange(count), parts):
            self._begin(part.tolist(), wide)
        blobs: list[Any] = [None] * count
        self._wait(blobs)
        return blobs, self._seconds

    def go_on(self, blobs: list[Blob], again: list[int]) -> float:
        """Some rows were refused: try them again, until there are none. Returns the seconds that reads took."""
        self._attempts = Attempts(again, self._reader.rules)
        for row in again:
            self._attempts.begun([row], time.monotonic())
        self._note(again, [blobs[row] for row in again], 0.0, blobs)
        self._wait(blobs)
        return self._seconds

    def _begin(self, rows: list[int], wide: int | None = None) -> None:
        """Have rows read in one go."""
        self._attempts.begun(rows, time.monotonic(), self._reader.usual)
        job = Job(self._read, rows)
        for row in rows:
            self._jobs.setdefault(row, []).append(job)
        with self._changed:
            self._pending += 1
        self._gate.reads(1, wide)
        if not self._threads.submit(self._turn, job):
            job.read(job)

    def _read(self, job: Job) -> None:
        """In another thread."""
        begun = time.perf_counter()
        found: list[Blob] | BaseException
        try:
            found = self._reader.part(self._indices[job.rows])
            failed = any(isinstance(blob, BaseException) for blob in found)
        except BaseException as error:  # to be raised where it is waited for
            found, failed = error, True
        seconds = time.perf_counter() - begun
        with self._changed:
            self._done.append((job.rows, found, seconds))
            late = job in self._uncounted
            self._uncounted.add(job)
            self._pending -= not late
            if failed or late or not self._pending:
                self._urgent = True
                self._changed.notify()
        if self._threads.finish(job):
            self._gate.reads(-1)

    def _wait(self, blobs: list[Any]) -> None:
        """Until there is an answer for every row."""
        attempts = self._attempts
        while attempts.left:
            now = time.monotonic()
            for row in attempts.due(now):
                if attempts.hanging(row):
                    self._leave(row)
                self._begin([row])
            lost = attempts.given_up(now)
            if lost is not None:
                row, seconds = lost
                raise self._unavailable(row, seconds, self._last.get(row))
            for rows, found, seconds in self._take(attempts.look_at()):
                if isinstance(found, BaseException):
                    raise found
                self._note(rows, found, seconds, blobs)
        with self._changed:
            self._jobs.clear()  # they know this object, and nothing is to be held in a circle
            self._uncounted.clear()

    def _leave(self, row: int) -> None:
        """Attempts at a row hang: do not wait for them any more, and have other threads in the place of theirs."""
        for job in self._jobs[row]:
            with self._changed:
                if job not in self._uncounted:
                    self._uncounted.add(job)
                    self._pending -= 1
            if self._threads.lose(job):
                self._gate.reads(-1)

    def _take(self, until: float) -> list[tuple[list[int], list[Blob] | BaseException, float]]:
        """What was read, once there is something to be done."""
        if not self._urgent:
            with self._gate.waits(self._wake), self._changed:
                while not self._urgent and not self._gate.stopped:
                    left = min(until - time.monotonic(), threading.TIMEOUT_MAX)
                    if left <= 0 or not self._changed.wait(left):
                        break
        if self._gate.stopped:
            raise Closed
        with self._changed:
            self._urgent = False
            done, self._done = self._done, []
        return done

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _note(self, rows: list[int], found: list[Blob], seconds: float, blobs: list[Any]) -> None:
        """Rows were read. Those that have an answer are done with."""
        now, answers = time.monotonic(), 0
        for row, blob in zip(rows, found, strict=True):
            if not self._attempts.waits_for(row):
                continue  # another attempt was faster
            if self._patient and isinstance(blob, BaseException) and _may_come(blob):
                doubt = doubtful(blob)
                after = 0.0 if doubt else float(getattr(blob, "retry_after", None) or 0.0)
                luck, paced = self._reader.luck(), bool(getattr(blob, "paced", False))
                answer = self._attempts.refused(
                    row, now, luck, retry_after=after, doubtful=doubt, paced=paced
                )
                if answer is Answer.GIVE_UP:
                    raise self._unavailable(row, self._reader.patience, blob)
                if answer is Answer.AGAIN:
                    self._last[row] = blob
                    continue
            blobs[row] = blob
            self._attempts.answered(row)
            answers += 1
        self._seconds += seconds * answers / len(rows)

    def _unavailable(self, row: int, seconds: float, last: BaseException | None) -> StorageUnavailable:
        error = unavailable(self._reader.name(int(self._indices[row])), seconds, last)
        error.__cause__ = last
        return error


def _may_come(blob: Blob) -> bool:
    return isinstance(blob, BaseException) and (not_now(blob) or doubtful(blob))


def unavailable(name: str, seconds: float, last: BaseException | None = None) -> StorageUnavailable:
    """The error for a sample that storage did not give for so long. ``last``: its last answer, if it gave one."""
    said = "it does not answer" if last is None else f"{type(last).__name__}: {last}"
    return StorageUnavailable(
        f"storage did not give {name} for {seconds:.0f} s: {said}. It is not known to be a bad sample, so it is not "
        "skipped. Look after the storage, or the connection to it, and run again. For how many seconds it is asked "
        "again, HEADRACE_STORAGE_PATIENCE in the environment says (docs/recipes.md)."
    )
