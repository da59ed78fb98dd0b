"""Steps made of other steps: applied together with some probability, or one of them chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.pixels import Image, Pixels
from headrace.recipes.op import Numbers, Op, Size, check_probability

Steps = tuple[Pixels, ...]
_SOME = Size(97, 61, 3)
"""A size like no other, to see whether steps keep it."""


def _drawn(steps: Steps, numbers: Numbers) -> list[list[Any]]:
    """The parameters of all steps, for each row."""
    columns, at = [], 0
    for step in steps:
        columns.append(step.parameters(numbers[:, at : at + step.draws]))
        at += step.draws
    return [list(row) for row in zip(*columns, strict=True)] if steps else [[] for _ in numbers]


def _done(steps: Steps, image: Image, parameters: list[Any]) -> Image:
    for step, own in zip(steps, parameters, strict=True):
        if own is not None:
            image = step.apply(image, own)
    return image


@dataclass(frozen=True)
class RandomApply(Pixels):
    """See ``random_apply``."""

    steps: Steps
    p: float
    shows: ClassVar[str] = "random_apply"

    @property
    def draws(self) -> int:
        """One more than the steps need."""
        return 1 + sum(step.draws for step in self.steps)

    @property
    def random(self) -> bool:
        """Whether it may happen or not, or a step is random."""
        return 0 < self.p < 1 or (self.p > 0 and any(step.random for step in self.steps))

    def plain(self) -> Any:
        """By the definitions of the steps."""
        return ["RandomApply", [step.plain() for step in self.steps], self.p]

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Those of all steps for the rows that they happen to."""
        hits = (numbers[:, 0] < self.p).tolist()
        drawn = _drawn(self.steps, numbers[:, 1:])
        return [row if hit else None for hit, row in zip(hits, drawn, strict=True)]

    def apply(self, image: Image, parameters: Any) -> Image:
        """The steps, one after the other."""
        return _done(self.steps, image, parameters)


@dataclass(frozen=True)
class RandomChoice(Pixels):
    """See ``random_choice``."""

    choices: tuple[Steps, ...]
    weights: tuple[float, ...]
    shows: ClassVar[str] = "random_choice"

    @property
    def draws(self) -> int:
        """One more than the steps of any choice need."""
        return 1 + max(sum(step.draws for step in steps) for steps in self.choices)

    @property
    def random(self) -> bool:
        """Unless there is no choice."""
        return len(self.choices) > 1 or any(step.random for step in self.choices[0])

    def plain(self) -> Any:
        """By the definitions of the steps."""
        return ["RandomChoice", [[step.plain() for step in steps] for steps in self.choices], self.weights]

    def parameters(self, numbers: Numbers) -> list[Any]:
        """For each row which choice, and the parameters of its steps."""
        edges = np.cumsum(self.weights)
        which = np.minimum(np.searchsorted(edges, numbers[:, 0] * edges[-1], side="right"), len(edges) - 1)
        drawn = [_drawn(steps, numbers[:, 1:]) for steps in self.choices]
        return [(one, drawn[one][row]) for row, one in enumerate(which.tolist())]

    def apply(self, image: Image, parameters: Any) -> Image:
        """The steps of the choice."""
        which, own = parameters
        return _done(self.choices[which], image, own)


def random_apply(steps: Pixels | Sequence[Pixels], p: float = 0.5) -> RandomApply:
    """Apply one or several steps, all of them or none, with probability ``p``.

    For steps on pixels that keep an image's size: colours, blur, rotation, policies, and others made of these.
    """
    check_probability("random_apply", p)
    return RandomApply(_checked("random_apply", steps), float(p))


def random_choice(
    choices: Sequence[Pixels | Sequence[Pixels]], p: Sequence[float] | None = None
) -> RandomChoice:
    """Apply one of several steps, or lists of steps, as ``random_apply`` takes them.

    ``p``: how often each is chosen, in any unit; equally often by default.
    """
    op = "random_choice"
    if isinstance(choices, Op) or not choices:
        raise OptionError(f"{op}({choices!r}): expected a list of steps to choose from")
    weights = tuple(float(one) for one in p) if p is not None else (1.0,) * len(choices)
    if (
        len(weights) != len(choices)
        or not all(0 <= one < float("inf") for one in weights)
        or not sum(weights)
    ):
        raise OptionError(f"{op}(p={p!r}): expected a weight for each of the {len(choices)} choices")
    return RandomChoice(tuple(_checked(op, one) for one in choices), weights)


def _checked(op: str, steps: Pixels | Sequence[Pixels]) -> Steps:
    """The steps, all on pixels and none of them changing the image's size."""
    given = tuple(steps) if isinstance(steps, Sequence) else (steps,)
    for step in given:
        if not isinstance(step, Pixels):
            raise OptionError(
                f"{op}: {step} is no step on pixels; crops, resizes and flips (which have a p of their own), "
                "normalise and your own functions stand in augment= by themselves"
            )
        if step.shape(_SOME) != _SOME:
            raise OptionError(f"{op}: {step} changes the size of images; put it into augment= by itself")
    return given
