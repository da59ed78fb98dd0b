"""Folders of files: a class per sub-folder, a manifest, or no labels at all; and files that are named one by one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.errors import OptionError
from headrace.sources.labels import csv_pairs, json_pairs, numbered
from headrace.sources.local import MAX_BYTES, FileSource, is_url, local_path
from headrace.sources.paths import PathTable

if TYPE_CHECKING:
    from headrace.sources.buckets.source import BucketSource

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def folder(
    root: str | os.PathLike[str],
    *,
    extensions: Sequence[str] | None = IMAGE_EXTENSIONS,
    manifest: str | os.PathLike[str] | None = None,
    labels: bool = True,
    followlinks: bool = True,
    allow_empty: bool = False,
    max_bytes: int | str = MAX_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    refresh: bool | str = "auto",
) -> FileSource | BucketSource:
    """A source of the files below ``root``: a folder, or a URL of a bucket (``s3://``, ``gs://``, ``az://``).

    Each sub-folder is a class, numbered by sorted name; files may lie deeper inside it. The order is that of
    torchvision's ``ImageFolder``: class by class, folder by folder, name by name. Names that start with a dot
    are passed over.

    ``manifest``: a ``.csv`` (file name, label; with or without a header) or ``.json`` file (``{name: label}``
    or a list of pairs or of objects with two values) that lists the files and their labels instead. Labels
    that are numbers are the targets; other labels are classes, numbered by sorted name.

    ``labels=False``: all files, however deep, without targets. ``extensions=None`` takes files of every name.
    ``max_bytes`` and ``storage_options``: as of ``files``. What a bucket holds is listed once, and that kept; when
    it is listed again, ``refresh`` says: ``"auto"``, ``True`` (now) or ``False`` (never). See docs/buckets.md.
    """
    if is_url(root):
        from headrace.sources.buckets.folders import bucket_folder

        return bucket_folder(
            os.fspath(root),
            extensions=extensions,
            manifest=None if manifest is None else os.fspath(manifest),
            labels=labels,
            allow_empty=allow_empty,
            max_bytes=max_bytes,
            storage_options=storage_options,
            refresh=refresh,
        )
    if storage_options is not None or refresh != "auto":
        raise OptionError(
            f"folder({os.fspath(root)!r}): storage_options= and refresh= are for URLs of buckets"
        )
    path = os.path.abspath(local_path(root))
    if not os.path.isdir(path):
        what = "is not a folder" if os.path.exists(path) else "does not exist"
        raise OptionError(f"folder({path!r}) {what}; expected a folder of samples")
    listing = None if manifest is None else os.path.join(path, os.fspath(manifest))
    options: dict[str, Any] = {"max_bytes": max_bytes}
    options["listed"] = {
        "root": path,
        "extensions": None if extensions is None else tuple(extensions),
        "manifest": listing,
        "labels": bool(labels),
        "followlinks": bool(followlinks),
        "allow_empty": bool(allow_empty),
    }
    if listing is not None:
        return _from_manifest(path, listing, options)
    suffixes = None if extensions is None else tuple(os.fsencode(e.lower()) for e in extensions)
    top = os.fsencode(path)
    if not labels:
        found = _files_below(top, b"", suffixes, followlinks)
        if not found:
            raise OptionError(f"folder({path!r}, labels=False) has no files ending in {_shown(extensions)}")
        return FileSource(PathTable(path, found), **options)
    names = sorted(
        entry.name
        for entry in os.scandir(top)
        if not entry.name.startswith(b".") and entry.is_dir(follow_symlinks=True)
    )
    if not names:
        loose = sum(1 for entry in os.scandir(top) if entry.is_file())
        raise OptionError(
            f"folder({path!r}) has no class folders (and {loose} files directly in it); expected one "
            "sub-folder per class. For a flat folder pass manifest='labels.csv', or labels=False for samples "
            "without targets"
        )
    paths: list[bytes] = []
    counts = []
    for name in names:
        found = _files_below(top, name, suffixes, followlinks)
        if not found and not allow_empty:
            raise OptionError(
                f"class folder {os.path.join(path, os.fsdecode(name))!r} has no files ending in "
                f"{_shown(extensions)}; remove it, pass extensions=, or pass allow_empty=True"
            )
        paths += found
        counts.append(len(found))
    if not paths:
        raise OptionError(f"no class folder of folder({path!r}) has a file ending in {_shown(extensions)}")
    targets = np.repeat(np.arange(len(names), dtype=np.int64), counts)
    classes = [os.fsdecode(name) for name in names]
    return FileSource(PathTable(path, paths), targets, classes=classes, **options)


def _shown(extensions: Sequence[str] | None) -> str:
    return "anything" if extensions is None else " ".join(extensions)


def _files_below(
    top: bytes, start: bytes, suffixes: tuple[bytes, ...] | None, followlinks: bool
) -> list[bytes]:
    """Paths of all files below ``top/start``, relative to ``top``: folders sorted by path, files by name."""
    listings: dict[bytes, list[bytes]] = {}
    # Each entry carries the folders above it, so that a link back to one of them is no endless loop.
    waiting: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while waiting:
        relative, above = waiting.pop()
        full = os.path.join(top, relative) if relative else top
        stat = os.stat(full)
        here = (stat.st_dev, stat.st_ino)
        if here in above:
            continue
        inner = above | {here}
        names = []
        with os.scandir(full) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(b"."):
                    continue
                if entry.is_dir(follow_symlinks=followlinks):
                    waiting.append((os.path.join(relative, name), inner))
                elif (suffixes is None or name.lower().endswith(suffixes)) and entry.is_file():
                    names.append(name)
        names.sort()
        listings[relative] = names
    return [os.path.join(relative, name) for relative in sorted(listings) for name in listings[relative]]


def _from_manifest(root: str, path: str, options: dict[str, Any]) -> FileSource:
    if not os.path.isfile(path):
        raise OptionError(f"manifest {path!r} does not exist; its path is taken from the folder {root!r}")
    with open(path, "rb") as file:
        text = file.read()
    if path.endswith(".json"):
        pairs: list[tuple[str, Any]] = json_pairs(text, path)
    elif path.endswith((".csv", ".tsv")):
        pairs = list(csv_pairs(text, path, lambda name: os.path.exists(os.path.join(root, name))))
    else:
        raise OptionError(f"manifest {path!r} must end in .csv, .tsv or .json")
    if not pairs:
        raise OptionError(f"manifest {path!r} lists no files")
    targets, classes = numbered([label for _, label in pairs])
    table = PathTable(root, (os.fsencode(name) for name, _ in pairs))
    return FileSource(table, targets, classes=classes, **options)


def files(
    paths: Sequence[str | os.PathLike[str]],
    targets: Any = None,
    *,
    encoded: bool = True,
    max_bytes: int | str = MAX_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> FileSource | BucketSource:
    """A source of the given files, in the given order, with an optional target for each: paths, or URLs of objects
    (``s3://``, ``gs://``, ``az://``, ``https://``).

    With ``encoded=False`` the files are not read: decode is called with each file's path (as bytes). A file of more
    than ``max_bytes`` (a number, or as ``"1GiB"``, the default) is a bad sample, and is not read.
    ``storage_options``: how the bucket is reached, where the environment does not say it. See docs/buckets.md.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise OptionError(
            f"files() takes a list of paths, got the single path {paths!r}; write files([{paths!r}])"
        )
    if len(paths) == 0:
        raise OptionError("files() got an empty list of paths")
    urls = sum(map(is_url, paths))
    if urls:
        if urls < len(paths):
            raise OptionError("files() got paths and URLs in one list; make a source of each")
        from headrace.sources.buckets.folders import bucket_files

        return bucket_files(
            paths, targets, encoded=encoded, max_bytes=max_bytes, storage_options=storage_options
        )
    if storage_options is not None:
        raise OptionError("files(): storage_options= are for URLs of buckets, and these are paths")
    table = PathTable.of([local_path(path) for path in paths])
    return FileSource(table, targets, encoded=encoded, max_bytes=max_bytes)
