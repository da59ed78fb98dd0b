"""Identities of samples as fixed-size digests: by them, different datasets know which samples they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.sources.source import Source

IDENTITY_BYTES = 16
_BLOCK = 1 << 16
"""Samples looked at together: bounds the memory for their names."""


def identities(source: Source) -> NDArray[np.uint8]:
    """A digest (blake2b) of each sample's identity: one row of 16 bytes each, equal for equal identities."""
    size = len(source)
    out = np.empty((size, IDENTITY_BYTES), np.uint8)
    blake2b = hashlib.blake2b
    for start, names in _blocks(source, size):
        digests = b"".join([blake2b(name, digest_size=16).digest() for name in names])
        out[start : start + len(names)] = np.frombuffer(digests, np.uint8).reshape(-1, IDENTITY_BYTES)
    return out


def identities_of(source: Source, indices: NDArray[np.int64]) -> list[bytes]:
    """The same for some samples, as bytes."""
    many = getattr(source, "identity_bytes", None)
    names = many(indices) if many is not None else [_bytes(source.identity(int(index))) for index in indices]
    return [hashlib.blake2b(name, digest_size=IDENTITY_BYTES).digest() for name in names]


def _blocks(source: Source, size: int) -> Iterator[tuple[int, list[bytes]]]:
    """The samples' identities as bytes, block by block."""
    # Names of files are bytes already; to make a string of each and bytes of it again takes three times as long.
    many = getattr(source, "identity_bytes", None)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        if many is not None:
            yield start, many(np.arange(start, stop))
        else:
            yield start, [_bytes(source.identity(at)) for at in range(start, stop)]


def _bytes(name: str) -> bytes:
    # As names of files become strings, so that a file is the same sample in every kind of source.
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass")
