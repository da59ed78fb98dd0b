"""Bit sets in numpy: what ``bits`` is made of where its C counterpart (``words.c``) is not built.

Both give the same, random choices included, so it makes no difference to a job which one its host has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


def count(words: Words) -> int:
    """How many bits are 1."""
    # A narrower sum is twice as fast; it cannot overflow below 2^26 words, which are 4 billion samples.
    return int(np.bitwise_count(words).sum(dtype=np.uint32 if len(words) < 1 << 26 else np.uint64))


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


def add_needs(words: Words, ids: Ids, out: NDArray[np.uint16]) -> None:
    """Add 1 to ``out`` for each id whose bit is 1."""
    out += test(words, ids)


def hold(counts: NDArray[np.int32], words: Words, ids: Ids) -> None:
    """Each id has one more reader; ``words`` has those that have any. There are counts for all of them."""
    np.add.at(counts, ids, 1)
    put(words, ids)


def let_go(counts: NDArray[np.int32], words: Words, ids: Ids) -> None:
    """Each id has one reader less. Raises ValueError where one has none."""
    np.subtract.at(counts, ids, 1)
    left = counts[ids]
    if (left < 0).any():
        raise ValueError("one of them has no reader")
    drop(words, ids[left == 0])


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


def shuffle(ids: Ids, key: int) -> Ids:
    """The ids in a random order: random words whose low bits are replaced by the position, sorted."""
    at = np.arange(len(ids), dtype=np.uint64)
    low = np.uint64((1 << (len(ids) - 1).bit_length()) - 1)
    keys = (rnd.mix_many(at ^ _mixed(key)) & ~low) | at
    keys.sort()
    return ids[(keys & low).view(np.int64)]


def draw(words: Words | None, key: int, number: int, below: int, wanted: int) -> Ids:
    """The first ``wanted`` different ones out of ``number`` random numbers of 0..below-1; of those in ``words``, if
    that is given."""
    tries = _numbers(key, number, below)
    return _distinct(tries if words is None else tries[test(words, tries)], wanted)


def members(words: Words) -> Ids:
    """All ids whose bit is 1, ascending."""
    where = np.flatnonzero(words)
    ones = np.flatnonzero(np.unpackbits(words[where].astype("<u8").view(np.uint8), bitorder="little"))
    out: Ids = (where[ones >> 6] << 6) | (ones & 63)
    return out


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
