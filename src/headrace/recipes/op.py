"""What a step of a recipe is, before anything runs: frozen data that declares what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.core.errors import OptionError


class Size(NamedTuple):
    """Height, width and channels of an image as far as they are known before it is read."""

    height: int | None = None
    width: int | None = None
    channels: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether every image has this height and width."""
        return self.height is not None and self.width is not None


UNKNOWN = Size()


Numbers = NDArray[np.float64]
"""Uniform numbers in [0, 1), a line for each row, pure functions of (seed, epoch, sample)."""


class Columns:
    """Which random numbers belong to which step: drawing for all steps at once is one pass.

    The columns depend on the recipe alone, so a step draws the same numbers whatever is cached.
    """

    def __init__(self, steps: Sequence[Op]) -> None:
        counts = [step.draws for step in steps]
        self.total = sum(counts)
        self._starts = [sum(counts[:at]) for at in range(len(counts) + 1)]

    def draw(self, seed: int, epoch: int, words: NDArray[np.int64]) -> Numbers:
        """The numbers of all steps for the given samples (see ``Work.words``)."""
        return random.uniforms(random.key(seed, epoch), words, self.total)

    def of(self, numbers: Numbers, position: int) -> Numbers:
        """The part of ``numbers`` that belongs to the step at ``position``."""
        return numbers[:, self._starts[position] : self._starts[position + 1]]


class Op:
    """A step of a recipe. Subclasses are frozen dataclasses, which compare and print by their options."""

    shows: ClassVar[str] = ""
    """How users write it, for messages."""

    @property
    def draws(self) -> int:
        """How many random numbers it needs for each row."""
        return 0

    @property
    def random(self) -> bool:
        """Whether the result depends on anything but its input."""
        return False

    def plain(self) -> Any:
        """The definition as plain data, for fingerprints."""
        kind = type(self)
        own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
        name = kind.__name__ if own else kind  # a class of the user's own counts by its code
        return [name, options_of(self)]

    def __str__(self) -> str:
        return self.shows or type(self).__name__


def options_of(step: Any) -> dict[str, Any]:
    """What a step was made with, by name: what fingerprints are taken of, and what is written down of it."""
    return {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}


def check_probability(op: str, p: float) -> None:
    """Refuse what is no probability."""
    if not 0 <= p <= 1:
        raise OptionError(f"{op}(p={p!r}): p is a probability, from 0 to 1")


def check_range(op: str, name: str, value: Any, *, low: float = 0.0) -> tuple[float, float]:
    """``value`` as an increasing pair of numbers not below ``low``."""
    try:
        first, last = float(value[0]), float(value[1])
        if len(value) == 2 and low <= first <= last:
            return first, last
    except (TypeError, IndexError, ValueError):
        pass
    raise OptionError(f"{op}({name}={value!r}): expected a pair (least, greatest) of numbers from {low:g} up")


def as_size(op: str, size: Any) -> tuple[int, int]:
    """``size`` as (height, width): one number stands for both."""
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair):
        raise OptionError(f"{op}({size!r}): expected a size in pixels, or a pair (height, width)")
    return pair[0], pair[1]


def as_fill(op: str, fill: int | tuple[int, ...]) -> tuple[int, ...]:
    """``fill`` as a value for all channels, or one for each."""
    values = (fill,) if isinstance(fill, int) else tuple(fill)
    if len(values) not in (1, 3) or any(not isinstance(v, int) or not 0 <= v <= 255 for v in values):
        raise OptionError(f"{op}(fill={fill!r}): expected a value from 0 to 255, or three of them")
    return values
