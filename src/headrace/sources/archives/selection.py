"""Which samples a source has of what lies in its archives, in which order, and their targets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.sources.archives.columns import CLASS, Wanted, unpack
from headrace.sources.archives.index import NONE, Index
from headrace.sources.archives.open import Opened
from headrace.sources.archives.patterns import public
from headrace.sources.folders import IMAGE_EXTENSIONS

AUTO = "auto"
IMAGES = tuple(dict.fromkeys(("jpg", "jpeg", "png", "webp", *(ext.lstrip(".") for ext in IMAGE_EXTENSIONS))))
"""Fields that are images, the usual ones first."""


@dataclass(frozen=True)
class Options:
    """What was asked for. See ``shards``."""

    image: str
    fields: tuple[str, ...] | None
    target: str | None
    layout: str
    inside: str

    @property
    def wanted(self) -> list[Wanted]:
        """Targets that have to be read."""
        return (
            [] if self.target in (None, AUTO) or self.layout == "folder" else [Wanted.of(self.target or "")]
        )


@dataclass
class Selection:
    """The samples of a source."""

    archives: NDArray[Any] | None
    """The archive of each; None: those of an archive follow each other."""
    ends: NDArray[np.int64]
    """How many samples the first archives have; only where they follow each other."""
    members: NDArray[np.uint32]
    """The member of each that is read; where there are several fields, the sample's first."""
    targets: Any
    classes: list[str] | None
    left_out: int
    """Samples in the archives that have nothing of what was asked for."""

    def archive_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The archive of each sample."""
        if self.archives is not None:
            return self.archives[indices].astype(np.int64)
        return np.searchsorted(self.ends, indices, side="right")


def select(opened: Sequence[Opened], options: Options) -> Selection:
    """The samples that were asked for."""
    return _folder(opened, options) if options.layout == "folder" else _samples(opened, options)


# -- WebDataset's layout --------------------------------------------------------------------------------------


def _samples(opened: Sequence[Opened], options: Options) -> Selection:
    members, samples = [], []
    for index in (one.index for one in opened):
        chosen = _chosen(index, options)
        keep = chosen != NONE
        if _needs_names(index, options):
            keep &= np.array([_belongs(key, options.inside) for key in index.all_keys()], np.bool_)
        samples.append(np.flatnonzero(keep))
        members.append(chosen[keep].astype(np.uint32))
    ends = np.cumsum([len(one) for one in members])
    if not len(ends) or not ends[-1]:
        raise OptionError(_nothing(opened, options))
    left_out = sum(len(one.index) for one in opened) - int(ends[-1])
    targets, classes = _targets(opened, samples, options.target)
    return Selection(None, ends, np.concatenate(members), targets, classes, left_out)


def _chosen(index: Index, options: Options) -> NDArray[np.int64]:
    if options.fields is not None:  # a sample is named by the first of its fields that it has
        order: Sequence[str] = options.fields
    else:
        order = IMAGES if options.image == AUTO else (options.image.lower(),)
    return index.choose([order.index(ext.lower()) if ext.lower() in order else NONE for ext in index.exts])


def _needs_names(index: Index, options: Options) -> bool:
    return bool(options.inside) or b"__" in index.keys.tobytes()


def _belongs(key: bytes, inside: str) -> bool:
    """Whether a sample lies in a folder, and is none of the notes that WebDataset passes over."""
    first = key.partition(b"/")[0]
    if len(first) >= 4 and first.startswith(b"__") and first.endswith(b"__"):
        return False
    return _below(key, inside) is not None


def _below(name: bytes, inside: str) -> bytes | None:
    name = name.removeprefix(b"./")
    prefix = os.fsencode(inside)
    return name[len(prefix) :] if name.startswith(prefix) else None


def _nothing(opened: Sequence[Opened], options: Options) -> str:
    found = sorted({ext.lower() for one in opened for ext in one.index.exts})
    shown = ", ".join(found[:20]) or "none"
    asked = f"fields={options.fields!r}" if options.fields is not None else f"image={options.image!r}"
    where = f" below inside={options.inside.rstrip('/')!r}" if options.inside else ""
    return f"shards({asked}): no sample has it{where}; fields that there are: {shown}"


def _targets(
    opened: Sequence[Opened], samples: Sequence[NDArray[Any]], target: str | None
) -> tuple[Any, list[str] | None]:
    if target is None:
        return None, None
    name = CLASS if target == AUTO else target
    parts = [unpack(one.index.columns[name]) if name in one.index.columns else None for one in opened]
    if target == AUTO and all(part is None for part in parts):
        return None, None
    chosen: list[Any] = []
    for part, rows in zip(parts, samples, strict=True):
        if not len(rows):
            chosen.append(np.zeros(0, np.int64))
        elif part is None:
            chosen.append([None] * len(rows))
        else:
            chosen.append(
                part[rows] if isinstance(part, np.ndarray) else [part[row] for row in rows.tolist()]
            )
    if all(isinstance(part, np.ndarray) for part in chosen):
        return np.concatenate(
            [part.astype(np.int64) if part.dtype.kind in "iu" else part for part in chosen]
        ), None
    values = [value for part in chosen for value in (part.tolist() if isinstance(part, np.ndarray) else part)]
    for one, rows, part in zip(opened, samples, chosen, strict=True):
        if not isinstance(part, np.ndarray) and None in part:
            lacking = one.index.key(int(rows[part.index(None)])).decode("utf-8", "backslashreplace")
            shard = os.path.basename(public(os.fsdecode(one.entry.what)))
            raise OptionError(
                f"shards(target={target!r}): sample {lacking!r} of {shard!r} has no "
                f"{name!r}, or nothing in it; give the name of another field, or target=None for none"
            )
    if name == CLASS and all(isinstance(value, str) for value in values):
        classes = sorted(set(values))
        number = {one: at for at, one in enumerate(classes)}
        return np.array([number[value] for value in values], np.int64), classes
    return values, None


# -- a class in each folder -----------------------------------------------------------------------------------


def _folder(opened: Sequence[Opened], options: Options) -> Selection:
    """Images by their folders, in the order of ``folder``: class by class, folder by folder, name by name."""
    endings = tuple(os.fsencode(ext.lower()) for ext in IMAGE_EXTENSIONS)
    found: list[tuple[bytes, bytes, int, int]] = []
    total = 0
    for number, index in enumerate(one.index for one in opened):
        total += len(index.kinds)
        images = [
            f".{ext}".lower().encode("utf-8", "surrogateescape").endswith(endings) for ext in index.exts
        ]
        for member, whole in index.names(np.array(images, np.bool_)):
            name = _below(whole, options.inside)
            if name is not None and not name.startswith(b".") and b"/." not in name:
                folder, _, last = name.rpartition(b"/")
                found.append((folder, last, number, member))
    if not options.inside and found:
        top = os.path.commonpath([b"/" + folder for folder in {one[0] for one in found}])[1:]
        if top in {one[0] for one in found}:  # a single class, or files beside the folders of classes
            top = top.rpartition(b"/")[0] if len({one[0] for one in found}) == 1 else top
        cut = len(top) + 1 if top else 0
        found = [(folder[cut:], *rest) for folder, *rest in found]  # type: ignore[misc]
    found = [one for one in found if one[0]]
    if not found:
        raise OptionError(
            "shards(layout='folder'): there is no image in a folder"
            + (f" below inside={options.inside.rstrip('/')!r}" if options.inside else "")
            + "; expected a folder for each class"
        )
    # (a class before the rest of the path, as "a-b" comes before "a/b")
    found.sort(key=lambda one: (one[0].partition(b"/")[0], one[0], one[1]))
    names = [one[0].partition(b"/")[0] for one in found]
    classes = sorted(set(names))
    number_of = {name: at for at, name in enumerate(classes)}
    archives = np.array([one[2] for one in found])
    return Selection(
        archives.astype(np.min_scalar_type(len(opened))),
        np.zeros(0, np.int64),
        np.array([one[3] for one in found], np.uint32),
        None if options.target is None else np.array([number_of[name] for name in names], np.int64),
        [os.fsdecode(name) for name in classes],
        total - len(found),
    )
