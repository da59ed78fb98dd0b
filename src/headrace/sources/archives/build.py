"""From an archive to its index: which members are one sample, and where they lie."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.core import tar
from headrace.core.errors import OptionError
from headrace.core.tar import Damaged
from headrace.sources.archives import zip as zips
from headrace.sources.archives.columns import CLASS, LARGEST, Wanted, pack
from headrace.sources.archives.index import Index, least
from headrace.sources.archives.windows import Windows
from headrace.sources.storage import Entry, Storage

_NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
"""WebDataset's rule: a sample's key ends at the first dot behind the last folder; hidden files have none."""
_CLASS = Wanted.of(CLASS)
"""What is kept whether it is asked for or not: most ask for it sooner or later."""
_DEEPEST = 16
"""Links that lead to links, at most."""


class _Found(NamedTuple):
    name: bytes
    start: int
    length: int
    head: int
    size: int
    link: bytes


def split(name: bytes) -> tuple[bytes, bytes] | None:
    """The key and the extension of a member; None for what belongs to no sample."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], found[2])


def is_zip(what: bytes) -> bool:
    """By its name."""
    return what.partition(b"?")[0].lower().endswith(b".zip")


def build(
    storage: Storage,
    entry: Entry,
    targets: Sequence[Wanted],
    *,
    shown: str,
    stopped: Callable[[], bool] = lambda: False,
    seen: Callable[[int], None] = lambda at: None,
) -> Index:
    """Read through an archive. ``shown``: what messages call it. ``seen``: told how far it has come."""
    windows = Windows(storage, entry, stopped)
    try:
        found = _in_zip(windows, entry) if is_zip(entry.what) else _in_tar(windows, entry)
        builder = _Builder(windows, targets)
        for member in found:
            builder.add(member)
            seen(member.start)
        return builder.index()
    except (Damaged, struct.error) as error:
        remedy = ""
        if "compressed" in str(error):
            remedy = "; samples can be read one by one only where it is not: unpack it once, to a .tar"
        raise OptionError(f"shard {shown!r}: {error}{remedy}") from None


def add_columns(
    storage: Storage,
    entry: Entry,
    index: Index,
    targets: Sequence[Wanted],
    *,
    shown: str,
    stopped: Callable[[], bool] = lambda: False,
) -> Index:
    """The same index with more targets, read from the members that have them."""
    windows = Windows(storage, entry, stopped)
    columns = dict(index.columns)
    for wanted in targets:
        try:
            columns[wanted.text] = _column(wanted, index, lambda member: _bytes(windows, index, member))
        except Damaged as error:
            raise OptionError(f"shard {shown!r}: {error}") from None
    return Index(index.exts, {name: getattr(index, name) for name in Index.ARRAYS}, columns)


def _in_tar(windows: Windows, entry: Entry) -> Iterator[_Found]:
    for one in tar.members(windows.read, entry.size):
        yield _Found(one.name, one.start, one.length, one.start - one.head, 0, one.link)


def _in_zip(windows: Windows, entry: Entry) -> Iterator[_Found]:
    for one in zips.members(windows.read, entry.size):
        yield _Found(one.name, one.start, one.length, 0, one.size + 1 if one.deflated else 0, b"")


def _bytes(windows: Windows, index: Index, member: int) -> bytes:
    length, size = int(index.lengths[member]), int(index.sizes[member])
    if max(length, size) > LARGEST:
        raise Damaged(f"{_shown(index.name(member))} has {max(length, size)} bytes, too many for a target")
    data = windows.read(int(index.starts[member]), length)
    try:
        return zips.inflated(data, size - 1) if size else data
    except ValueError as error:
        raise Damaged(f"{_shown(index.name(member))}: {error}") from None


def _column(wanted: Wanted, index: Index, read: Callable[[int], bytes]) -> Any:
    """One target of every sample; None where it has no such member."""
    chosen = index.choose([0 if ext.lower() == wanted.field else -1 for ext in index.exts])
    values: list[Any] = []
    for member in chosen.tolist():
        try:
            values.append(None if member < 0 else wanted.value(read(member)))
        except (ValueError, LookupError, TypeError) as error:
            if isinstance(error, Damaged):
                raise
            why = f"{type(error).__name__}: {error}"
            raise Damaged(f"{_shown(index.name(member))} has no {wanted.text!r} ({why})") from None
    return pack(values)


