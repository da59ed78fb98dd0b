"""Files beside the samples: masks, fetched with their images, so that preparing does not wait for storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine.gate import Gate
from headrace.engine.reader import Reader
from headrace.recipes.recipe import Recipe
from headrace.sources.local import read_files


class MaskFiles:
    """Reads the files that the targets of a recipe name. It is a source of its own to its reader."""

    def __init__(self, recipe: Recipe, gate: Gate | None = None) -> None:
        self._recipe = recipe
        self.reader = Reader(self, gate)  # type: ignore[arg-type]

    def read(
        self, indices: NDArray[np.int64], rows: Sequence[int], *, patient: bool = True
    ) -> tuple[dict[int, Any], float]:
        """By row: the bytes of its file, or why there are none; and the seconds that reads took."""
        named = [row for row in rows if self._recipe.mask_path(int(indices[row])) is not None]
        if not named:
            return {}, 0.0
        blobs, each = self.reader.read(indices[named], patient=patient)
        return dict(zip(named, blobs, strict=True)), each * len(named)

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """See ``Source``."""
        return read_files([os.fsencode(self._recipe.mask_path(int(index))) for index in indices])

    def name(self, index: int) -> str:
        """See ``Source``."""
        return str(self._recipe.mask_path(index))
