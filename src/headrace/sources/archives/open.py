"""All indexes of a source: those that are kept, and those that have to be made, several at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from headrace.core.bar import Bar
from headrace.core.errors import OptionError
from headrace.core.interrupts import held
from headrace.sources.archives import index_files
from headrace.sources.archives.alone import alone
from headrace.sources.archives.build import add_columns, build
from headrace.sources.archives.columns import Wanted
from headrace.sources.archives.index import Index
from headrace.sources.archives.patterns import public
from headrace.sources.storage import Entry, Storage, is_url

_THREADS_FAR, _THREADS_HERE = 16, 4
_SOON = 1.0
"""Seconds after which there is a bar."""
_LOOK = 0.1


@dataclass(frozen=True)
class Opened:
    """An archive and its index."""

    entry: Entry
    index: Index
    kept: bool
    """There is a file of it."""


def open_indexes(storage: Storage, entries: Sequence[Entry], targets: Sequence[Wanted]) -> list[Opened]:
    """The index of each archive, with these targets."""
    work = _Work(storage, targets)
    if not entries:
        return []
    threads = _THREADS_FAR if is_url(entries[0].what) else _THREADS_HERE
    begun = time.monotonic()
    whole = sum(entry.size for entry in entries) or 1
    pool = ThreadPoolExecutor(min(threads, len(entries)), "headrace-index")
    try:
        with Bar("indexing shards", every=0.2) as bar:
            with held():  # a thread that is just being started would be lost sight of
                futures: list[Future[Opened]] = [pool.submit(work.open, entry) for entry in entries]
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                for one in done:
                    one.result()  # the first error ends it all
                if time.monotonic() - begun > _SOON:
                    bar(f"{len(futures) - len(waiting)} of {len(futures)}", min(1.0, work.seen / whole))
        return [one.result() for one in futures]
    finally:
        work.stop.set()
        pool.shutdown(cancel_futures=True)


class _Work:
    """What the threads do."""

    def __init__(self, storage: Storage, targets: Sequence[Wanted]) -> None:
        self._storage, self._targets = storage, targets
        self.stop = threading.Event()
        self._seen: dict[bytes, int] = {}

    @property
    def seen(self) -> int:
        """Bytes of archives that lie behind."""
        return sum([*self._seen.values()])

    def open(self, entry: Entry) -> Opened:
        """The index that is kept, with what it lacks, or a new one."""
        index = index_files.load(entry)
        if index is None or self._lacking(index):
            with alone(index_files.lock(entry), self.stop.is_set):
                index = index_files.load(entry)
                if index is None or self._lacking(index):
                    return self._make(entry, index)
        self._note(entry, entry.size)
        return Opened(entry, index, True)

    def _lacking(self, index: Index) -> list[Wanted]:
        return [one for one in self._targets if one.text not in index.columns and _has(index, one.field)]

    def _make(self, entry: Entry, index: Index | None) -> Opened:
        if index is not None:
            lacking = self._lacking(index)
            index = add_columns(
                self._storage, entry, index, lacking, shown=_shown(entry), stopped=self.stop.is_set
            )
        else:
            index = build(
                self._storage,
                entry,
                self._targets,
                shown=_shown(entry),
                stopped=self.stop.is_set,
                seen=lambda at: self._note(entry, at),
            )
        self._check(entry)
        self._note(entry, entry.size)
        return Opened(entry, index, index_files.store(entry, index))

    def _note(self, entry: Entry, at: int) -> None:
        self._seen[entry.what] = at

    def _check(self, entry: Entry) -> None:
        """Whether what was read is what was described: an index of two versions would fit none."""
        (now,) = self._storage.describe([entry.what])
        if isinstance(now, BaseException) or now.version != entry.version:
            raise OptionError(
                f"shard {_shown(entry)!r} was changed while it was read; wait until it is written"
            )


def _has(index: Index, field: str) -> bool:
    return any(ext.lower() == field for ext in index.exts)


def _shown(entry: Entry) -> str:
    return public(os.fsdecode(entry.what))
