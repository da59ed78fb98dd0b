"""Reading an archive here and there, in few requests: what lies close together is read in one go."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.core import environment
from headrace.sources.location import Location
from headrace.sources.storage import Entry, Storage, is_url
from headrace.sources.temporary import not_now

_PAUSE, _LONGEST = 0.1, 5.0
"""Seconds between two attempts at what storage does not give just now: the first, and the most."""


class Stopped(Exception):
    """Nobody wants the rest."""


class Windows:
    """Parts of a file or object, mostly one behind the other.

    Headers of small members lie close together, so all is read, in pieces that grow. Headers of large members do not:
    to skip a body saves more than another request costs. How much lies between those two is a matter of how long a
    request takes, and that is longer over a network.
    """

    def __init__(self, storage: Storage, entry: Entry, stopped: Callable[[], bool] = lambda: False) -> None:
        self._storage, self._entry, self._stopped = storage, entry, stopped
        far = is_url(entry.what)
        self._skip = 1 << 20 if far else 1 << 17
        """Bytes that are not read for nothing."""
        self._least, self._most = (1 << 16, 1 << 23) if far else (1 << 14, 1 << 20)
        self._window = self._skip
        self._start, self._data = 0, b""
        self.requests = 0

    def read(self, start: int, length: int) -> bytes:
        """A part; what is left of it where the end comes before."""
        at = start - self._start
        if at < 0 or at + length > len(self._data):
            if not self._fetch(start, length):
                return b""
            at = 0
        return self._data[at : at + length]

    def _fetch(self, start: int, length: int) -> bool:
        if self._stopped():
            raise Stopped
        jumped = start - (self._start + len(self._data)) > self._skip or start < self._start
        self._window = self._least if jumped else min(max(2 * self._window, self._skip), self._most)
        wanted = min(max(length, self._window), self._entry.size - start)
        if wanted <= 0:
            return False
        part = Location(self._entry.what, self._entry.version, start, wanted)
        self._start, self._data = start, self._patiently(part)
        return True

    def _patiently(self, part: Location) -> bytes:
        pause, until = _PAUSE, time.monotonic() + environment.storage_patience()
        while True:
            self.requests += 1
            (found,) = self._storage.read([part])
            if not isinstance(found, BaseException):
                return bytes(found)
            if not not_now(found) or time.monotonic() > until:
                raise found
            if self._stopped():
                raise Stopped
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
