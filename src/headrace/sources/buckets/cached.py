"""Listings that are kept: where, how long they hold, and how it is found out whether they still do.

A bucket does not say whether anything in it has changed, so that a listing holds is never sure without listing all
again. What is sure is what is read: an object that is no longer the one that was listed is an error and never a
sample. What may go unnoticed for a while is an object that was added, or one that was removed and is not read. So:

- a listing of less than an hour ago is used as it is: jobs that start one after the other, or ranks of one job, see
  the same dataset without asking;
- one of less than a day ago is used if samples of it are still right: the names of the classes, and pages of up to a
  thousand objects at several places and at the end, by name, size and version;
- an older one, or one that is found wrong, is made again.

``refresh=True`` always makes it again; ``refresh=False`` never looks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.files import PARTIAL
from headrace.sources.buckets.again import again
from headrace.sources.buckets.listing import pages_after
from headrace.sources.buckets.manifest import Manifest
from headrace.sources.buckets.storage import BucketStorage, version_of
from headrace.sources.buckets.urls import Url
from headrace.sources.entry import Entry

FRESH, GOOD = 3600.0, 86400.0
"""Seconds for which a listing is used without a look, and after a look at samples of it."""
_KEPT = 7 * 86400.0
"""Seconds after which a listing that was replaced is removed: jobs that use it may still start workers."""
_PLACES = 8
_AHEAD = 1000
Refresh = bool | str


def listings_dir() -> Path:
    """Where listings lie."""
    return Path(environment.cache_home(), "headrace", "listings")


def check_refresh(refresh: Refresh) -> None:
    """Raises ``OptionError`` for what is none."""
    if not (isinstance(refresh, bool) or refresh == "auto"):
        raise OptionError(f'refresh={refresh!r}: it may be "auto", True or False')


def manifest_of(
    storage: BucketStorage,
    url: Url,
    what: str,
    refresh: Refresh,
    make: Callable[[Path, Path], Manifest],
    wanted: Callable[[bytes], bool],
) -> Manifest:
    """The listing of a folder, kept or made. ``what``: all that it depends on beside the folder. ``make``: lists, and
    writes a manifest into a folder, at a path."""
    folder = listings_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = storage.options.endpoint or (environment.aws_endpoint() if url.kind == "s3" else "")
    text = "\0".join((str(url), server, storage.options.digest, what))
    key = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    with _alone(folder / f"{key}.lock"):
        found = _newest(folder, key)
        if found is not None and refresh is not True:
            age = time.time() - found.header.listed
            if refresh is False or age < FRESH or (age < GOOD and _holds(found, storage, url, wanted)):
                return found
        made = make(folder, folder / f"{key}.new")
        path = folder / f"{key}-{made.header.fingerprint[:16]}.manifest"
        os.replace(folder / f"{key}.new", path)
        _remove_old(folder, key, path)
        return Manifest(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process lists, and others wait for what it finds."""
    with open(path, "ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _newest(folder: Path, key: str) -> Manifest | None:
    found: list[Manifest] = []
    for path in folder.glob(f"{key}-*.manifest"):
        with contextlib.suppress(OSError, ValueError):  # of another version, or damaged: it is made again
            found.append(Manifest(path))
    return max(found, key=lambda one: one.header.listed, default=None)


def _remove_old(folder: Path, key: str, but: Path) -> None:
    """Also what a process left that was killed while it wrote."""
    for path in (*folder.glob(f"{key}-*.manifest"), *folder.glob(f".*{PARTIAL}")):
        with contextlib.suppress(OSError):
            if path != but and time.time() - path.stat().st_mtime > _KEPT:
                path.unlink()


def _holds(found: Manifest, storage: BucketStorage, url: Url, wanted: Callable[[bytes], bool]) -> bool:
    """Whether samples of a listing are right."""
    size = len(found)
    if found.header.classes is not None:
        folders, _ = storage.folders(url)
        names = {name.rstrip("/").rpartition("/")[2] for name in folders}
        if {name for name in names if not name.startswith(".")} != set(found.header.classes):
            return False
    places = list(dict.fromkeys(np.linspace(0, size - 1, _PLACES, dtype=np.int64).tolist()))
    entries = again(storage.describe, [os.fsencode(f"{url}/") + name for name in found.names(places)])
    for entry, version in zip(entries, found.versions(places), strict=True):
        if not isinstance(entry, Entry) or entry.version != version:
            return False
    # The last look is behind the last object: what was added there is seen.
    return all(_page_holds(found, at, storage, url, wanted) for at in places)


def _page_holds(
    found: Manifest, at: int, storage: BucketStorage, url: Url, wanted: Callable[[bytes], bool]
) -> bool:
    """Whether the objects that come after one in its folder are those that were listed."""
    stop = min(len(found), at + _AHEAD + 1)
    names = found.names(np.arange(at, stop))
    above = names[0].rpartition(b"/")[0]
    rows = [row for row, name in enumerate(names) if row and name.rpartition(b"/")[0] == above]
    known = dict(zip([names[row] for row in rows], found.versions([at + row for row in rows]), strict=True))
    folder = "/".join(part for part in (url.key, os.fsdecode(above)) if part)
    cut = len(os.fsencode(url.key)) + 1 if url.key else 0
    there, last = {}, b""
    count = 0
    for meta in pages_after(
        storage, Url(url.root, folder), f"{folder}/{os.fsdecode(names[0].rpartition(b'/')[2])}"
    ):
        name = os.fsencode(meta["path"])[cut:]
        count += 1
        last = max(last, name)
        parent, _, own = name.rpartition(b"/")
        if parent == above and not own.startswith(b".") and wanted(own.lower()):
            there[name] = version_of(meta)
    if count >= _AHEAD:  # there is more behind the page: only what it reaches can be compared
        known = {name: version for name, version in known.items() if name <= last}
    elif stop < len(found) and len(rows) == _AHEAD:
        there = {name: version for name, version in there.items() if name in known or name <= names[-1]}
    return known == there
