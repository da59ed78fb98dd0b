"""From recipes to plain data."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.annotations import Follower
from headrace.recipes.image.mixing import BatchStep
from headrace.recipes.op import Op, options_of
from headrace.recipes.origins import module_of
from headrace.recipes.plain.code import write_code
from headrace.recipes.plain.reading import FORMAT, SOURCES, Reader
from headrace.recipes.plain.registry import entry_of
from headrace.recipes.plain.types import (
    alternatives,
    is_code,
    is_record,
    is_step,
    items_of,
    name_of,
    options_types,
)
from headrace.recipes.plain.values import shown, write_array, write_float, write_value
from headrace.recipes.subset import SubsetSource

_OWN = __name__.partition(".")[0]


class Definition(typing.Protocol):
    """What is written of a recipe."""

    @property
    def source(self) -> Any: ...
    @property
    def decoder(self) -> Op | None: ...
    @property
    def steps(self) -> Sequence[Op]: ...
    @property
    def batch(self) -> BatchStep | None: ...
    @property
    def followers(self) -> Sequence[Follower]: ...
    @property
    def collate(self) -> Any: ...
    @property
    def target_transform(self) -> Any: ...


def to_plain(recipe: Definition, *, source: bool = True) -> dict[str, Any]:
    """See ``Recipe.to_dict``."""
    try:
        data: dict[str, Any] = {"format": FORMAT}
        if source:
            data["source"] = _source(recipe.source)
        data["decode"] = None if recipe.decoder is None else _checked(recipe.decoder, "decode")
        data["augment"] = [_checked(step, f"augment[{at}]") for at, step in enumerate(recipe.steps)]
        functions = {"collate": recipe.collate, "target_transform": recipe.target_transform}
        for option, function in functions.items():
            data[option] = None if function is None else write_code(function, option)
        data["batch"] = None if recipe.batch is None else _checked(recipe.batch, "batch")
        data["follow"] = [_checked(one, f"follow[{at}]") for at, one in enumerate(recipe.followers)]
        return data
    except RecursionError:
        raise OptionError(
            "to_dict(): something in the recipe contains itself, or is nested too deeply"
        ) from None


def _checked(step: Op, where: str) -> Any:
    """A step, if reading it gives the same: one that was made past its own function may be what that refuses."""
    data = _step(step, where)
    again = Reader(trust_code=True).step(data, where, type(step))
    if repr(again) != repr(step):
        raise OptionError(f"{where}: {step!r} cannot be written, as it would be read as {again!r}")
    return data


def _step(step: Op, where: str) -> dict[str, Any]:
    entry = entry_of(step)
    if entry is None:
        raise OptionError(
            f"{where}: {step} is a step of a class that headrace does not know; write it as a function, which has an "
            "import path"
        )
    where = f"{where}, {entry.name}" if entry.name != "call" else where
    return {"step": entry.name, **_options(step, where, entry.fixed)}


def _options(owner: Any, where: str, fixed: typing.Container[str] = ()) -> dict[str, Any]:
    types = options_types(type(owner))
    return {
        name: _typed(value, types[name], f"{where}, {name}" if name != "function" else where)
        for name, value in options_of(owner).items()
        if name not in fixed
    }


def _typed(value: Any, hint: Any, where: str) -> Any:
    """A value of a declared type."""
    for kind in alternatives(hint):
        if kind is Any:
            return write_value(value, where)
        if is_code(kind):
            return write_code(value, where)
        if is_step(kind):
            if isinstance(value, kind):
                return _step(value, where)
        elif is_record(kind):
            if type(value) is kind:
                return _options(value, where)
        elif typing.get_origin(kind) in (tuple, list):
            inner = items_of(kind, len(value)) if type(value) is typing.get_origin(kind) else None
            if inner is not None and {*inner} == {str}:  # (there may be a million of them)
                if {*map(type, value)} <= {str}:
                    return list(value)
            elif inner is not None:
                pairs = zip(value, inner, strict=True)
                return [_typed(item, one, f"{where}[{at}]") for at, (item, one) in enumerate(pairs)]
        elif kind is float:
            if type(value) in (int, float):
                return write_float(value) if type(value) is float else value
        elif type(value) is kind:
            return value
    raise OptionError(
        f"{where}: {shown(value)} is of type {type(value).__qualname__}, and only {name_of(hint)} can be written"
    )


def source_to_plain(source: Any) -> dict[str, Any]:
    """A source alone. Raises OptionError for one that is more than its arguments."""
    return _source(source)


def _source(source: Any, where: str = "source") -> dict[str, Any]:
    if isinstance(source, SubsetSource):
        indices = source.indices
        # As small as they can be: read back, they are int64 again.
        least = np.min_scalar_type(int(indices.max()) if indices.size else 0)
        return {
            "source": "subset",
            "of": _source(source.base, where),
            "indices": write_array(indices.astype(least), where),
        }
    own = module_of(type(source)).partition(".")[0] == _OWN
    definition = getattr(source, "definition", None) if own else None
    if definition is None:
        raise OptionError(
            f"{where}: {shown(source)} cannot be written: it is made of an object that lives in this program. Write "
            "the recipe without it, to_dict(source=False), and give it when you read: from_dict(data, source=...)"
        )
    name, arguments = definition()
    types = SOURCES[name][1]
    return {
        "source": name,
        **{option: _typed(arguments[option], types[option], f"{where}, {option}") for option in types},
    }
