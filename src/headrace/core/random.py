"""Counter-based randomness: every number is a pure function of (seed, epoch, sample, stream, position).

Where a sample comes more than once in an epoch, each time counts as a sample of its own (``again``).

There is no generator state to carry, save or race for. The arithmetic is 64-bit integer mixing alone, so
the numbers are the same on every platform and under every numpy version.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import native

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB

U64 = NDArray[np.uint64]

# Made once: a scalar costs as much to make as a short array takes to mix.
_ADD, _MUL1, _MUL2 = np.uint64(_GOLDEN), np.uint64(_M1), np.uint64(_M2)
_S11, _S27, _S30, _S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)
_UNIT = np.float64(2.0**-53)
_COLUMNS = np.arange(1, 129, dtype=np.uint64) * _ADD


def mix(word: int) -> int:
    """A bijective scramble of a 64-bit word (the finaliser of splitmix64)."""
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _M1) & _MASK
    word = ((word ^ (word >> 27)) * _M2) & _MASK
    return word ^ (word >> 31)


def mix_many(words: U64) -> U64:
    """``mix`` of each word of an array."""
    out = words + _ADD
    out ^= out >> _S30
    out *= _MUL1
    out ^= out >> _S27
    out *= _MUL2
    out ^= out >> _S31
    return out


def key(*words: int) -> int:
    """One 64-bit key from any number of integers, order and count mattering."""
    if native.calls is not None:
        made: int = native.calls.key(*words)
        return made
    state = len(words)
    for word in words:
        state = mix(state ^ mix(word & _MASK))
    return state


def bits(key_: int, indices: NDArray[Any], count: int = 1) -> U64:
    """Random words, ``count`` for each index: an array of shape ``(len(indices), count)``."""
    rows = mix_many(indices.astype(np.uint64) ^ np.uint64(key_))
    columns = _COLUMNS[:count] if count <= len(_COLUMNS) else np.arange(1, count + 1, dtype=np.uint64) * _ADD
    return mix_many(rows[:, None] + columns)


def again(indices: NDArray[np.int64], times: NDArray[Any]) -> NDArray[np.int64]:
    """What stands for samples that came so many ``times`` before: the index itself at first, then other words."""
    words = indices.astype(np.uint64)
    anew = mix_many(mix_many(words) + times.astype(np.uint64))
    return np.where(times == 0, words, anew).view(np.int64)


def uniforms(key_: int, indices: NDArray[Any], count: int = 1) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), ``count`` for each index: an array of shape ``(len(indices), count)``."""
    return (bits(key_, indices, count) >> _S11) * _UNIT


def row_words(key_: int, indices: NDArray[Any]) -> U64:
    """What the numbers of each index follow from, for whoever makes them elsewhere (``of_rows``)."""
    return mix_many(indices.astype(np.uint64) ^ np.uint64(key_))


def of_rows(words: Any, columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers of indices by their ``row_words``: those that ``uniforms`` has in these columns."""
    return (mix_many(words + (columns + 1).astype(np.uint64) * _ADD) >> _S11) * _UNIT


def seed_global(word: int) -> None:
    """Seed Python's and numpy's global generators, which user code draws from."""
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
