"""Downloads one object: in parts, several at once, on from where another process was cut off.

Beside the bytes lies a list of the parts that have come, each with its digest. It may say less than is there, and
after a crash of the machine more: so each part that it names is looked at before it counts. The digest of the whole
is taken as parts come.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.core import environment
from headrace.core.errors import NotNow
from headrace.datastore.errors import FetchFailed, SourceChanged, Stopped
from headrace.datastore.layout import on_disk
from headrace.datastore.remote import PART, Remote, describe, failed, read_part, storage_for
from headrace.datastore.tree import Meter
from headrace.datastore.urls import public_url
from headrace.datastore.web import Stop, WebStorage
from headrace.sources.location import Location

DATA, PARTS = "data.part", "parts.log"
_RECORD = struct.Struct("<I32sI")
_ABOUT = 0xFFFFFFFF
"""The index of the first record, which says of what the parts are."""
AHEAD = 6
"""Parts of one object that are under way at once."""
Progress = Callable[[int], None]
"""Told how many bytes more there are; fewer than none where it starts over."""


class Download:
    """One object on its way into a folder."""

    def __init__(
        self, remote: Remote, folder: Path, pool: ThreadPoolExecutor, meter: Meter, progress: Progress,
        stop: Stop, part: int = PART,
    ) -> None:  # fmt: skip
        """``pool`` reads parts; ``meter`` is asked where the size was not known before."""
        self._remote, self._folder, self._pool = remote, folder, pool
        self._meter, self._progress, self._stop, self._part = meter, progress, stop, part
        self._storage = storage_for(remote.url, stop)
        self._what = os.fsencode(remote.url)
        self._lock = threading.Lock()
        self.fetched = 0
        """Bytes that came now, and were not here before."""

    def run(self) -> str:
        """Have all of it in ``data.part``; its SHA-256. Raises ``SourceChanged`` where it is not what it was."""
        remote, storage = self._remote, self._storage
        parts = remote.size >= 0 and bool(remote.version)
        if isinstance(storage, WebStorage):
            parts = parts and (remote.size <= 1 or storage.ranges(self._what))
        try:
            digest = self._by_parts() if parts else self._in_one()
        except FetchFailed:
            self._check()  # its end may not be where it was
            raise
        if not isinstance(storage, WebStorage):  # others read what is there, whichever version it is
            self._check()
        return digest

    def _check(self) -> None:
        remote = self._remote
        now = describe(self._storage, remote.url, self._stop)
        if isinstance(now, BaseException):
            raise failed(remote.url, now) from now
        if (now.size, now.version) != (remote.size, remote.version):
            raise SourceChanged(f"{public_url(remote.url)} has changed while it was read")

    def _by_parts(self) -> str:
        size, sha = self._remote.size, hashlib.sha256()
        count = -(-size // self._part)
        known = self._read_log(self._about())
        data = os.open(self._folder / DATA, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        log = os.open(self._folder / PARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        waiting: deque[tuple[int, Future[bytes] | bytes]] = deque()
        following = 0
        try:
            while following < count or waiting:
                while following < count and len(waiting) < AHEAD:
                    here = self._kept(data, following, known.get(following))
                    come = here if here is not None else self._pool.submit(self._fetch, data, log, following)
                    waiting.append((following, come))
                    following += 1
                _, come = waiting.popleft()
                sha.update(come if isinstance(come, bytes) else come.result())
        finally:
            self._give_up(waiting)
            os.close(data)
            os.close(log)
        return sha.hexdigest()

    def _span(self, index: int) -> tuple[int, int]:
        start = index * self._part
        return start, min(self._part, self._remote.size - start)

    def _kept(self, data: int, index: int, digest: bytes | None) -> bytes | None:
        """A part that came earlier, if it is whole."""
        if digest is None:
            return None
        start, length = self._span(index)
        found = os.pread(data, length, start)
        if hashlib.sha256(found).digest() != digest:
            return None
        self._progress(length)
        return found

    def _fetch(self, data: int, log: int, index: int) -> bytes:
        start, length = self._span(index)
        location = Location(self._what, self._remote.version, start, length)
        found = read_part(self._storage, location, self._stop)
        rest, at = memoryview(found), start
        while rest:
            written = os.pwrite(data, rest, at)
            rest, at = rest[written:], at + written
        digest = hashlib.sha256(found).digest()
        os.write(log, _RECORD.pack(index, digest, zlib.crc32(digest, index)))
        with self._lock:
            self.fetched += length
        self._progress(length)
        return found

    def _give_up(self, waiting: deque[tuple[int, Future[bytes] | bytes]]) -> None:
        """Nobody writes any more when the files are closed."""
        left = [come for _, come in waiting if isinstance(come, Future)]
        for come in left:
            come.cancel()
        for come in left:
            if not come.cancelled():
                come.exception()

    def _about(self) -> bytes:
        """A digest of all that parts have to have in common."""
        remote = self._remote
        text = f"{public_url(remote.url)}\0{remote.size}\0{self._part}\0".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text + remote.version).digest()

    def _read_log(self, about: bytes) -> dict[int, bytes]:
        """The parts that have come, of just this object in just this version; else it starts over."""
        log = self._folder / PARTS
        data = log.read_bytes() if log.exists() else b""
        found: dict[int, bytes] = {}
        for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            index, digest, check = _RECORD.unpack_from(data, at)
            if check == zlib.crc32(digest, index):
                found[index] = digest
        if found.pop(_ABOUT, None) != about:
            (self._folder / DATA).unlink(missing_ok=True)
            log.write_bytes(_RECORD.pack(_ABOUT, about, zlib.crc32(about, _ABOUT)))
            return {}
        if len(data) % _RECORD.size:  # torn: what comes now would be out of step
            log.write_bytes(data[: -(len(data) % _RECORD.size)])
        return found

    def _in_one(self) -> str:
        """From a server that knows no parts, or does not tell versions apart: from the beginning each time."""
        (self._folder / PARTS).unlink(missing_ok=True)
        until = time.monotonic() + environment.storage_patience()
        while True:
            come = 0
            try:
                sha = hashlib.sha256()
                with (self._folder / DATA).open("wb", buffering=0) as file:
                    for piece in self._pieces():
                        if self._stop.is_set():
                            raise Stopped("ended")
                        if self._remote.size < 0:
                            self._meter.take(on_disk(come + len(piece)) - on_disk(come))
                        sha.update(piece)
                        rest = memoryview(piece)
                        while rest:
                            rest = rest[file.write(rest) :]
                        come += len(piece)
                        self._progress(len(piece))
                if 0 <= self._remote.size != come:
                    raise NotNow(f"{come} bytes came instead of {self._remote.size}")
                self.fetched = come
                return sha.hexdigest()
            except NotNow as error:
                self._progress(-come)
                if time.monotonic() > until or self._stop.wait(1.0):
                    raise FetchFailed(f"{public_url(self._remote.url)}: {error}") from error

    def _pieces(self) -> Iterable[bytes]:
        storage, remote = self._storage, self._remote
        if isinstance(storage, WebStorage):
            return storage.stream(self._what, remote.version)
        return (
            read_part(
                storage, Location(self._what, remote.version, at, min(PART, remote.size - at)), self._stop
            )
            for at in range(0, remote.size, PART)
        )
