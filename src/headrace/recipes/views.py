"""Several views of one sample: steps that branch, so that what is decoded once is augmented several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.core.errors import OptionError
from headrace.recipes.calls import as_op
from headrace.recipes.op import Op


@dataclass(frozen=True, eq=False)
class Views(Op):
    """See ``views``."""

    branches: tuple[tuple[Op, ...], ...]
    shows: ClassVar[str] = "views"

    @property
    def random(self) -> bool:
        """It counts as such, so that the decoded form ends before it: one image, and not one for each view."""
        return True

    def plain(self) -> Any:
        """The definitions of all steps, view by view."""
        return ["Views", [[step.plain() for step in branch] for branch in self.branches]]


def views(*branches: Sequence[Op | Callable[..., Any]], times: int = 1) -> Views:
    """Several views of each sample: a list of steps for each. It is the last step of ``augment=``.

    A sample's value is then the list of its views, and a batch's a list of tensors. The sample is decoded once, and
    goes through the steps before this one once; each view has random numbers of its own. ``times``: how often all
    lists are repeated.

    >>> import headrace as hr
    >>> pair = hr.views([hr.image.random_resized_crop(224), hr.image.horizontal_flip()], times=2)
    """
    if not branches or any(isinstance(branch, Op) or not isinstance(branch, Sequence) for branch in branches):
        raise OptionError("views(): expected a list of steps for each view; write views([...], [...])")
    if not isinstance(times, int) or times < 1:
        raise OptionError(f"views(times={times!r}): expected how often the lists are repeated, once or more")
    made = tuple(
        tuple(as_op(step, f"views()[{number}][{at}]") for at, step in enumerate(branch))
        for number, branch in enumerate(branches)
    )
    return Views(made * times)


def branches_of(steps: Sequence[Op]) -> tuple[Sequence[Op], tuple[tuple[Op, ...], ...]]:
    """Steps as those that all views have in common, and those of each; a sample as it is, is one view."""
    if steps and isinstance(steps[-1], Views):
        return steps[:-1], steps[-1].branches
    return (), (tuple(steps),)


def every_step(steps: Sequence[Op]) -> tuple[Op, ...]:
    """All steps one after the other, view by view. Where a step stands here is what its random numbers go by."""
    common, branches = branches_of(steps)
    return (*common, *(step for branch in branches for step in branch))
