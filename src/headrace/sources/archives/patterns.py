"""From what users write to the archives that are meant: patterns, lists, folders, prefixes."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from headrace.core.errors import OptionError
from headrace.sources.storage import Entry, Storage, is_url, storage_of

Url = str | os.PathLike[str]
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_COMPRESSED = (".gz", ".tgz", ".zst", ".tzst", ".bz2", ".tbz", ".tbz2", ".xz", ".txz", ".lz4", ".7z", ".rar")
_MOST = 1_000_000
"""Names that a pattern may stand for."""


def braces(pattern: str) -> Iterator[str]:
    """All names of a pattern: ``{0000..0099}`` and ``{a,b}``, as shells have them.

    >>> list(braces("{train,val}-{08..10}.tar"))[1:4]
    ['train-09.tar', 'train-10.tar', 'val-08.tar']
    """
    found = next((one for one in _BRACES.finditer(pattern) if ".." in one[1] or "," in one[1]), None)
    if found is None:
        yield pattern
        return
    before, after = pattern[: found.start()], pattern[found.end() :]
    for choice in _choices(found[1], pattern):
        yield from braces(before + choice + after)


def _choices(inner: str, pattern: str) -> Iterator[str]:
    numbers = _RANGE.fullmatch(inner)
    if numbers is None:
        yield from inner.split(",")
        return
    first, last = int(numbers[1]), int(numbers[2])
    if abs(last - first) >= _MOST:
        raise OptionError(f"{pattern!r} stands for more than {_MOST} names")
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-")[0] == "0" for text in numbers.groups())
    width = max(map(len, numbers.groups())) if padded else 0
    step = 1 if last >= first else -1
    for number in range(first, last + step, step):
        yield f"{number:0{width}d}"


def find(
    urls: Url | Sequence[Url],
    endings: tuple[str, ...],
    *,
    what: str,
    max_bytes: int,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Storage, list[Entry], list[str]]:
    """Where archives lie, all of them, and what was written, as it can be written again elsewhere.

    ``endings``: of the names in folders. ``what``: the function that is asked, for messages.
    """
    given = [os.fspath(one) for one in ([urls] if isinstance(urls, str | os.PathLike) else urls)]
    if not given:
        raise OptionError(f"{what}() got an empty list")
    given = [one if is_url(one) else os.path.abspath(_local(one)) for one in given]
    options: dict[str, Any] = {} if storage_options is None else {"storage_options": storage_options}
    _check(given, what)
    homes = {_home(one) for one in given}
    if len(homes) > 1:
        raise OptionError(
            f"{what}() got {' and '.join(sorted(homes))}: all shards of a source lie in one place"
        )
    storage = storage_of(given[0], max_bytes, **options)
    found: list[Entry] = []
    names: list[bytes] = []
    for one in given:
        for name in [one] if _exists(one) else braces(one):
            if _is_folder(name, endings):
                found += _described(storage, names, what)
                names = []
                found += _below(storage, name, endings, what)
            else:
                names += _globbed(name, what)
    found += _described(storage, names, what)
    return storage, found, [public(one) for one in given]


def _local(name: str) -> str:
    return urlsplit(name).path if name.startswith("file://") else name


def _home(name: str) -> str:
    """What one storage serves."""
    parts = urlsplit(name) if is_url(name) else None
    return "local files" if parts is None else f"{parts.scheme}://{parts.hostname or ''}"


def _exists(name: str) -> bool:
    return not is_url(name) and os.path.exists(name)


def _is_folder(name: str, endings: tuple[str, ...]) -> bool:
    if not is_url(name):
        return os.path.isdir(name)
    path = urlsplit(name).path.lower()
    return path.endswith("/") or not path.endswith((*endings, *_COMPRESSED))


def _below(storage: Storage, name: str, endings: tuple[str, ...], what: str) -> list[Entry]:
    ends = tuple(ending.encode() for ending in endings)
    found = [
        one for block in storage.below(os.fsencode(name)) for one in block if one.what.lower().endswith(ends)
    ]
    found = [one for one in found if not os.path.basename(one.what).startswith(b".")]
    if not found:
        raise OptionError(f"{what}({public(name)!r}): there is no {' nor '.join(endings)} file below it")
    return found


def _globbed(name: str, what: str) -> list[bytes]:
    if not glob.has_magic(name) or _exists(name):
        return [os.fsencode(name)]
    if is_url(name):
        if "*" in urlsplit(name).path:
            raise OptionError(
                f"{what}({public(name)!r}): buckets have no such patterns; name the prefix that all shards lie "
                "below, or write {0000..0099}"
            )
        return [os.fsencode(name)]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise OptionError(f"{what}({name!r}): no file has such a name")
    return [os.fsencode(one) for one in found]


def _check(names: Sequence[str], what: str) -> None:
    for name in map(public, names):
        if name.lower().endswith(_COMPRESSED):
            raise OptionError(
                f"{what}({name!r}): single samples of a compressed archive cannot be read; unpack it once, to a .tar "
                "or a folder (`headrace data add` does that)"
            )


def _described(storage: Storage, names: list[bytes], what: str) -> list[Entry]:
    _check([os.fsdecode(name) for name in names], what)
    out = []
    for name, one in zip(names, storage.describe(names), strict=True):
        if isinstance(one, FileNotFoundError):
            raise OptionError(f"{what}({public(os.fsdecode(name))!r}): there is no such file")
        if isinstance(one, BaseException):
            raise OptionError(f"{what}({public(os.fsdecode(name))!r}): {one}") from one
        out.append(one)
    return out


def above(entries: Sequence[Entry]) -> str:
    """The folder or prefix that all of them lie below."""
    folders = [public(os.fsdecode(one.what)).split("/")[:-1] for one in entries]
    common = []
    for parts in zip(*folders, strict=False):
        if len({*parts}) > 1:
            break
        common.append(parts[0])
    return "/".join(common) or "/"


def public(name: str) -> str:
    """A name without passwords and signatures."""
    if not is_url(name):
        return name
    parts = urlsplit(name)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
