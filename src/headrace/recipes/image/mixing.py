"""Steps on whole batches: mixup and cutmix, which mix each row with the one before it, and their targets alike.

They are definitions and arithmetic. Who has a whole batch in hand runs them, in place: see ``loader/mixing.py``.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.core.errors import OptionError
from headrace.recipes.image import kernels
from headrace.recipes.op import Op, check_probability

_BATCHES = 0x6D6978  # "mix": keeps these numbers apart from those of samples


@dataclass(frozen=True)
class Mix:
    """What is done to one batch. ``weight``: each row's share in itself; the rest is the row's before it.

    ``box``: top, left, bottom and right of what comes from that row as a whole; None: all pixels are blended.
    """

    weight: float
    box: tuple[int, int, int, int] | None = None


PURE = Mix(1.0)
"""Nothing is mixed."""


class BatchStep(Op, ABC):
    """A step for ``batch=``: it turns class numbers into rows of shares, one for each class."""

    classes: int
    needs_images: ClassVar[bool] = False
    """Whether height and width of what is mixed must be known."""

    @abstractmethod
    def draw(self, numbers: Iterator[float], height: int, width: int) -> Mix:
        """What to do to a batch of images of this size."""


def numbers_of(seed: int, epoch: int, position: int, first: int) -> Iterator[float]:
    """Uniform numbers in [0, 1) without end: a pure function of which batch it is.

    ``position``: how far the epoch is when the batch is delivered; ``first``: its first sample, by which the ranks
    of a step differ.
    """
    key = random.key(_BATCHES, seed, epoch, position, first)
    for block in itertools.count():
        yield from random.uniforms(key, np.array([block]), 16)[0].tolist()


def symmetric_beta(alpha: float, numbers: Iterator[float]) -> float:
    """A number of the distribution Beta(alpha, alpha)."""
    while (
        alpha <= 1
    ):  # Jöhnk's method; by logarithms, because powers of 1 / alpha are soon too small for floats
        first, second = (math.log(1 - next(numbers)) / alpha for _ in range(2))
        if math.exp(first) + math.exp(second) <= 1:
            return _share(second - first)
    while True:  # Cheng's method, which for equal parameters is this
        first, second = 1 - next(numbers), 1 - next(numbers)
        if first == 1:
            continue
        ratio = math.log(first / (1 - first)) / math.sqrt(alpha)
        bound = math.log(first * first * second) + math.log(4) - (alpha + math.sqrt(alpha)) * ratio
        if 2 * alpha * math.log(2 / (1 + math.exp(ratio))) >= bound:
            return _share(-ratio)


def _share(odds: float) -> float:
    """1 / (1 + exp(odds)), for odds of any size."""
    return 0.5 - 0.5 * math.tanh(odds / 2)


@dataclass(frozen=True)
class MixUp(BatchStep):
    """See ``mixup``."""

    classes: int
    alpha: float
    p: float
    shows: ClassVar[str] = "mixup"

    def draw(self, numbers: Iterator[float], height: int, width: int) -> Mix:
        """One weight for the batch."""
        return Mix(symmetric_beta(self.alpha, numbers)) if next(numbers) < self.p else PURE


@dataclass(frozen=True)
class CutMix(BatchStep):
    """See ``cutmix``."""

    classes: int
    alpha: float
    p: float
    shows: ClassVar[str] = "cutmix"
    needs_images: ClassVar[bool] = True

    def draw(self, numbers: Iterator[float], height: int, width: int) -> Mix:
        """One box for the batch, cut off at the edges; the weight is what it leaves."""
        if next(numbers) >= self.p:
            return PURE
        half = 0.5 * math.sqrt(1 - symmetric_beta(self.alpha, numbers))
        x, y = int(next(numbers) * width), int(next(numbers) * height)
        across, down = int(half * width), int(half * height)
        top, bottom = max(y - down, 0), min(y + down, height)
        left, right = max(x - across, 0), min(x + across, width)
        return Mix(1 - (bottom - top) * (right - left) / (height * width), (top, left, bottom, right))


@dataclass(frozen=True)
class OneOf(BatchStep):
    """See ``one_of``."""

    steps: tuple[BatchStep, ...]
    weights: tuple[float, ...]
    shows: ClassVar[str] = "one_of"

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Of all steps."""
        return self.steps[0].classes

    @property
    def needs_images(self) -> bool:  # type: ignore[override]
        """If one of them does."""
        return any(step.needs_images for step in self.steps)

    def draw(self, numbers: Iterator[float], height: int, width: int) -> Mix:
        """What the step does that is chosen."""
        at = next(numbers) * sum(self.weights)
        chosen = next((i for i, end in enumerate(itertools.accumulate(self.weights)) if at < end), -1)
        return self.steps[chosen].draw(numbers, height, width)


