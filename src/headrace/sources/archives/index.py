"""What lies where in one archive: its samples, their members, and small targets; as arrays that a file can hold."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"HRSHARD1"
_PREFIX = struct.Struct("<8sII")
"""Magic, checksum of all that follows it, and the length of the head."""
_ALIGN = 8
_VARIED = ("keys", "key_ends", "firsts")
NONE = -1


class Unreadable(ValueError):
    """No index, or one that was damaged."""


class Index:
    """The samples of an archive, in their order; members of a sample in the order in which they lie there.

    Arrays by sample: where its key ends in ``keys``, its first member. By member: where its bytes begin (``starts``),
    how many lie there (``lengths``), how far its headers begin before them (``heads``; 0 where it has none that could
    be read with it), how many bytes come of what was deflated, plus one (``sizes``; 0 where it was not), and the
    number of what its name ends with, one of ``exts``.
    """

    ARRAYS = ("keys", "key_ends", "firsts", "starts", "lengths", "heads", "sizes", "kinds")
    keys: NDArray[np.uint8]
    key_ends: NDArray[Any]
    firsts: NDArray[Any]
    starts: NDArray[Any]
    lengths: NDArray[Any]
    heads: NDArray[Any]
    sizes: NDArray[Any]
    kinds: NDArray[Any]

    def __init__(
        self, exts: Sequence[str], arrays: Mapping[str, NDArray[Any]], columns: Mapping[str, NDArray[Any]]
    ) -> None:
        self.exts = tuple(exts)
        for name in self.ARRAYS:
            setattr(self, name, arrays[name])
        self.columns = dict(columns)
        """Targets, by what they were asked for as (``columns.pack``)."""

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def key(self, sample: int) -> bytes:
        """What the names of a sample's members begin with."""
        return self.keys[int(self.key_ends[sample]) : int(self.key_ends[sample + 1])].tobytes()

    def sample_of(self, member: int) -> int:
        """The sample that a member belongs to."""
        # (a number of another type would have all of them converted)
        return int(np.searchsorted(self.firsts, self.firsts.dtype.type(member), side="right")) - 1

    def name(self, member: int) -> bytes:
        """A member's name."""
        ext = self.exts[int(self.kinds[member])].encode("utf-8", "surrogateescape")
        return self.key(self.sample_of(member)) + b"." + ext

    def all_keys(self) -> list[bytes]:
        """The keys of all samples."""
        keys, ends = self.keys.tobytes(), self.key_ends.tolist()
        return [keys[start:stop] for start, stop in itertools.pairwise(ends)]

    def names(self, kinds: NDArray[np.bool_]) -> Iterator[tuple[int, bytes]]:
        """All members of some kinds (a mask), and their names."""
        exts = [b"." + ext.encode("utf-8", "surrogateescape") for ext in self.exts]
        chosen = np.flatnonzero(kinds[self.kinds])
        samples = np.searchsorted(np.asarray(self.firsts, np.int64), chosen, side="right") - 1
        keys = self.all_keys()
        for member, sample, kind in zip(
            chosen.tolist(), samples.tolist(), self.kinds[chosen].tolist(), strict=True
        ):
            yield member, keys[sample] + exts[kind]

    def members(self, sample: int) -> range:
        """The members of a sample."""
        return range(int(self.firsts[sample]), int(self.firsts[sample + 1]))

    def choose(self, ranks: Sequence[int]) -> NDArray[np.int64]:
        """The member of each sample whose kind has the lowest rank; -1 where all kinds in it have none (-1)."""
        worst = max(ranks, default=0) + 1
        by_kind = np.array([worst if rank == NONE else rank for rank in ranks], np.int64)
        count = len(self.kinds)
        if not count:
            return np.zeros(0, np.int64)
        found = np.minimum.reduceat(
            by_kind[self.kinds] * count + np.arange(count), np.asarray(self.firsts[:-1], np.int64)
        )
        return np.where(found // count == worst, NONE, found % count)

    def encode(self, version: bytes) -> bytes:
        """The index of an archive's ``version`` as a file."""
        body = bytearray()
        places: dict[str, list[Any]] = {}
        named = {name: getattr(self, name) for name in self.ARRAYS}
        for name, array in (named | {f"target {key}": value for key, value in self.columns.items()}).items():
            same = name not in _VARIED and array.dtype.kind != "V" and len(array) > 1
            same = same and bool((array == array[0]).all())
            kept = array[:1] if same else array
            body += bytes(-len(body) % _ALIGN)
            places[name] = [array.dtype.str, len(array), len(body), same]
            body += kept.tobytes()
        described = {"version": version.decode("latin-1"), "exts": self.exts, "arrays": places}
        head = json.dumps(described).encode()
        head += b" " * (-(len(head) + _PREFIX.size) % _ALIGN)
        checksum = zlib.crc32(body, zlib.crc32(struct.pack("<I", len(head)) + head))
        return b"".join((_PREFIX.pack(_MAGIC, checksum, len(head)), head, body))


def decode(data: Any) -> tuple[Index, bytes]:
    """What ``encode`` wrote, and the version of the archive. Arrays are parts of ``data``."""
    view = memoryview(data).cast("B")
    if len(view) < _PREFIX.size:
        raise Unreadable("too short")
    magic, checksum, length = _PREFIX.unpack(view[: _PREFIX.size])
    if magic != _MAGIC:
        raise Unreadable("of another format")
    if zlib.crc32(view[_PREFIX.size - 4 :]) != checksum:
        raise Unreadable("damaged")
    described = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + length]))
    body = view[_PREFIX.size + length :]
    arrays: dict[str, NDArray[Any]] = {}
    for name, (dtype, count, start, same) in described["arrays"].items():
        array = (
            np.frombuffer(body, np.dtype(dtype), 1 if same else count, start) if count else np.zeros(0, dtype)
        )
        arrays[name] = np.broadcast_to(array, (count,)) if same else array
    columns = {name[7:]: array for name, array in arrays.items() if name.startswith("target ")}
    return Index(described["exts"], arrays, columns), described["version"].encode("latin-1")


def least(values: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    """Numbers from zero up, in as few bytes as hold them."""
    array = np.asarray(values, np.int64)
    return array.astype(np.min_scalar_type(int(array.max())) if array.size else np.uint8)
