"""What a recipe knows of its decoded samples: whether something that was kept elsewhere can be one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.layout import Field
from headrace.recipes.chain import State
from headrace.recipes.values import is_packed


@dataclass(frozen=True)
class DecodedForm:
    """How decoded samples of a recipe look. Of what user code returned, only how it is packed is known."""

    state: State
    """What is known of them as values."""

    def may_be(self, value: Any) -> bool:
        """Whether a value from a cache can be one of them."""
        state = self.state
        if state.kind == "any":
            known = state.known
            if known is None:
                return is_packed(value)
            return isinstance(value, np.ndarray) and value.shape == known.shape and _has_dtype(value, known)
        if not isinstance(value, np.ndarray) or value.ndim != 3 or not value.size:
            return False
        # (an image of pixels lies by pixel; rows may be planar)
        size = state.finish.size(value.shape) if state.kind == "rows" else value.shape
        height, width, channels = state.size
        known_sizes = zip(size, (height, width, channels), strict=True)
        if not all(expected is None or found == expected for found, expected in known_sizes):
            return False
        dtype = state.finish.dtype if state.kind == "rows" else "uint8"
        return size[2] in (1, 3) and _has_dtype(value, Field(value.shape, dtype))


def _has_dtype(value: np.ndarray[Any, Any], field: Field) -> bool:
    return bool(value.dtype == field.storage_dtype)
