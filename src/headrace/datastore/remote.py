"""What lies at URLs: which objects there are, how large they are, what they are, what they will take here."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from headrace.core import environment
from headrace.core.errors import NotNow
from headrace.datastore.errors import DataError, FetchFailed, Stopped
from headrace.datastore.formats import HEAD, RangeFile, sniff, unpacked_size, unpacks
from headrace.datastore.layout import BLOCK, on_disk
from headrace.datastore.urls import file_name, normal_url, public_url
from headrace.datastore.web import UNKNOWN, Stop, WebStorage
from headrace.sources.location import Location
from headrace.sources.storage import Entry, Storage, is_url, storage_of

PART = 8 << 20
"""Bytes that are asked for at once."""
_PAUSES = (0.2, 10.0)
"""Seconds before it is asked again: at first, and at most."""
OVERHEAD = 5 * BLOCK
"""What a content takes beside its files: folders, its manifest, the list of parts that have come."""


@dataclass(frozen=True)
class Remote:
    """One object, as it is now."""

    url: str
    """As it was given, secrets and all; never kept."""
    name: str
    """Below the dataset's folder."""
    size: int
    version: bytes
    unpack: bool
    estimate: int
    """What it takes here once it is whole, at least."""

    @property
    def peak(self) -> int:
        """What it takes until then: an archive and what comes out of it are here at the same time."""
        log = on_disk(64 * (1 + max(0, self.size) // PART))
        return OVERHEAD + log + self.estimate + (on_disk(max(0, self.size)) if self.unpack else 0)


def storage_for(url: str, stop: Stop | None = None) -> Storage:
    """Who reads there, until ``stop`` is set."""
    if url.startswith(("http://", "https://")):
        return WebStorage(stop)
    return storage_of(url, max_bytes=1 << 40)


def find(urls: Sequence[str], unpack: bool | None, stop: Stop | None = None) -> list[Remote]:
    """All objects at these URLs: at each a file, an object, or all below a folder or prefix.

    Where it is not said, a single archive is unpacked, and several objects are kept as they are.
    """
    found: list[tuple[str, str, Entry]] = []
    for url in map(normal_url, urls):
        objects = _objects_at(url, stop)
        # What comes from several URLs lies apart, unless each is a file.
        top = file_name(url) if len(urls) > 1 and objects[0][1] else ""
        found += [(url if not name else os.fsdecode(entry.what), os.path.join(top, name or file_name(url)), entry)
                  for entry, name in objects]  # fmt: skip
    names = [name for _, name, _ in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two of these would be called {twice!r}; add them as datasets of their own")
    alone = len(found) == 1
    return [_remote(url, name, entry, unpack, alone, stop) for url, name, entry in found]


def _remote(url: str, name: str, entry: Entry, unpack: bool | None, alone: bool, stop: Stop | None) -> Remote:
    kept = Remote(url, name, entry.size, entry.version, False, on_disk(max(0, entry.size)))
    if unpack is False or (unpack is None and not alone):
        return kept
    storage = storage_for(url, stop)

    def read(start: int, length: int) -> bytes:
        return read_part(storage, Location(os.fsencode(url), entry.version, start, length), stop)

    length = HEAD if entry.size == UNKNOWN else min(HEAD, entry.size)
    try:
        head = read(0, length) if length else b""
    except FetchFailed:
        head = b""  # (of what the size is not known, and which is smaller)
    kind = sniff(head)
    if not unpacks(name, kind) and (entry.size != UNKNOWN or head):
        return kept
    far = RangeFile(entry.size, read)
    estimate = unpacked_size(far, kind if entry.size != UNKNOWN else "plain", entry.size)
    return Remote(url, name, entry.size, entry.version, True, on_disk(estimate))


def _objects_at(url: str, stop: Stop | None) -> list[tuple[Entry, str]]:
    """Each with its name below the URL; empty: it is what the URL names."""
    storage, name = storage_for(url, stop), os.fsencode(url)
    folder = not is_url(url) and os.path.isdir(url)
    if not folder and not (is_url(url) and url.endswith("/")):
        entry = describe(storage, url, stop)
        if not isinstance(entry, BaseException):
            return [(entry, "")]
        if not isinstance(entry, FileNotFoundError) or isinstance(storage, WebStorage) or not is_url(url):
            raise failed(url, entry) from entry
    elif isinstance(storage, WebStorage):
        raise DataError(
            f"{public_url(url)} names a folder, and web servers do not say what lies in one; name its files, a URL "
            "for each"
        )
    prefix = name.rstrip(b"/") + b"/"
    try:
        found = [entry for some in storage.below(prefix) for entry in some]
    except (OSError, NotNow) as error:
        raise failed(url, error) from error
    if not found:
        raise DataError(f"{public_url(url)}: there is nothing; check the URL")
    return [(entry, os.fsdecode(entry.what[len(prefix) :])) for entry in found]


def describe(storage: Storage, url: str, stop: Stop | None = None) -> Entry | BaseException:
    """What lies there, or why not; asked again while storage is busy."""

    def ask() -> Entry | BaseException:
        return storage.describe([os.fsencode(url)])[0]

    return cast("Entry | BaseException", _patiently(ask, stop))


def read_part(storage: Storage, location: Location, stop: Stop | None = None) -> bytes:
    """The bytes there, asked for again while storage is busy or connections are lost. Raises ``FetchFailed``."""
    found = _patiently(lambda: storage.read([location])[0], stop)
    if isinstance(found, BaseException):
        raise failed(os.fsdecode(location.what), found) from found
    data = cast(bytes, found)
    if location.length is not None and len(data) != location.length:
        url = public_url(os.fsdecode(location.what))
        raise FetchFailed(f"{url} gave {len(data)} bytes instead of {location.length}")
    return data


def _patiently(ask: object, stop: Stop | None) -> object:
    assert callable(ask)
    pause, most = _PAUSES
    until = time.monotonic() + environment.storage_patience()
    while True:
        if stop is not None and stop.is_set():
            raise Stopped("ended")
        found: object = ask()
        if not isinstance(found, NotNow) or time.monotonic() > until:
            return found
        wait = max(random.uniform(pause / 2, pause), found.retry_after or 0.0)
        if stop is None:
            time.sleep(wait)
        else:
            stop.wait(wait)
        pause = min(2 * pause, most)


def failed(url: str, error: BaseException) -> BaseException:
    """An error of storage for people, and without secrets."""
    if isinstance(error, DataError):
        return error
    shown, text = public_url(url), str(error).replace(url, public_url(url))
    return FetchFailed(text if shown in text else f"{shown}: {text or type(error).__name__}")
