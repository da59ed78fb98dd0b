"""What a source is: something that reads the encoded bytes of many samples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError


@runtime_checkable
class Source(Protocol):
    """Where the samples of a dataset lie. Frozen: its length, order and targets never change."""

    @property
    def targets(self) -> NDArray[Any] | list[Any] | None:
        """The target of each sample, or None where samples have none."""
        ...

    @property
    def encoded(self) -> bool:
        """Whether ``read_many`` gives the samples' bytes. If not it gives paths, and decode reads."""
        ...

    def __len__(self) -> int: ...

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """The bytes of each sample (or a memoryview of them), or the error that kept them from being read."""
        ...

    def name(self, index: int) -> str:
        """What messages call the sample."""
        ...

    def identity(self, index: int) -> str:
        """The sample's stable identity: equal for the same sample in every process, order and subset.

        Jobs share what was made of samples of equal identities, so one whose content changes needs another.
        """
        ...

    def fingerprint(self) -> str:
        """A digest of which samples there are (their identities), in which order; their targets don't count."""
        ...


def pooled_of(source: object) -> Callable[[], tuple[int, int, int]] | None:
    """What says how many samples of a source came from other machines since it was last asked, their bytes, and how
    many were in memory there; None: this source knows of no others."""
    found: Callable[[], tuple[int, int, int]] | None = getattr(source, "take_pooled", None)
    return found


def as_targets(targets: Any, size: int) -> NDArray[Any] | list[Any] | None:
    """Targets as one array where they are numbers (integers as int64), else as a list."""
    if targets is None:
        return None
    if type(targets).__module__.startswith("torch") and hasattr(targets, "numpy"):
        targets = targets.numpy()
    if not isinstance(targets, np.ndarray):
        targets = list(targets)
    if len(targets) != size:
        raise OptionError(f"{len(targets)} targets for {size} samples; give exactly one target per sample")
    try:
        array = np.asarray(targets)
    except ValueError:  # rows of unequal length stay what they are
        return list(targets)
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return np.ascontiguousarray(array, np.int64)
    if array.dtype.kind in "fb":
        return np.ascontiguousarray(array)
    return list(targets)
