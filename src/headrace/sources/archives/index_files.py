"""Where indexes lie: beside their archives, or where that cannot be, below ``$XDG_CACHE_HOME/headrace/indexes``.

They can be deleted at any time. An index holds for one version of its archive; whoever finds another, or a damaged
one, reads the archive again and puts a new one in its place. Any number of processes may do so at once: each writes a
file of its own, and the last one stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator

from headrace.core import environment
from headrace.core.files import PARTIAL
from headrace.sources.archives.index import Index, Unreadable, decode
from headrace.sources.mapped import map_file
from headrace.sources.storage import Entry, is_url

SUFFIX = b".hridx"
_MAPPED = 1 << 14
"""Bytes from which on a file is mapped: smaller ones would take more as pages."""


def load(entry: Entry) -> Index | None:
    """The index of an archive as it is now; None if there is none."""
    for path in _places(entry):
        with contextlib.suppress(OSError, Unreadable, ValueError, KeyError, TypeError):
            index, version = decode(_content(path))
            if version == entry.version:
                return index
    return None


def store(entry: Entry, index: Index) -> bool:
    """Keep an index in the first place that can be written to; False if there is none."""
    data = index.encode(entry.version)
    for path in _places(entry):
        try:
            _write(path, data, entry.what)
            return True
        except OSError:
            continue
    return False


def _places(entry: Entry) -> Iterator[bytes]:
    if not is_url(entry.what):
        yield entry.what + SUFFIX
    yield _cached(entry) + SUFFIX


def _cached(entry: Entry) -> bytes:
    name = hashlib.blake2b(entry.what, digest_size=16).hexdigest()
    return os.fsencode(os.path.join(environment.cache_home(), "headrace", "indexes", name))


def lock(entry: Entry) -> bytes:
    """The file that whoever makes an index has locked. It lies here, as not every file system has locks."""
    return _cached(entry) + b".lock"


def _content(path: bytes) -> bytes | memoryview:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return file.read() if size < _MAPPED else map_file(file.fileno(), size)


def _write(path: bytes, data: bytes, archive: bytes) -> None:
    folder, name = os.path.split(path)
    mode = 0o600
    if path == archive + SUFFIX:  # whoever reads the archive may read its index
        mode = os.stat(archive).st_mode & 0o666 | 0o600
    else:
        os.makedirs(folder, 0o700, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(PARTIAL.encode(), b"." + name[:100], folder)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
