"""What archives and listings need of the place where data lies: names, sizes, versions, parts of what is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.core.errors import OptionError
from headrace.sources.entry import Entry, Storage
from headrace.sources.local import MAX_BYTES, FileReader, is_url, local_path
from headrace.sources.versions import versions

__all__ = ["Entry", "LocalStorage", "Storage", "is_url", "storage_of"]


class LocalStorage(FileReader):
    """Files of the local (or a mounted) file system."""

    def describe(self, names: Sequence[bytes]) -> list[Entry | BaseException]:
        """See ``Storage``."""
        out: list[Entry | BaseException] = []
        paths = [os.fsencode(local_path(name)) for name in names]
        found = versions(paths).tolist()
        for name, (size, changed) in zip(paths, found, strict=True):
            try:
                os.stat(name)
                out.append(Entry(os.path.abspath(name), size, b"%x.%x" % (size, changed)))
            except OSError as error:
                out.append(error)
        return out

    def below(self, prefix: bytes) -> Iterator[list[Entry]]:
        """See ``Storage``."""
        top = os.path.abspath(os.fsencode(local_path(prefix)))
        paths = sorted(os.path.join(at, name) for at, _, names in os.walk(top) for name in names)
        for start in range(0, len(paths), 1000):
            yield [
                one
                for one in self.describe(paths[start : start + 1000])
                if not isinstance(one, BaseException)
            ]


def storage_of(
    what: str | bytes | os.PathLike[str],
    max_bytes: int = MAX_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Storage:
    """The storage that a path or a URL leads to. ``storage_options``: for a bucket, as ``files`` takes them."""
    if not is_url(what):
        if storage_options is not None:
            raise OptionError(f"{os.fsdecode(what)!r}: storage_options= are for URLs of buckets")
        return LocalStorage(max_bytes)
    from headrace.sources.buckets.storage import BucketStorage
    from headrace.sources.buckets.urls import parse

    parse(what)  # (raises where it is no URL of a bucket)
    return BucketStorage(max_bytes, storage_options)
