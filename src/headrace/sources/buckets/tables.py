"""Names and versions of the objects that were named one by one: no listing says what they are."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.sources.buckets.again import again
from headrace.sources.buckets.storage import BucketStorage
from headrace.sources.buckets.urls import parse
from headrace.sources.entry import Entry
from headrace.sources.paths import PathTable

_LIST_FROM = 32
"""Objects of one folder for which it is listed: a request for a thousand of them, instead of one for each."""
_MISSING = bytes(16)


class NamedObjects:
    """Objects by their URLs. Which version each is of is asked for once, when it is first wanted."""

    def __init__(self, table: PathTable, storage: BucketStorage) -> None:
        self.table, self._storage = table, storage
        self._versions: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.table)

    def urls(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The URL of each."""
        return self.table.many(indices)

    def known_versions(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The version of each, as far as it was asked for; else empty."""
        if self._versions is None:
            return [b""] * len(indices)
        return self.versions(indices)

    def versions(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The version of each; empty for those that are not there, of which reading says what is wrong."""
        if self._versions is None:
            self._versions = self._look()
        found = self._versions[np.asarray(indices, np.int64)]
        return [b"" if one.tobytes() == _MISSING else one.tobytes().hex().encode() for one in found]

    def _look(self) -> NDArray[Any]:
        """Ask for all versions: of whole folders where many objects lie in one, of the others one by one."""
        out = np.zeros(len(self), "V16")
        urls = self.table.many(np.arange(len(self)))
        by_folder: dict[bytes, list[int]] = defaultdict(list)
        for row, url in enumerate(urls):
            by_folder[url.rpartition(b"/")[0]].append(row)
        single: list[int] = []
        for folder, rows in by_folder.items():
            found: dict[bytes, bytes] = {}
            if len(rows) >= _LIST_FROM and parse(folder).kind != "http":
                names = {urls[row] for row in rows}
                for some in self._storage.below(folder):
                    found.update({one.what: one.version for one in some if one.what in names})
            for row in rows:
                if urls[row] in found:
                    out[row] = np.void(bytes.fromhex(found[urls[row]].decode()))
                else:
                    single.append(row)
        asked = again(self._storage.describe, [urls[row] for row in single])
        for row, entry in zip(single, asked, strict=True):
            if isinstance(entry, Entry):
                out[row] = np.void(bytes.fromhex(entry.version.decode()))
        return out

    def digest(self) -> str:
        """Of all URLs in order."""
        return self.table.digest()


def url_table(urls: Sequence[str | os.PathLike[str]]) -> PathTable:
    """URLs, with what all of them start with stored once. Raises ``OptionError`` for what is none."""
    full = [os.fsencode(str(parse(url))) for url in urls]
    first, last = min(full), max(full)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    root = first[: first.rfind(b"/", 0, same) + 1]
    return PathTable(os.fsdecode(root), (url[len(root) :] for url in full))