def mixup(classes: int, *, alpha: float = 1.0, p: float = 1.0) -> MixUp:
    """Blend each image of a batch with the one before it, the first with the last, and their targets alike.

    The weight is drawn once for a batch, from Beta(alpha, alpha). ``classes``: how many there are. ``p``: the
    probability that a batch is mixed; targets of one that is not are rows of zeros and a one.
    """
    return MixUp(*_checked("mixup", classes, alpha, p))


def cutmix(classes: int, *, alpha: float = 1.0, p: float = 1.0) -> CutMix:
    """Paste a box of each image of a batch into the one after it, and mix their targets by its exact area.

    The box lies at the same random place in all images of a batch. Its area, before what lies outside is cut off, is
    drawn from Beta(alpha, alpha). ``classes`` and ``p`` are as in ``mixup``.
    """
    return CutMix(*_checked("cutmix", classes, alpha, p))


def one_of(*steps: BatchStep, weights: Sequence[float] | None = None) -> OneOf:
    """One of several batch steps, chosen for each batch; ``weights``: how often each, by default all alike."""
    if not steps or not all(isinstance(step, BatchStep) for step in steps):
        raise OptionError("one_of(): give steps for whole batches, such as mixup(10) and cutmix(10)")
    if len({step.classes for step in steps}) > 1:
        raise OptionError(
            f"one_of(): steps for {', '.join(str(s.classes) for s in steps)} classes; all must agree"
        )
    shares = (1.0,) * len(steps) if weights is None else tuple(map(float, weights))
    if len(shares) != len(steps) or min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise OptionError(f"one_of(weights={weights!r}): give one for each step, none negative, not all zero")
    return OneOf(steps, shares)


def _checked(op: str, classes: int, alpha: float, p: float) -> tuple[int, float, float]:
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 2:
        raise OptionError(f"{op}({classes!r}): expected the number of classes, two or more")
    if not 0 < alpha < math.inf:
        raise OptionError(f"{op}(alpha={alpha!r}): expected a number above zero")
    check_probability(op, p)
    return classes, float(alpha), float(p)


# -- at work ------------------------------------------------------------------------------------------------


def blend(rows: NDArray[Any], weight: float, dtype: str, parts: int = 1) -> list[Callable[[], None]]:
    """Blend each row with the one before it, in place: pieces of work that may run at the same time.

    uint8 is rounded. What a piece needs of another is copied here, before any of them runs.
    """
    edges = np.linspace(0, len(rows), min(parts, len(rows)) + 1).astype(int).tolist()
    return [
        partial(kernels.blend_rows, rows[start:stop], rows[start - 1].copy(), weight, dtype)
        for start, stop in itertools.pairwise(edges)
    ]


def paste(rows: NDArray[Any], box: tuple[int, int, int, int]) -> None:
    """Put a box of each row into the one after it, in place. Rows are height, width, and whatever follows."""
    top, left, bottom, right = box
    part = rows[:, top:bottom, left:right]
    last = part[-1].copy()
    for at in range(len(part) - 1, 0, -1):
        part[at] = part[at - 1]
    part[0] = last


def mixed_targets(labels: NDArray[Any], classes: int, weight: float) -> NDArray[np.float32]:
    """Each row's share of every class."""
    out = np.zeros((len(labels), classes), np.float32)
    rows = np.arange(len(labels))
    out[rows, labels] = weight
    out[rows, np.roll(labels, 1)] += np.float32(1 - weight)
    return out
