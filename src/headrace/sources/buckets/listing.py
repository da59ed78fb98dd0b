"""Listing a bucket: a folder's objects in the order that local folders have, several of its sub-folders at a time."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.sources.buckets.gathering import Found, Gathering, Spill
from headrace.sources.buckets.manifest import Manifest, Writer
from headrace.sources.buckets.storage import BucketStorage, version_of
from headrace.sources.buckets.traffic import watch
from headrace.sources.buckets.urls import Url

_AT_ONCE = 16
"""Sub-folders that are listed at a time."""
_PAGE = 1000
_SILENT, _EVERY = 2.0, 0.2
"""Seconds before a listing says how far it is, and between two times that it does."""


@dataclass
class Listed:
    """What was found."""

    groups: dict[bytes, Gathering] = field(default_factory=dict)
    """By class; by anything, in order, where there are none."""
    loose: int = 0
    """Objects that lie in no class."""
    anything: bool = False

    @property
    def count(self) -> int:
        """Objects in all."""
        return sum(group.count for group in self.groups.values())


class Lister:
    """Lists one folder. ``wanted``: whether an object's own name, in lower case, is that of a sample."""

    def __init__(
        self, storage: BucketStorage, url: Url, *, labels: bool, wanted: Callable[[bytes], bool], spill: Spill
    ) -> None:
        self._storage, self._url, self._labels = storage, url, labels
        self._wanted, self._spill = wanted, spill
        self._cut = len(os.fsencode(url.key)) + 1 if url.key else 0
        self._stop = threading.Event()
        self._listed = Listed()
        self._lock = threading.Lock()

    def run(self) -> Listed:
        """All of it. Ctrl-C ends it within a request."""
        listed = self._listed
        pages = self._storage.pages(self._url, stop=self._stop)
        with _Progress(self._url, listed) as progress, contextlib.closing(pages):
            first = next(pages, [])
            listed.anything = bool(first)
            if len(first) < _PAGE:
                self._take(first)
            elif not self._labels and all(self._right_below(one) for one in first):
                self._take(first)
                for page in pages:
                    self._take(page)
                    progress()
            else:
                pages.close()
                self._by_folder(progress)
        for group in listed.groups.values():
            group.settle()
        return listed

    def _right_below(self, meta: Any) -> bool:
        return b"/" not in os.fsencode(meta["path"])[self._cut :]

    def _by_folder(self, progress: Callable[[], None]) -> None:
        """Many objects: each sub-folder is listed by itself."""
        at = self._url
        folders, objects = self._storage.folders(at)
        while len(folders) == 1 and not objects and not self._labels:
            at = Url(at.root, folders[0].rstrip("/"))
            folders, objects = self._storage.folders(at)
        self._take(objects)
        waiting = iter(folders)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                while not self._stop.is_set():
                    with self._lock:
                        name = next(waiting, None)
                    if name is None:
                        return
                    below = self._storage.pages(Url(at.root, name.rstrip("/")), stop=self._stop)
                    for page in below:
                        self._take(page)
                    with self._lock:  # (or the last few of each would be held in memory to the end)
                        for group in self._listed.groups.values():
                            group.settle()
            except BaseException as error:
                failed.append(error)
                self._stop.set()

        threads = [
            threading.Thread(target=work, name="headrace-list", daemon=True)
            for _ in range(min(_AT_ONCE, len(folders)))
        ]
        try:
            for thread in threads:
                watch(thread)
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_EVERY)
                    progress()
        finally:
            self._stop.set()
        if failed:
            raise failed[0]

    def _take(self, metas: list[Any]) -> None:
        """Sort objects by class. Names that start with a dot are passed over, as in local folders."""
        by_class: dict[bytes, list[Found]] = {}
        loose = 0
        for meta in metas:
            name = os.fsencode(meta["path"])[self._cut :]
            if name.startswith(b".") or b"/." in name:
                continue
            first, slash, _ = name.partition(b"/")
            if self._labels and not slash:
                loose += 1
                continue
            group = by_class.setdefault(first if self._labels else b"", [])
            if self._wanted(name.rpartition(b"/")[2].lower()):
                group.append(Found(name, meta["size"], version_of(meta)))
        with self._lock:
            self._listed.loose += loose
            for key, found in by_class.items():
                group_of = self._listed.groups.get(key)
                if group_of is None:
                    group_of = self._listed.groups[key] = Gathering(self._spill)
                group_of.add(found)


class _Progress:
    """A line on a terminal, for a listing that takes long."""

    def __init__(self, url: Url, listed: Listed) -> None:
        self._url, self._listed = url, listed
        self._draws = sys.stderr.isatty()
        self._next = time.monotonic() + _SILENT
        self._drawn = False

    def __call__(self) -> None:
        now = time.monotonic()
        if self._draws and now >= self._next:
            self._next, self._drawn = now + _EVERY, True
            sys.stderr.write(f"\rlisting {self._url}: {self._listed.count:,} objects\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def write(listed: Listed, url: Url, classes: list[bytes] | None, folder: Path, path: Path) -> Manifest:
    """Keep what was found as a manifest at ``path``."""
    largest = max((group.largest for group in listed.groups.values()), default=0)
    names = None if classes is None else [os.fsdecode(name) for name in classes]
    writer = Writer(folder, str(url), listed.count, wide=largest >> 32 > 0, classes=names, listed=time.time())
    try:
        for number, key in enumerate(sorted(listed.groups) if classes is None else classes):
            target = None if classes is None else number
            for some, sizes, versions in listed.groups[key].all():
                writer.append(some, sizes, versions, target)
        return writer.finish(path)
    except BaseException:
        writer.abandon()
        raise


def pages_after(storage: BucketStorage, url: Url, key: str) -> Iterator[Any]:
    """The first page of what comes after a key, below a folder."""
    with contextlib.closing(storage.pages(url, after=key)) as pages:
        yield from next((page for page in pages if page), [])
