"""Types of options as their classes declare them: which ones a declaration allows, one by one."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from typing import Any

from headrace.recipes.op import Op

_known: dict[type, dict[str, Any]] = {}
"""Found once: to make types of what is declared takes a millisecond."""


def options_types(kind: type) -> dict[str, Any]:
    """The declared type of each option of a step, or of another dataclass."""
    if kind not in _known:
        hints = typing.get_type_hints(kind)
        _known[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _known[kind]


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; one that is none by itself."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def items_of(hint: Any, count: int) -> tuple[Any, ...] | None:
    """The types of the items of a tuple or list of ``count``; None: it has another number of them."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is list or (len(inner) == 2 and inner[1] is Ellipsis):
        return inner[:1] * count
    return inner if len(inner) == count else None


def is_code(hint: Any) -> bool:
    """Whether it stands for a callable."""
    return typing.get_origin(hint) is collections.abc.Callable


def is_step(hint: Any) -> bool:
    """Whether it stands for a step."""
    return isinstance(hint, type) and issubclass(hint, Op)


def is_record(hint: Any) -> bool:
    """Whether it stands for a dataclass that is no step."""
    return dataclasses.is_dataclass(hint) and not is_step(hint)


def name_of(hint: Any) -> str:
    """A type for a message."""
    if is_code(hint):
        return "a function"
    if hint is type(None):
        return "None"
    inner = alternatives(hint)
    if len(inner) > 1:
        return " or ".join(map(name_of, inner))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
