"""Samples that are members of archives, read one by one where they lie."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.sizes import show_size
from headrace.sources.archives.frames import Part, framed, parts_of
from headrace.sources.archives.index import Index, decode
from headrace.sources.archives.open import Opened, open_indexes
from headrace.sources.archives.patterns import above, public
from headrace.sources.archives.selection import Options, select
from headrace.sources.archives.zip import inflated
from headrace.sources.location import Location, LocationReader
from headrace.sources.source import as_targets
from headrace.sources.storage import Entry, Storage, is_url


class ShardSource:
    """See ``shards``."""

    encoded = True

    def __init__(
        self,
        storage: Storage,
        entries: Sequence[Entry],
        options: Options,
        urls: Sequence[str],
        max_bytes: int,
    ) -> None:
        """``urls``: as they were given, for whoever writes down how it is made."""
        self._storage, self._options, self._urls, self._max_bytes = storage, options, list(urls), max_bytes
        self._open(open_indexes(storage, entries, options.wanted))

    def _open(self, opened: Sequence[Opened]) -> None:
        self._opened = list(opened)
        chosen = select(opened, self._options)
        self._chosen = chosen
        self.targets = as_targets(chosen.targets, len(chosen.members))
        self.classes = chosen.classes
        self.left_out = chosen.left_out

    # Indexes are files, so what is sent to another process is little. What could not be kept as one is sent whole.

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("_storage", "_options", "_urls", "_max_bytes")}
        state["archives"] = [
            (one.entry, None if one.kept else one.index.encode(one.entry.version)) for one in self._opened
        ]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        archives = state.pop("archives")
        self.__dict__.update(state)
        missing = [entry for entry, sent in archives if sent is None]
        found = iter(open_indexes(self._storage, missing, self._options.wanted))
        self._open(
            [
                next(found) if sent is None else Opened(entry, decode(sent)[0], False)
                for entry, sent in archives
            ]
        )

    def __len__(self) -> int:
        return len(self._chosen.members)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        return f"shards({self.root!r}: {len(self)} samples in {len(self._opened)} shards{classes})"

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The class number of each class name."""
        return {name: number for number, name in enumerate(self.classes or ())}

    @property
    def root(self) -> str:
        """The folder or prefix that all shards lie below."""
        return above([one.entry for one in self._opened])

    def definition(self) -> tuple[str, dict[str, Any]]:
        """The function that makes it, and its arguments as plain data."""
        options = self._options
        return "shards", {
            "urls": self._urls,
            "image": options.image,
            "fields": options.fields,
            "target": options.target,
            "layout": options.layout,
            "inside": options.inside,
            "max_bytes": self._max_bytes,
        }

    def _find(self, indices: Sequence[int] | NDArray[Any]) -> Iterator[tuple[Entry, Index, int]]:
        """The archive of each sample, its index, and the member in it."""
        at = np.asarray(indices, np.int64)
        size = len(self)
        if at.size and not 0 <= int(at.min()) <= int(at.max()) < size:
            raise IndexError(f"sample indices must lie in 0..{size - 1}, got {at.min()}..{at.max()}")
        archives = self._chosen.archive_of(at).tolist()
        for archive, member in zip(archives, self._chosen.members[at].tolist(), strict=True):
            opened = self._opened[archive]
            yield opened.entry, opened.index, member

    def _parts(self, index: Index, member: int) -> list[Part]:
        """What is read of a sample."""
        if self._options.fields is not None:
            return parts_of(index, index.sample_of(member), self._options.fields)
        return [Part(int(index.starts[member]), int(index.lengths[member]), member)]

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[Any]:
        """The bytes of each sample, or the error that kept them from being read."""
        wanted = []
        for entry, index, member in self._find(indices):
            parts = self._parts(index, member)
            wanted.append((entry, index, parts, self._refusal(entry, index, parts)))
        places = [
            Location(entry.what, entry.version, part.start, part.length)
            for entry, _, parts, refused in wanted
            if refused is None
            for part in parts
        ]
        found = iter(self._storage.read(places))
        return [
            self._whole(index, parts, [next(found) for _ in parts]) if refused is None else refused
            for _, index, parts, refused in wanted
        ]

    def _refusal(self, entry: Entry, index: Index, parts: list[Part]) -> OSError | None:
        """Why a sample is not read."""
        sizes = [int(index.sizes[part.member]) if part.member >= 0 else 0 for part in parts]
        total = sum(max(size - 1, part.length) for size, part in zip(sizes, parts, strict=True))
        if total <= self._max_bytes:
            return None
        large = (
            f"a sample of {show_size(total)}, and at most {show_size(self._max_bytes)} are read; if it is meant to "
            "be so large, pass max_bytes= to shards()"
        )
        return OSError(errno.EFBIG, large, public(os.fsdecode(entry.what)))

    def _whole(self, index: Index, parts: list[Part], found: list[bytes | BaseException]) -> Any:
        for data in found:
            if isinstance(data, BaseException):
                return data
        try:
            if self._options.fields is not None:
                return framed(index, parts, found)  # type: ignore[arg-type]
            size = int(index.sizes[parts[0].member])
            return inflated(found[0], size - 1) if size else found[0]  # type: ignore[arg-type]
        except ValueError as error:
            return error

    def locate(self, indices: Sequence[int] | NDArray[Any]) -> list[Location | None]:
        """See ``Locating``. What has to be inflated or put together lies nowhere as it is read."""
        out: list[Location | None] = []
        for entry, index, member in self._find(indices):
            part = self._as_it_lies(index, member, parts := self._parts(index, member))
            out.append(Location(entry.what, entry.version, parts[0].start, parts[0].length) if part else None)
        return out

    def _as_it_lies(self, index: Index, member: int, parts: list[Part]) -> bool:
        if sum(part.length for part in parts) > self._max_bytes:
            return False
        if self._options.fields is not None:
            return len(parts) == 1 and parts[0].member < 0
        return not int(index.sizes[member])

    def location_reader(self) -> LocationReader:
        """See ``Locating``."""
        return self._storage

    def name(self, index: int) -> str:
        """The shard, and the name of the member that is read first."""
        ((entry, archive, member),) = self._find([index])
        shard = os.path.basename(public(os.fsdecode(entry.what)))
        return f"{shard}:{os.fsdecode(archive.name(member))}"

    def identity(self, index: int) -> str:
        """Stable over processes, orders and subsets: which part of which version of which shard."""
        return os.fsdecode(self.identity_bytes([index])[0])

    def identity_bytes(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The identity of each sample as the bytes that a digest is taken of; for many samples at once."""
        out = []
        for entry, index, member in self._find(indices):
            parts = self._parts(index, member)
            if self._as_it_lies(index, member, parts):
                out.append(Location(entry.what, entry.version, parts[0].start, parts[0].length).identity)
                continue
            where = b",".join(b"%x+%x" % (part.start, part.length) for part in parts)
            how = b"inflated" if self._options.fields is None else b"put together"
            out.append(b"%b\0%b\0%b\0%b" % (entry.what, entry.version, where, how))
        return out

    def listing(self) -> str:
        """A digest of how many samples there are, and in which shards."""
        names = [os.fsdecode(one.entry.what) for one in self._opened]
        text = repr(("shards", len(self), names, self._options))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def fingerprint(self) -> str:
        """A digest of which samples there are: which members of which versions of which shards.

        Local shards are looked at again: what the indexes say does not hold for others under their names.
        """
        entries = [one.entry for one in self._opened]
        if not is_url(entries[0].what):
            for entry, now in zip(
                entries, self._storage.describe([one.what for one in entries]), strict=True
            ):
                if isinstance(now, Entry) and now.version != entry.version:
                    raise OptionError(
                        f"shard {os.fsdecode(entry.what)!r} was changed since the source was made; make it again"
                    )
        sha = hashlib.sha256(b"shards")
        for one in self._opened:
            sha.update(b"%d %b\0%b\0" % (len(one.entry.what), one.entry.what, one.entry.version))
        sha.update(repr(self._options.fields).encode("utf-8", "surrogatepass"))
        sha.update(self._chosen.ends.astype("<i8").tobytes())
        if self._chosen.archives is not None:
            sha.update(self._chosen.archives.astype("<u4").tobytes())
        sha.update(self._chosen.members.astype("<u4").tobytes())
        return sha.hexdigest()
