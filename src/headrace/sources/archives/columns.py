"""Targets that lie in members of their own: which member, which part of it, and how all of them are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError

CLASS = "cls"
"""The field of class numbers, by WebDataset's custom."""
LARGEST = 1 << 20
"""Bytes of a member that is kept for its target, at most."""
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_JSON = ("json", "jsn")


@dataclass(frozen=True)
class Wanted:
    """A target: ``cls``, ``txt``, ``json:label``, ``json:box.left``."""

    text: str
    field: str
    path: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Wanted:
        """As users write it."""
        field, colon, path = text.partition(":")
        kind = field.rpartition(".")[2].lower()
        if not field or (colon and (not path or kind not in _JSON)):
            raise OptionError(
                f"target={text!r}: write the name of a field such as 'cls' or 'txt', or 'json:label' for a part of "
                "a JSON member (dots lead further down)"
            )
        return cls(text, field.lower(), tuple(path.split(".")) if colon else ())

    def value(self, data: bytes) -> Any:
        """What a member says; ``ValueError`` or ``LookupError`` where it does not."""
        kind = self.field.rpartition(".")[2]
        if kind in _JSON:
            found = json.loads(data)
            for step in self.path:
                found = found[int(step)] if isinstance(found, list) else found[step]
            return found
        text = data.decode()
        if kind not in _NUMBERS:
            return text
        text = text.strip()
        try:
            return int(text)
        except ValueError:
            return text


def pack(values: Sequence[Any]) -> NDArray[Any]:
    """All values as one array: numbers as they are, anything else as JSON."""
    kinds = {type(value) for value in values}
    if kinds == {int} and min(values) >= -(2**63) and max(values) < 2**63:
        array = np.asarray(values, np.int64)
        least = np.promote_types(np.min_scalar_type(int(array.min())), np.min_scalar_type(int(array.max())))
        return array.astype(least)
    if kinds == {float}:
        return np.asarray(values, np.float64)
    return np.frombuffer(json.dumps(list(values)).encode(), np.dtype("V1"))


def unpack(array: NDArray[Any]) -> list[Any] | NDArray[Any]:
    """What ``pack`` was given; numbers as an array."""
    return list(json.loads(array.tobytes())) if array.dtype.kind == "V" else array
