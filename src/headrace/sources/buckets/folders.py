"""``folder`` and ``files`` of URLs: the same as of paths, with the objects of a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import OptionError
from headrace.sources.buckets.again import again
from headrace.sources.buckets.cached import Refresh, check_refresh, manifest_of
from headrace.sources.buckets.gathering import Spill
from headrace.sources.buckets.listing import Listed, Lister, write
from headrace.sources.buckets.manifest import Manifest
from headrace.sources.buckets.options import Options
from headrace.sources.buckets.source import BucketSource
from headrace.sources.buckets.storage import BucketStorage
from headrace.sources.buckets.tables import url_table
from headrace.sources.buckets.urls import Url, join, parse
from headrace.sources.entry import Entry
from headrace.sources.labels import csv_pairs, json_pairs, numbered
from headrace.sources.local import is_url
from headrace.sources.location import Location
from headrace.sources.paths import PathTable


def bucket_folder(
    root: str,
    *,
    extensions: Sequence[str] | None,
    manifest: str | None,
    labels: bool,
    allow_empty: bool,
    max_bytes: int | str,
    storage_options: Mapping[str, Any] | None,
    refresh: Refresh = "auto",
) -> BucketSource:
    """See ``folder``."""
    check_refresh(refresh)
    url, options = parse(root), Options(storage_options)
    storage = BucketStorage(options=options)
    listed = {
        "root": str(url),
        "extensions": None if extensions is None else tuple(extensions),
        "manifest": manifest,
        "labels": bool(labels),
        "allow_empty": bool(allow_empty),
    }
    more: dict[str, Any] = {"max_bytes": max_bytes, "options": options, "listed": listed}
    if manifest is not None:
        return _from_labels(storage, url, manifest, more)
    suffixes = None if extensions is None else tuple(os.fsencode(one.lower()) for one in extensions)

    def wanted(name: bytes) -> bool:
        return suffixes is None or name.endswith(suffixes)

    def make(folder: Path, path: Path) -> Manifest:
        return _list(storage, url, labels, allow_empty, extensions, wanted, folder, path)

    what = repr((sorted(suffixes) if suffixes is not None else None, bool(labels), bool(allow_empty)))
    return BucketSource(manifest_of(storage, url, what, refresh, make, wanted), **more)


def _list(
    storage: BucketStorage,
    url: Url,
    labels: bool,
    allow_empty: bool,
    extensions: Sequence[str] | None,
    wanted: Callable[[bytes], bool],
    folder: Path,
    path: Path,
) -> Manifest:
    shown = "anything" if extensions is None else " ".join(extensions)
    spill = Spill(folder)
    try:
        listed = Lister(storage, url, labels=labels, wanted=wanted, spill=spill).run()
        classes = _classes(listed, url, allow_empty, shown) if labels else None
        if not listed.count:
            if not listed.anything:
                raise OptionError(
                    f"folder({str(url)!r}) does not exist, or is empty; expected a folder of samples"
                )
            which = f"folder({str(url)!r}, labels=False)"
            if labels:
                which = f"no class folder of folder({str(url)!r})"
            raise OptionError(f"{which} has no files ending in {shown}")
        return write(listed, url, classes, folder, path)
    finally:
        spill.close()


def _classes(listed: Listed, url: Url, allow_empty: bool, shown: str) -> list[bytes]:
    if not listed.groups and listed.anything:
        raise OptionError(
            f"folder({str(url)!r}) has no class folders (and {listed.loose} files directly in it); expected one "
            "sub-folder per class. For a flat folder pass manifest='labels.csv', or labels=False for samples "
            "without targets"
        )
    names = sorted(listed.groups)
    empty = [name for name in names if not listed.groups[name].count]
    if empty and not allow_empty:
        raise OptionError(
            f"class folder {join(url.root, url.key + '/' + os.fsdecode(empty[0]))!r} has no files ending in {shown}; "
            "remove it, pass extensions=, or pass allow_empty=True"
        )
    return names


def _from_labels(storage: BucketStorage, url: Url, manifest: str, more: dict[str, Any]) -> BucketSource:
    """The objects that a file of labels lists: one that lies in the bucket, or elsewhere."""
    what = manifest if is_url(manifest) else f"{url}/{manifest}"
    if os.path.isabs(manifest):
        with open(manifest, "rb") as file:
            text = file.read()
        what = manifest
    else:
        (read,) = again(storage.read, [Location(os.fsencode(what))])
        if isinstance(read, FileNotFoundError):
            raise OptionError(
                f"manifest {what!r} does not exist; its path is taken from the folder {str(url)!r}"
            )
        if isinstance(read, BaseException):
            raise read
        text = read

    def there(name: str) -> bool:
        return isinstance(again(storage.describe, [os.fsencode(f"{url}/{name}")])[0], Entry)

    if manifest.endswith(".json"):
        pairs: list[tuple[str, Any]] = json_pairs(text, what)
    elif manifest.endswith((".csv", ".tsv")):
        pairs = list(csv_pairs(text, what, there))
    else:
        raise OptionError(f"manifest {what!r} must end in .csv, .tsv or .json")
    if not pairs:
        raise OptionError(f"manifest {what!r} lists no files")
    targets, classes = numbered([label for _, label in pairs])
    above = f"{url.key}/" if url.key else ""
    cut = len(str(url)) + 1
    names = (os.fsencode(join(url.root, above + name)[cut:]) for name, _ in pairs)
    return BucketSource(PathTable(str(url), names), targets, classes=classes, **more)


def bucket_files(
    urls: Sequence[str | os.PathLike[str]],
    targets: Any,
    *,
    encoded: bool,
    max_bytes: int | str,
    storage_options: Mapping[str, Any] | None,
) -> BucketSource:
    """See ``files``."""
    return BucketSource(
        url_table(urls), targets, encoded=encoded, max_bytes=max_bytes, options=Options(storage_options)
    )
