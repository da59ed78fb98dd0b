"""Targets: the second part of each sample, straight from the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.core.layout import Field
from headrace.recipes.calls import Call
from headrace.recipes.image.annotations import Boxes, Follower, Mask
from headrace.recipes.op import Size
from headrace.recipes.row_groups import RowGroup

TARGET = -2
"""The position of ``target_transform`` among the steps, for the key of its random numbers."""


class Targets:
    """The targets of a source, with an optional callable on them."""

    def __init__(
        self, values: NDArray[Any] | list[Any] | None, transform: Callable[[Any], Any] | None
    ) -> None:
        self._values = values
        self._call = None if transform is None else Call(transform, False, "plain")
        self.field: Field | None = None
        """How targets lie in a batch; None where that shows only with the values themselves."""
        if isinstance(values, np.ndarray) and transform is None:
            self.field = Field(values.shape[1:], str(values.dtype))

    def __bool__(self) -> bool:
        return self._values is not None

    @property
    def user_code(self) -> bool:
        """Whether a callable of the user's is applied."""
        return self._call is not None

    @property
    def ragged(self) -> bool:
        """Whether they differ in size from sample to sample, so that they are no rows."""
        return False

    def write(self, group: RowGroup, out: NDArray[Any]) -> None:
        """Write the targets of all rows at once; only where ``field`` is known."""
        assert isinstance(self._values, np.ndarray)
        np.take(self._values, group.indices, axis=0, out=out, mode="clip")

    def take(self, group: RowGroup) -> list[Any]:
        """The target of each row as Python or user code knows it."""
        assert self._values is not None
        if isinstance(self._values, np.ndarray):
            rows = self._values[group.indices]
            values: list[Any] = rows.tolist() if rows.ndim == 1 else list(rows)
        else:
            values = [self._values[index] for index in group.indices.tolist()]
        if self._call is None:
            return values
        for row, value in enumerate(values):
            if group.failed(row):
                continue
            work = group.work
            try:
                self._call.seed(random.key(work.seed, work.epoch, TARGET, int(group.words[row])))
                values[row] = self._call(value)
            except Exception as error:
                group.fault(row, error)
        return values


class FollowingTargets(Targets):
    """Targets parts of which follow the geometry of their images, once these are prepared."""

    def __init__(
        self,
        values: NDArray[Any] | list[Any] | None,
        transform: Callable[[Any], Any] | None,
        followers: Sequence[Follower],
        size: Size,
    ) -> None:
        """``size``: what comes out of the recipe, as far as it is known."""
        super().__init__(values, transform)
        self._followers = followers
        self.field = None
        only = followers[0]
        if isinstance(only, Mask) and not only.key and size.height is not None and size.width is not None:
            self.field = Field((size.height, size.width), only.dtype)

    @property
    def ragged(self) -> bool:
        """See ``Targets``."""
        return any(isinstance(follower, Boxes) for follower in self._followers)

    def write(self, group: RowGroup, out: NDArray[Any]) -> None:
        """See ``Targets``."""
        for row, value in enumerate(self.take(group)):
            if not group.failed(row):
                out[row] = value

    def take(self, group: RowGroup) -> list[Any]:
        """See ``Targets``. The rows of the order are prepared: what was done to them is noted there."""
        values = super().take(group)
        if group.track is None:
            raise ValueError("targets that follow their images are taken after these are prepared")
        for row in range(group.size):
            if group.failed(row):
                continue
            try:
                at = group.row(row)
                for follower in self._followers:
                    values[row] = follower.follow(values[row], group.track.of(at), group.work.beside.get(at))
            except Exception as error:
                group.fault(row, error)
        return values
