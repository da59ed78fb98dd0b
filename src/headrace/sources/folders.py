"""Folders of files: a class per sub-folder, a manifest, or no labels at all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.core.errors import OptionError
from headrace.sources.local import MAX_BYTES, FileSource
from headrace.sources.paths import PathTable

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
) -> FileSource:
    """A source of the files below ``root``.

    Each sub-folder is a class, numbered by sorted name; files may lie deeper inside it. The order is that of
    torchvision's ``ImageFolder``: class by class, folder by folder, name by name. Names that start with a dot
    are passed over.

    ``manifest``: a ``.csv`` (file name, label; with or without a header) or ``.json`` file (``{name: label}``
    or a list of pairs or of objects with two values) that lists the files and their labels instead. Labels
    that are numbers are the targets; other labels are classes, numbered by sorted name.

    ``labels=False``: all files, however deep, without targets. ``extensions=None`` takes files of every name.
    ``max_bytes``: as of ``files``.
    """
    path = os.path.abspath(os.fspath(root))
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
    if path.endswith(".json"):
        pairs = _json_pairs(path)
    elif path.endswith((".csv", ".tsv")):
        pairs = _csv_pairs(root, path)
    else:
        raise OptionError(f"manifest {path!r} must end in .csv, .tsv or .json")
    if not pairs:
        raise OptionError(f"manifest {path!r} lists no files")
    targets, classes = _numbered([label for _, label in pairs])
    table = PathTable(root, (os.fsencode(name) for name, _ in pairs))
    return FileSource(table, targets, classes=classes, **options)


def _json_pairs(path: str) -> list[tuple[str, Any]]:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    items = list(content.items()) if isinstance(content, dict) else content
    pairs = []
    for item in items if isinstance(items, list) else ():
        values = list(item.values()) if isinstance(item, dict) else item
        if not isinstance(values, list | tuple) or len(values) < 2 or not isinstance(values[0], str):
            raise OptionError(f"manifest {path!r}: expected a file name and a label, got {item!r}")
        pairs.append((values[0], values[1]))
    return pairs


def _csv_pairs(root: str, path: str) -> list[tuple[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t" if path.endswith(".tsv") else ",") if row]
    for number, row in enumerate(rows, start=1):
        if len(row) < 2:
            raise OptionError(
                f"manifest {path!r}, line {number}: expected a file name and a label, got {row!r}"
            )
    # A first line that names no file is a header; no list of possible header words is needed.
    if rows and not os.path.exists(os.path.join(root, rows[0][0])):
        rows = rows[1:]
    return [(row[0], row[1]) for row in rows]


def _numbered(labels: list[Any]) -> tuple[Any, list[str] | None]:
    """Targets from labels: numbers as they are, anything else as the number of its class."""
    for kind in (int, float):
        try:
            return [
                kind(label) if isinstance(label, str) else _exactly(kind, label) for label in labels
            ], None
        except (TypeError, ValueError):
            continue
    if all(isinstance(label, str) for label in labels):
        classes = sorted(set(labels))
        number = {name: at for at, name in enumerate(classes)}
        return [number[label] for label in labels], classes
    return labels, None


def _exactly(kind: type, label: Any) -> Any:
    """``label`` if it is a number of ``kind`` (an integer also counts as a float)."""
    if isinstance(label, bool) or not isinstance(label, (int, kind)):
        raise TypeError(f"{label!r} is no {kind.__name__}")
    return kind(label)
