"""What is counted while a scenario runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Counts = TypeVar("Counts", "Tally", "Paid", "Use")


@dataclass
class Tally:
    """Counts of one rank since its start."""

    images: float = 0
    """Delivered."""
    waited: float = 0.0
    """Seconds for which it waited for a batch."""
    straggled: float = 0.0
    """Seconds for which it waited for other ranks of its job."""
    none: float = 0
    """Rows that entered from storage; then those from the cache, by form."""
    encoded: float = 0
    decoded: float = 0
    augmented: float = 0
    decodes: float = 0
    """Samples that its workers decoded, whoever they were for."""
    fetched: float = 0
    """Samples that were read, of which the page cache had some."""
    filled: float = 0
    """Samples that its idle workers prepared for the cache."""
    helped: float = 0
    """Rows that were prepared on other machines."""
    late: float = 0
    """Steps for which it was the rank whose data came last."""

    def since(self, earlier: Tally) -> Tally:
        """What was added since an earlier state."""
        return _combined(self, earlier, operator.sub)

    def __add__(self, other: Tally) -> Tally:
        return _combined(self, other, operator.add)

    def count_rows(self, forms: NDArray[np.uint8]) -> None:
        """Rows enter, in these forms."""
        none, encoded, decoded, augmented = np.bincount(forms, minlength=4).tolist()
        self.none += none
        self.encoded += encoded
        self.decoded += decoded
        self.augmented += augmented

    @property
    def rows(self) -> float:
        """Rows that entered."""
        return self.none + self.encoded + self.decoded + self.augmented


@dataclass
class Paid:
    """How often each of the costs of a scenario was paid."""

    fetch: float = 0
    decode: float = 0
    decode_whole: float = 0
    augment: float = 0
    copy: float = 0
    keep: float = 0
    order: float = 0
    batch: float = 0
    draw: float = 0
    row: float = 0
    report: float = 0
    store: float = 0
    wait: float = 0

    def __add__(self, other: Paid) -> Paid:
        return _combined(self, other, operator.add)

    def __sub__(self, other: Paid) -> Paid:
        return _combined(self, other, operator.sub)


@dataclass
class Use:
    """How much of a machine was used since the start; in units of each resource, but for the last ones."""

    cpu: float = 0.0
    host: float = 0.0
    network: float = 0.0
    storage: float = 0.0
    evictions: float = 0
    asked: float = 0
    """Samples that workers asked the machine for, those of them that were in its memory, samples that it read from
    storage, those that it took over from other machines, and those that were in the memory of one."""
    found: float = 0
    stored: float = 0
    taken_over: float = 0
    peer_found: float = 0
    paid: Paid = field(default_factory=Paid)

    def since(self, earlier: Use) -> Use:
        """What was added since an earlier state."""
        return _combined(self, earlier, operator.sub)


def _combined(one: Counts, other: Counts, how: Callable[[Any, Any], Any]) -> Counts:
    """Both counts, field by field."""
    return type(one)(*(how(getattr(one, item.name), getattr(other, item.name)) for item in fields(one)))


def total(tallies: Sequence[Tally]) -> Tally:
    """The sum of counts."""
    return sum(tallies, Tally())