class _Builder:
    """Members as they come, put together to samples."""

    def __init__(self, windows: Windows, targets: Sequence[Wanted]) -> None:
        self._windows = windows
        self._targets = {one.text: one for one in (*targets, _CLASS)}
        self._asked = {one.text for one in targets}
        self._fields = {one.field for one in self._targets.values()}
        self._keys: list[bytes] = []
        self._latest: dict[bytes, int] = {}
        self._has: list[set[bytes]] = []
        self._members: list[tuple[int, _Found, bytes]] = []
        """Of which sample, what, and its extension."""
        self._others: dict[bytes, _Found] = {}
        """By name: what belongs to no sample. Links may lead there."""
        self._kept: dict[tuple[int, bytes], bytes] = {}

    def add(self, found: _Found) -> None:
        parts = split(found.name)
        if parts is None:
            self._others[_plain(found.name)] = found
            return
        key, ext = parts
        sample = self._latest.get(key, -1)
        if sample >= 0 and ext in self._has[sample]:
            if sample == len(self._keys) - 1:
                raise Damaged(f"byte {found.start}: {_shown(found.name)} is there twice")
            sample = -1
        if sample < 0:
            sample = self._latest[key] = len(self._keys)
            self._keys.append(key)
            self._has.append(set())
        self._has[sample].add(ext)
        self._members.append((sample, found, ext))
        if found.length <= LARGEST and not found.link and _lower(ext) in self._fields:
            self._kept[sample, ext] = self._windows.read(found.start, found.length)

    def index(self) -> Index:
        members = sorted(self._resolved(), key=lambda one: one[0])
        exts = sorted({ext for _, _, ext in members})
        number = {ext: at for at, ext in enumerate(exts)}
        counts = np.bincount(
            np.array([sample for sample, _, _ in members], np.int64), minlength=len(self._keys)
        )
        arrays = {
            "keys": np.frombuffer(b"".join(self._keys), np.uint8),
            "key_ends": least(np.cumsum([0, *map(len, self._keys)])),
            "firsts": least(np.cumsum([0, *counts.tolist()])),
            "starts": least([found.start for _, found, _ in members]),
            "lengths": least([found.length for _, found, _ in members]),
            "heads": least([found.head for _, found, _ in members]),
            "sizes": least([found.size for _, found, _ in members]),
            "kinds": least([number[ext] for _, _, ext in members]),
        }
        index = Index([ext.decode("utf-8", "surrogateescape") for ext in exts], arrays, {})
        samples = [sample for sample, _, _ in members]

        def read(member: int) -> bytes:
            kept = self._kept.get((samples[member], exts[int(index.kinds[member])]))
            if kept is None:
                return _bytes(self._windows, index, member)
            size = int(index.sizes[member])
            return zips.inflated(kept, size - 1) if size else kept

        for wanted in self._targets.values():
            if not any(ext.lower() == wanted.field for ext in index.exts):
                continue
            try:
                index.columns[wanted.text] = _column(wanted, index, read)
            except Damaged:
                if wanted.text in self._asked:
                    raise
        return index

    def _resolved(self) -> list[tuple[int, _Found, bytes]]:
        """Members with what links lead to in their places."""
        if not any(found.link for _, found, _ in self._members):
            return self._members
        by_name = self._others | {_plain(found.name): found for _, found, _ in self._members}
        out = []
        for sample, found, ext in self._members:
            target: _Found | None = found
            for _ in range(_DEEPEST):
                if target is None or not target.link:
                    break
                target = by_name.get(target.link)
            if target is None or target.link:
                raise Damaged(
                    f"{_shown(found.name)} is a link to {_shown(found.link)}, which is no member here; pack what "
                    "links lead to, with tar -h"
                )
            # (its own headers do not stand in front of these bytes)
            out.append((sample, found if target is found else target._replace(name=found.name, head=0), ext))
        return out


def _plain(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def _lower(ext: bytes) -> str:
    return ext.decode("utf-8", "surrogateescape").lower()
