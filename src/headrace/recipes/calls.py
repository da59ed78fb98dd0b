"""User code as a step: any callable, and the conventions of albumentations and torchvision."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core import random
from headrace.core.errors import OptionError
from headrace.recipes.op import Op
from headrace.recipes.origins import module_of
from headrace.recipes.values import to_pil


@dataclass(frozen=True, eq=False)
class Call(Op):
    """A user's callable. ``style``: how it is called, plain, torchvision, or image (``f(image=...)["image"]``)."""

    function: Callable[..., Any]
    deterministic: bool
    style: str

    @property
    def random(self) -> bool:
        """Unless declared otherwise."""
        return not self.deterministic

    def plain(self) -> Any:
        """Not whether it is deterministic: that shows in which form it belongs to."""
        return ["Call", self.style, _definition(self.function)]

    def __str__(self) -> str:
        function = self.function
        return getattr(function, "__qualname__", None) or type(function).__qualname__

    def __call__(self, value: Any) -> Any:
        """The step's result for one value."""
        if self.style == "torchvision":
            # An image of headrace's own is an array; one that user code made is already what it should be.
            return self.function(to_pil(value) if _pil_sized(value) else value)
        if self.style == "image":
            return self.function(image=value)["image"]
        return self.function(value)

    def seed(self, word: int) -> None:
        """Seed every generator that the callable may draw from, unless it is declared deterministic."""
        if self.deterministic:
            return
        random.seed_global(word)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(word & (1 << 63) - 1)
        if self.style == "image":
            own = getattr(
                self.function, "set_random_seed", None
            )  # albumentations keeps generators of its own
            if own is not None:
                own(word & 0x7FFFFFFF)


def _definition(function: Any) -> Any:
    """What a callable's fingerprint is taken of: itself, or for albumentations what it writes to files.

    The attributes of its objects hold notes whose order changes from process to process.
    """
    if not (from_module(function, "albumentations") and hasattr(function, "to_dict")):
        return function
    try:
        written = function.to_dict()
    except Exception:  # functions of the user's own in it cannot be written
        return function
    return [written, _classes(function)]


def _classes(function: Any) -> list[Any]:
    """The classes of a transform and of those inside it: the user's own count by their code."""
    inner = getattr(function, "transforms", ())
    return [type(function), [_classes(one) for one in inner if one is not function]]


def _pil_sized(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3)))
    )


def from_module(value: Any, package: str) -> bool:
    """Whether the value's class, or one that it derives from, is defined in a package."""
    return any(module_of(cls).partition(".")[0] == package for cls in type(value).__mro__)


def _style(function: Callable[..., Any]) -> str:
    if from_module(function, "torchvision"):
        return "torchvision"
    if from_module(function, "albumentations"):
        return "image"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return "plain"
    image = parameters.get("image")
    return "image" if image is not None and image.kind is image.KEYWORD_ONLY else "plain"


def deterministic(function: Callable[..., Any]) -> Call:
    """Declare that a callable's result depends on its input alone, so that it may belong to the decoded form.

    >>> import headrace as hr
    >>> step = hr.deterministic(lambda image: image[::2, ::2])
    """
    return Call(_callable(function), True, _style(function))


def as_op(step: Any, where: str) -> Op:
    """A step of a recipe as the user wrote it: one of headrace's, or any callable."""
    if isinstance(step, Op):
        return step
    return Call(_callable(step, where), False, _style(step))


def _callable(function: Any, where: str = "deterministic()") -> Callable[..., Any]:
    if isinstance(function, Op):
        raise OptionError(f"{where}: {function} says itself whether it is random; use it as it is")
    if isinstance(function, type):
        raise OptionError(f"{where}: {function.__qualname__} is a class; write {function.__qualname__}(...)")
    if not callable(function):
        raise OptionError(f"{where}: {function!r} is neither a step of headrace nor a callable")
    if inspect.iscoroutinefunction(function):
        raise OptionError(f"{where}: {function!r} is a coroutine function; give a plain function")
    name = getattr(function, "__name__", "")
    if (getattr(function, "__module__", None) or "").startswith("headrace.recipes.image") and name:
        raise OptionError(f"{where}: write image.{name}(...), with parentheses")
    result: Callable[..., Any] = function
    return result
