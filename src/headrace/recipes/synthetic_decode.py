"""A decode step whose cost can be set: for tests and benchmarks, with ``synthetic`` sources."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.recipes.op import Op, Size


@functools.cache
def _rounds_per_second() -> float:
    """How fast this machine derives keys, in processor time, so that a busy machine measures the same."""
    rounds, spent = 500, 0.0
    while spent < 0.01:
        rounds *= 2
        begin = time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"headrace", b"", rounds)
        spent = time.thread_time() - begin
    return rounds / spent


def spin(seconds: float, *, holds_gil: bool) -> None:
    """Keep a processor busy for that many seconds of its time."""
    if seconds <= 0:
        return
    if not holds_gil:
        # Key derivation releases the GIL, needs no memory, and takes time in proportion to its rounds.
        hashlib.pbkdf2_hmac("sha256", b"headrace", b"", max(int(seconds * _rounds_per_second()), 1))
        return
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        for _ in range(20):
            pass


@dataclass(frozen=True)
class SyntheticDecode(Op):
    """See ``decode``."""

    cost: float
    holds_gil: bool
    shape: tuple[int, ...] | None
    shows: ClassVar[str] = "synthetic.decode"
    size: ClassVar[Size] = Size()

    def __call__(self, data: Any, shape: tuple[int, ...] | None) -> NDArray[np.uint8]:
        """The array of one sample: its bytes, repeated to fill the shape."""
        spin(self.cost, holds_gil=self.holds_gil)
        pixels = np.frombuffer(data, np.uint8)
        return np.resize(pixels, pixels.shape if shape is None else shape)


def decode(
    *, cost: float = 0.0, holds_gil: bool = False, shape: tuple[int, ...] | None = None
) -> SyntheticDecode:
    """Turn a synthetic sample into a uint8 array, at ``cost`` seconds of processor time.

    ``holds_gil``: spend them in Python code, and not in code that other threads can run beside. ``shape``:
    that of the array; by default the source's, or else that of the bytes.
    """
    if cost < 0 or not math.isfinite(cost):
        raise OptionError(f"synthetic.decode(cost={cost!r}): seconds must not be negative")
    return SyntheticDecode(float(cost), holds_gil, None if shape is None else tuple(shape))
