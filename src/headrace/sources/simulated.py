"""Samples made from their index alone, behind storage whose speed can be set: for tests and benchmarks."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.random import bits, key, mix
from headrace.sources.location import Location

_BLOCK = 1 << 16


@functools.cache
def _pattern(size: int) -> bytes:
    """Random bytes that samples are cut from; at least ``size`` after any starting point inside one block."""
    words = (size + _BLOCK) // 8 + 1
    return bits(key(0x5EED), np.arange(words), 1).tobytes()


class _Pipe:
    """Storage bandwidth that all threads of a process share."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.free_at = 0.0

    def reserve(self, seconds: float) -> float:
        """The moment at which a transfer of ``seconds`` that starts now will be over."""
        with self.lock:
            self.free_at = max(time.monotonic(), self.free_at) + seconds
            return self.free_at


class SyntheticSource:
    """A source whose samples are pure functions of their index. See ``synthetic``."""

    encoded = True

    def __init__(
        self,
        size: int,
        low: int,
        high: int,
        shape: tuple[int, ...] | None,
        latency: float,
        bandwidth: float | None,
        classes: int | None,
    ) -> None:
        self.size = size
        self.shape = shape
        self.latency = latency
        self.bandwidth = bandwidth
        self._low, self._high = low, high
        self._targets = None if classes is None else np.arange(size, dtype=np.int64) % classes
        self.classes = None if classes is None else [f"class {number}" for number in range(classes)]
        self._pipe = _Pipe()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pipe"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pipe = _Pipe()

    @property
    def targets(self) -> NDArray[Any] | None:
        """The class of each sample (its index modulo the number of classes), or None."""
        return self._targets

    def __len__(self) -> int:
        return self.size

    def definition(self) -> tuple[str, dict[str, Any]]:
        """The function that makes it, and its arguments as plain data."""
        return "synthetic.source", {
            "size": self.size,
            "bytes_per_sample": (self._low, self._high),
            "shape": self.shape,
            "latency": self.latency,
            "bandwidth": self.bandwidth,
            "classes": None if self.classes is None else len(self.classes),
        }

    def content(self, index: int) -> bytes:
        """The bytes of one sample, without waiting for storage. They start with the index."""
        if not 0 <= index < self.size:
            raise IndexError(f"sample indices must lie in 0..{self.size - 1}, got {index}")
        word = mix(index)
        length = self._low + word % (self._high - self._low + 1)
        start = (word >> 32) % _BLOCK
        head = index.to_bytes(8, "little")[:length]
        return head + _pattern(self._high)[start : start + length - len(head)]

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """The bytes of each sample, once storage of this latency and bandwidth would have sent them."""
        if self._pipe.process != os.getpid():  # a fork may have happened while a thread held the lock
            self._pipe = _Pipe()
        begin = time.monotonic()
        out: list[bytes | BaseException] = [self.content(int(index)) for index in indices]
        ready = begin + self.latency * len(out)
        if self.bandwidth is not None:
            ready = max(ready, self._pipe.reserve(sum(map(len, out)) / self.bandwidth))  # type: ignore[arg-type]
        wait = ready - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        return out

    def locate(self, indices: Sequence[int] | NDArray[Any]) -> list[Location | None]:
        """See ``Locating``."""
        return [Location(self.identity(int(index)).encode()) for index in indices]

    def location_reader(self) -> SyntheticReader:
        """See ``Locating``."""
        return SyntheticReader(self)

    def name(self, index: int) -> str:
        """What messages call the sample."""
        return f"synthetic:{index}"

    def identity(self, index: int) -> str:
        """The sample's stable identity."""
        return f"synthetic:{self._low}:{self._high}:{index}"

    def fingerprint(self) -> str:
        """A digest of the content; storage speed doesn't count."""
        text = f"synthetic {self.size} {self._low} {self._high} {self.shape}"
        return hashlib.sha256(text.encode()).hexdigest()


class SyntheticReader:
    """Reads samples that are made up by where they would lie."""

    def __init__(self, source: SyntheticSource) -> None:
        self._source = source

    def read(self, locations: Sequence[Location]) -> list[bytes | BaseException]:
        """See ``LocationReader``."""
        whole = self._source.read_many([int(one.what.rpartition(b":")[2]) for one in locations])
        return [
            data
            if isinstance(data, BaseException)
            else data[one.start : None if one.length is None else one.start + one.length]
            for data, one in zip(whole, locations, strict=True)
        ]


def synthetic(
    size: int,
    *,
    bytes_per_sample: int | tuple[int, int] | None = None,
    shape: tuple[int, ...] | None = None,
    latency: float = 0.0,
    bandwidth: float | None = None,
    classes: int | None = None,
) -> SyntheticSource:
    """A source of ``size`` samples whose bytes are a pure function of their index.

    ``bytes_per_sample``: their length, or the least and greatest length (default: that of ``shape`` in uint8,
    else 1024). ``shape``: that of the arrays which ``synthetic.decode`` makes of them. ``latency``: seconds
    that each read sleeps; reads of one call follow each other, as on a file system. ``bandwidth``: bytes per
    second over all threads of a process. ``classes``: how many classes the targets have; None for no targets.
    """
    if size <= 0:
        raise OptionError(f"synthetic(size={size}) must have at least one sample")
    if bytes_per_sample is None:
        bytes_per_sample = int(np.prod(shape)) if shape is not None else 1024
    low, high = (
        bytes_per_sample if isinstance(bytes_per_sample, tuple) else (bytes_per_sample, bytes_per_sample)
    )
    if not 0 < low <= high:
        raise OptionError(
            f"bytes_per_sample={bytes_per_sample!r} must be positive, or a pair (least, greatest)"
        )
    if latency < 0 or (bandwidth is not None and bandwidth <= 0):
        raise OptionError(
            f"latency={latency} must not be negative and bandwidth={bandwidth} must be positive"
        )
    if classes is not None and classes <= 0:
        raise OptionError(f"classes={classes} must be positive, or None for samples without targets")
    return SyntheticSource(size, low, high, shape, latency, bandwidth, classes)
