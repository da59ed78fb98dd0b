"""Bit sets: subsets of the samples 0..size-1, one bit each, in words of 64.

``Bits`` is the set that knows its size. The functions above it work on bare words and are what a draw is made
of: they cost microseconds for a million samples. Bits beyond the size are always 0, so a function never has to
know it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.core import random as rnd
from headrace.core import words as plain
from headrace.core.native import calls as _native
from headrace.core.words import Ids as Ids
from headrace.core.words import Words as Words

_MASK = (1 << 64) - 1
_ONE, _LOW = np.uint64(1), np.uint64(63)
_SHORT = 4096
"""So many are shuffled faster here than in numpy."""


def words_for(size: int) -> int:
    """How many words hold ``size`` bits."""
    return -(-size // 64)


def count(words: Words) -> int:
    """How many bits are 1."""
    return plain.count(words) if _native is None else _native.count(words)


def at_least(words: Words, wanted: int) -> bool:
    """Whether ``wanted`` bits or more are 1. Looks no further than it must."""
    start, width = 0, 1024
    while wanted > 0:
        if start >= len(words):
            return False
        wanted -= count(words[start : start + width])
        start, width = start + width, 4 * width
    return True


def test(words: Words, ids: Ids) -> NDArray[np.bool_]:
    """For each id whether its bit is 1. The ids must lie within the words."""
    if _native is None:
        return plain.test(words, ids)
    out = np.empty(len(ids), np.bool_)
    _native.test(words, ids, out)
    return out


def put(words: Words, ids: Ids) -> None:
    """Set the bits of ids, which must lie within the words."""
    (plain if _native is None else _native).put(words, ids)


def drop(words: Words, ids: Ids) -> None:
    """Clear the bits of ids, which must lie within the words."""
    (plain if _native is None else _native).drop(words, ids)


def hold(counts: NDArray[np.int32], words: Words, ids: Ids) -> None:
    """Each id has one more reader; ``words`` has those that have any. There are counts for all of its bits."""
    (plain if _native is None else _native).hold(counts, words, ids)


def let_go(counts: NDArray[np.int32], words: Words, ids: Ids) -> None:
    """Each id has one reader less. Raises ValueError where one has none: then some may have been counted."""
    (plain if _native is None else _native).let_go(counts, words, ids)


def needs(sets: Iterable[Words], ids: Ids) -> NDArray[np.uint16]:
    """For each id how many of the sets have it. The ids must lie within all of them."""
    out = np.zeros(len(ids), np.uint16)
    add = plain.add_needs if _native is None else _native.add_needs
    for words in sets:
        add(words, ids, out)
    return out


def members(words: Words) -> Ids:
    """All ids whose bit is 1, ascending."""
    if _native is None:
        return plain.members(words)
    out = np.empty(_native.count(words), np.int64)
    _native.members(words, out)
    return out


def select(words: Words, ranks: Ids) -> Ids:
    """The ids of the 1s of the given ranks: rank 0 is the lowest id in the set.

    Raises IndexError where there is no such rank.
    """
    if _native is None:
        return plain.select(words, ranks)
    out = ranks.copy()
    _native.select(words, out)
    return out


def shuffled(ids: Ids, key: int) -> Ids:
    """The ids in a random order."""
    if len(ids) < 2:
        return ids
    if _native is None or len(ids) > _SHORT:
        return plain.shuffle(ids, key)
    out = ids.copy()
    _native.shuffle(out, key & _MASK)
    return out


def _draw(words: Words | None, key: int, number: int, below: int, wanted: int) -> Ids:
    """The first different ones out of random numbers: see ``plain.draw``."""
    if _native is None:
        return plain.draw(words, key, number, below, wanted)
    out = np.empty(wanted, np.int64)
    return out[: _native.draw(words, key & _MASK, number, below, out)]


def choose(words: Words, wanted: int, key: int) -> Ids:
    """``wanted`` different members, uniformly random and in random order; all of them if there are no more.

    A pure function of its arguments. In a dense set random ids are tried until enough are members, which touches few
    words; in a sparse one all words are counted and random ranks looked up. Which way is taken depends on the set
    and on how many tries hit, never on which members were hit, so the choice is uniform either way.
    """
    if wanted <= 0 or not len(words):
        return np.empty(0, np.int64)
    span = 64 * len(words)
    some = words if len(words) < 128 else np.ascontiguousarray(words[:: len(words) // 128 + 1])
    density = count(some) / (64 * len(some))
    number = 32 + int(1.2 * wanted / density) if density else span
    # The right side weighs a try against counting a word and looking up a rank, as measured.
    if number < min(4096 + len(words) // 8 + 8 * wanted, span // 2):
        found = _draw(words, key, number, span, wanted)
        if len(found) == wanted:
            return found
    key = rnd.key(key, 1)
    if not at_least(words, 4 * wanted + 1):
        return shuffled(members(words), key)[:wanted]
    total, number = count(words), wanted + wanted // 2 + 16
    ranks = _draw(None, key, number, total, wanted)
    while len(ranks) < wanted:
        number *= 2
        ranks = _draw(None, key, number, total, wanted)
    return select(words, ranks)


class Bits:
    """A set of samples out of 0..size-1."""

    __slots__ = ("size", "words")

    def __init__(self, size: int, words: Words) -> None:
        """Takes over ``words`` as they are; ``empty``, ``full``, ``of`` and ``frombytes`` make valid ones."""
        self.size = size
        self.words = words

    @classmethod
    def empty(cls, size: int) -> Bits:
        """No sample."""
        return cls(size, np.zeros(words_for(size), np.uint64))

    @classmethod
    def full(cls, size: int) -> Bits:
        """All samples."""
        words = np.full(words_for(size), np.uint64((1 << 64) - 1))
        if size % 64:
            words[-1] = np.uint64((1 << size % 64) - 1)
        return cls(size, words)

    @classmethod
    def of(cls, size: int, ids: ArrayLike) -> Bits:
        """These samples."""
        out = cls.empty(size)
        out.add(ids)
        return out

    @classmethod
    def frombytes(cls, size: int, data: bytes | bytearray | memoryview) -> Bits:
        """The set that ``tobytes`` wrote. Raises ValueError if the data cannot be a set of this size."""
        if size < 0 or memoryview(data).nbytes != 8 * words_for(size):
            raise ValueError(f"{memoryview(data).nbytes} bytes are no set over {size} samples")
        words = np.frombuffer(data, "<u8").astype(np.uint64)
        if size % 64 and int(words[-1]) >> size % 64:
            raise ValueError(f"a set over {size} samples has bits beyond them")
        return cls(size, words)

    def tobytes(self) -> bytes:
        """The words, little-endian."""
        return self.words.astype("<u8", copy=False).tobytes()

    def copy(self) -> Bits:
        """A set of its own with the same samples."""
        return Bits(self.size, self.words.copy())

    def count(self) -> int:
        """How many samples are in the set."""
        return count(self.words)

    def ids(self) -> Ids:
        """The samples in the set, ascending."""
        return members(self.words)

    def test(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """For each of ``ids`` whether it is in the set."""
        return test(self.words, self._checked(ids))

    def add(self, ids: ArrayLike) -> int:
        """Put samples into the set; ids may repeat. Returns how many were not in it."""
        fresh, where, bit = self._split(ids)
        known = (self.words[where] & bit) != 0
        np.bitwise_or.at(self.words, where, bit)
        return len(fresh) - int(np.count_nonzero(known))

    def discard(self, ids: ArrayLike) -> int:
        """Take samples out of the set, those that are in it; ids may repeat. Returns how many were."""
        _, where, bit = self._split(ids)
        known = (self.words[where] & bit) != 0
        np.bitwise_and.at(self.words, where, ~bit)
        return int(np.count_nonzero(known))

    def grow(self, size: int) -> None:
        """Let the set range over more samples; the new ones are not in it."""
        if size < self.size:
            raise ValueError(f"a set over {self.size} samples cannot shrink to {size}")
        lack = words_for(size) - len(self.words)
        if lack:
            self.words = np.concatenate([self.words, np.zeros(lack, np.uint64)])
        self.size = size

    def __and__(self, other: Bits) -> Bits:
        return Bits(self._same(other), self.words & other.words)

    def __or__(self, other: Bits) -> Bits:
        return Bits(self._same(other), self.words | other.words)

    def __sub__(self, other: Bits) -> Bits:
        return Bits(self._same(other), self.words & ~other.words)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bits):
            return NotImplemented
        return self.size == other.size and bool(np.array_equal(self.words, other.words))

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"<Bits {self.count()} of {self.size}>"

    def _same(self, other: Bits) -> int:
        if self.size != other.size:
            raise ValueError(f"sets over {self.size} and {other.size} samples")
        return self.size

    def _checked(self, ids: ArrayLike) -> Ids:
        out = np.ascontiguousarray(ids, np.int64).reshape(-1)
        # Seen as unsigned, a negative id is a huge one: a single comparison serves both ends.
        if len(out) and int(out.view(np.uint64).max()) >= self.size:
            raise IndexError(f"ids beyond 0..{self.size - 1}")
        return out

    def _split(self, ids: ArrayLike) -> tuple[Ids, Ids, Words]:
        """The ids without repetition, the word and the bit of each."""
        fresh = np.sort(self._checked(ids))
        differs = fresh[1:] != fresh[:-1]
        if not differs.all():
            fresh = np.concatenate([fresh[:1], fresh[1:][differs]])
        return fresh, fresh >> 6, _ONE << (fresh.view(np.uint64) & _LOW)
