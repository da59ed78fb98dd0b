"""Bit sets: subsets of the samples 0..size-1, one bit each, in words of 64.

``Bits`` is the set that knows its size. The functions above it work on bare words and are what a draw is made
of: they cost microseconds for a million samples. Bits beyond the size are always 0, so a function never has to
know it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.core import random as rnd

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]

# Made once: a scalar costs as much to make as a short array takes to shift.
_ONE, _LOW = np.uint64(1), np.uint64(63)
_S3, _S4, _S8, _S11, _S16, _S48 = (np.uint64(shift) for shift in (3, 4, 8, 11, 16, 48))
_LANE8, _ONES8, _TOPS8 = np.uint64(0xFF), np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_LANE16, _ONES16, _TOPS16 = np.uint64(0xFFFF), np.uint64(0x0001000100010001), np.uint64(0x8000800080008000)
_EVEN = np.uint64(0x00FF00FF00FF00FF)
_UNIT, _MASK = 2.0**-53, (1 << 64) - 1

# _NTH[8 * byte + n] is the position of the n-th 1 of the byte.
_NTH = np.zeros(256 * 8, np.int64)
for _byte in range(256):
    for _n, _bit in enumerate(bit for bit in range(8) if _byte >> bit & 1):
        _NTH[8 * _byte + _n] = _bit


def words_for(size: int) -> int:
    """How many words hold ``size`` bits."""
    return -(-size // 64)


def count(words: Words) -> int:
    """How many bits are 1."""
    # A narrower sum is twice as fast; it cannot overflow below 2^26 words, which are 4 billion samples.
    return int(np.bitwise_count(words).sum(dtype=np.uint32 if len(words) < 1 << 26 else np.uint64))


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
    out: NDArray[np.bool_] = (words[ids >> 6] >> (ids.view(np.uint64) & _LOW) & _ONE).astype(np.bool_)
    return out


def put(words: Words, ids: Ids) -> None:
    """Set the bits of ids, which must lie within the words."""
    np.bitwise_or.at(words, ids >> 6, _ONE << (ids.view(np.uint64) & _LOW))


def drop(words: Words, ids: Ids) -> None:
    """Clear the bits of ids, which must lie within the words."""
    np.bitwise_and.at(words, ids >> 6, ~(_ONE << (ids.view(np.uint64) & _LOW)))


def members(words: Words) -> Ids:
    """All ids whose bit is 1, ascending."""
    where = np.flatnonzero(words)
    ones = np.flatnonzero(np.unpackbits(words[where].astype("<u8").view(np.uint8), bitorder="little"))
    out: Ids = (where[ones >> 6] << 6) | (ones & 63)
    return out


def select(words: Words, ranks: Ids) -> Ids:
    """The ids of the 1s of the given ranks: rank 0 is the lowest id in the set.

    Raises IndexError where there is no such rank.
    """
    ranked = _Ranked(words)
    if len(ranks) and (int(ranks.max()) >= ranked.total or int(ranks.min()) < 0):
        raise IndexError("a rank beyond the size of the set")
    return ranked.select(ranks)


class _Ranked:
    """The counts of a set, from which ranks are looked up.

    Counts lie side by side in the lanes of a word, so that one operation serves them all: those of eight words in its
    bytes (``counts``), those of four pairs of words in its quarters (``pairs``). A multiplication adds up lanes from
    the lowest to each; a subtraction compares them with a number, if a top bit is there to borrow from.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        counts = np.zeros(-(-len(words) // 8) * 8, np.uint8)
        np.bitwise_count(words, out=counts[: len(words)])
        self._counts = counts.view("<u8")
        self._pairs = (self._counts & _EVEN) + (self._counts >> _S8 & _EVEN)
        self._ends = np.cumsum((self._pairs * _ONES16 >> _S48).view(np.int64))
        self.total = int(self._ends[-1]) if len(words) else 0

    def select(self, ranks: Ids) -> Ids:
        """The ids of valid ranks."""
        group = np.searchsorted(self._ends, ranks, side="right")
        pairs = self._pairs[group] * _ONES16
        within = (ranks - self._ends[group]).view(np.uint64) + (pairs >> _S48)
        pair = np.bitwise_count(((within * _ONES16 | _TOPS16) - pairs) & _TOPS16).astype(np.uint64)
        shift = pair << _S4
        within -= (pairs << _S16) >> shift & _LANE16
        first = self._counts[group] >> shift & _LANE8
        second = within >= first
        within -= first * second
        where = (group << 3) + (pair << _ONE).view(np.int64) + second
        word = self._words[where]
        # The same once more, for the bytes of the word; within a byte a table knows.
        octets = np.bitwise_count(word.astype("<u8").view(np.uint8)).view("<u8") * _ONES8
        octet = np.bitwise_count(((within * _ONES8 | _TOPS8) - octets) & _TOPS8).astype(np.uint64)
        shift = octet << _S3
        within -= (octets << _S8) >> shift & _LANE8
        within += (word >> shift & _LANE8) << _S3
        out: Ids = (where << 6) + (shift.view(np.int64) + _NTH[within.view(np.int64)])
        return out


def shuffled(ids: Ids, key: int) -> Ids:
    """The ids in a random order."""
    if len(ids) < 2:
        return ids
    return ids[_in_random_order(len(ids), key)]


def _in_random_order(length: int, key: int) -> Ids:
    """0..length-1 shuffled: random words whose low bits are replaced by the position, sorted."""
    at = np.arange(length, dtype=np.uint64)
    low = np.uint64((1 << (length - 1).bit_length()) - 1)
    keys = (rnd.mix_many(at ^ _mixed(key)) & ~low) | at
    keys.sort()
    return (keys & low).view(np.int64)


def _mixed(key: int) -> np.uint64:
    """The key for counters: without mixing, small keys would do no more than swap counters."""
    return np.uint64(rnd.mix(key & _MASK))


def _numbers(key: int, count: int, below: int) -> Ids:
    """Random numbers of 0..below-1, independent of each other."""
    raw = rnd.mix_many(np.arange(count, dtype=np.uint64) ^ _mixed(key))
    return ((raw >> _S11) * (_UNIT * below)).astype(np.int64)


def _distinct(values: Ids, wanted: int) -> Ids:
    """The first ``wanted`` different values (or fewer, if there are no more), as they come first."""
    shift = max(len(values) - 1, 1).bit_length()
    packed = (values << shift) | np.arange(len(values))
    packed.sort()
    found = packed >> shift
    first = np.empty(len(values), np.bool_)
    first[:1] = True
    np.not_equal(found[1:], found[:-1], out=first[1:])
    if first.all():
        return values[:wanted]
    at: Ids = packed[first] & ((1 << shift) - 1)
    at.sort()
    return values[at[:wanted]]


def choose(words: Words, wanted: int, key: int) -> Ids:
    """``wanted`` different members, uniformly random and in random order; all of them if there are no more.

    A pure function of its arguments. In a dense set random ids are tried until enough are members, which touches few
    words; in a sparse one all words are counted and random ranks looked up. Which way is taken depends on the set
    and on how many tries hit, never on which members were hit, so the choice is uniform either way.
    """
    if wanted <= 0 or not len(words):
        return np.empty(0, np.int64)
    span = 64 * len(words)
    some = words[:: len(words) // 128 + 1]
    density = int(np.bitwise_count(some).sum()) / (64 * len(some))
    number = 32 + int(1.2 * wanted / density) if density else span
    # The right side weighs a try against counting a word and looking up a rank, as measured.
    if number < min(4096 + len(words) // 8 + 8 * wanted, span // 2):
        tries = _numbers(key, number, span)
        found = _distinct(tries[test(words, tries)], wanted)
        if len(found) == wanted:
            return found
    key = rnd.key(key, 1)
    if not at_least(words, 4 * wanted + 1):
        return shuffled(members(words), key)[:wanted]
    ranked = _Ranked(words)
    number = wanted + wanted // 2 + 16
    ranks = _distinct(_numbers(key, number, ranked.total), wanted)
    while len(ranks) < wanted:
        number *= 2
        ranks = _distinct(_numbers(key, number, ranked.total), wanted)
    return ranked.select(ranks)


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
