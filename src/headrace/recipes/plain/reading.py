"""From plain data to recipes. Whatever the data holds, it is refused with an ``OptionError`` or it is a recipe."""

from __future__ import annotations

import importlib
import os
import typing
from collections.abc import Callable, Iterable
from typing import Any

from headrace.core.errors import OptionError
from headrace.core.version import __version__
from headrace.recipes.image.annotations import Follower
from headrace.recipes.image.mixing import BatchStep
from headrace.recipes.op import Op
from headrace.recipes.plain.code import Trust, read_code
from headrace.recipes.plain.registry import named
from headrace.recipes.plain.types import (
    alternatives,
    is_code,
    is_record,
    is_step,
    items_of,
    name_of,
    options_types,
)
from headrace.recipes.plain.values import read_array, read_float, read_value, shown
from headrace.recipes.subset import SubsetSource

FORMAT = 1
"""Of the data: raised when this version would not understand what the next one writes."""
_ENTRIES = ("format", "decode", "augment", "collate", "target_transform", "batch", "follow")
_NEWER = f"the data was made by another version of headrace than this one ({__version__}), or is damaged"


def _public(name: str) -> Any:
    """A function of headrace's by its public name. (Recipes and sources know nothing of each other.)"""
    found: Any = importlib.import_module(__name__.partition(".")[0])
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _files(root: str, paths: list[str], **options: Any) -> Any:
    return _public("files")([os.path.join(root, path) for path in paths], **options)


def _objects(root: str, paths: list[str], **options: Any) -> Any:
    return _public("files")([root + path for path in paths], **options)


SOURCES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "folder": (
        lambda **options: _public("folder")(**options),
        {
            "root": str,
            "extensions": tuple[str, ...] | None,
            "manifest": str | None,
            "labels": bool,
            "followlinks": bool,
            "allow_empty": bool,
            "max_bytes": int,
        },
    ),
    "files": (
        _files,
        {"root": str, "paths": list[str], "targets": Any, "encoded": bool, "max_bytes": int},
    ),
    "folder of a bucket": (
        lambda **options: _public("folder")(**options),
        {
            "root": str,
            "extensions": tuple[str, ...] | None,
            "manifest": str | None,
            "labels": bool,
            "allow_empty": bool,
            "max_bytes": int,
            "storage_options": Any,
        },
    ),
    "files of buckets": (
        _objects,
        {
            "root": str,
            "paths": list[str],
            "targets": Any,
            "encoded": bool,
            "max_bytes": int,
            "storage_options": Any,
        },
    ),
    "shards": (
        lambda **options: _public("shards")(**options),
        {
            "urls": list[str],
            "image": str,
            "fields": tuple[str, ...] | None,
            "target": str | None,
            "layout": str,
            "inside": str,
            "max_bytes": int,
        },
    ),
    "table": (
        lambda **options: _public("table")(**options),
        {"paths": list[str], "image": str, "target": str | None},
    ),
    "synthetic.source": (
        lambda **options: _public("synthetic.source")(**options),
        {
            "size": int,
            "bytes_per_sample": tuple[int, int],
            "shape": tuple[int, ...] | None,
            "latency": float,
            "bandwidth": float | None,
            "classes": int | None,
        },
    ),
}
"""The sources that are no more than their arguments: what makes them, and the types of these."""


def from_plain(data: Any, *, source: Any = None, trust_code: Any = False) -> dict[str, Any]:
    """The arguments of the recipe that ``to_plain`` was given. See ``Recipe.from_dict``."""
    try:
        return _arguments(data, source, Reader(trust_code=trust_code))
    except RecursionError:
        raise OptionError(f"from_dict(): the data is nested too deeply; {_NEWER}") from None


def source_from_plain(data: Any) -> Any:
    """The source that ``source_to_plain`` was given. It may be listed for it. Nothing is imported."""
    try:
        return Reader(trust_code=False).source(data)
    except RecursionError:
        raise OptionError(f"the data is nested too deeply; {_NEWER}") from None


def _arguments(data: Any, source: Any, reader: Reader) -> dict[str, Any]:
    if type(data) is not dict or "format" not in data:
        raise OptionError(f"from_dict({shown(data)}): expected what Recipe.to_dict() gives")
    if type(data["format"]) is not int or data["format"] != FORMAT:
        raise OptionError(
            f"from_dict(): the data is of format {shown(data['format'])}, and headrace {__version__} reads format "
            f"{FORMAT}; it was made by a newer version, so update headrace, or is damaged"
        )
    _check_names("from_dict()", data, _ENTRIES, optional=("source",))
    out: dict[str, Any] = {}
    if data["decode"] is not None:
        out["decode"] = reader.step(data["decode"], "decode", Op)
    out["augment"] = reader.steps(data["augment"], "augment", Op)
    for option in ("collate", "target_transform"):
        if data[option] is not None:
            out[option] = reader.code(data[option], option)
    if data["batch"] is not None:
        out["batch"] = reader.step(data["batch"], "batch", BatchStep)
    out["follow"] = reader.steps(data["follow"], "follow", Follower) or None
    if source is None and "source" not in data:
        raise OptionError("from_dict(): the recipe was written without its source; pass source=...")
    out["source"] = reader.source(data["source"]) if source is None else source
    return out


class Reader:
    """Reads the parts of a recipe. ``trust_code``: whether code may be imported, or of which modules."""

    def __init__(self, *, trust_code: Any) -> None:
        listed = isinstance(trust_code, list | tuple | set | frozenset)
        self._trust: Trust = tuple(sorted(map(str, trust_code))) if listed else trust_code is True

    def code(self, data: Any, where: str) -> Any:
        """A callable."""
        return read_code(data, where, trust=self._trust)

    def steps(self, data: Any, where: str, kind: type) -> list[Any]:
        """Several steps."""
        if type(data) is not list:
            raise OptionError(f"{where}: expected a list, got {shown(data)}; {_NEWER}")
        return [self.step(one, f"{where}[{at}]", kind) for at, one in enumerate(data)]

    def step(self, data: Any, where: str, kind: type) -> Any:
        """A step of a kind."""
        if type(data) is not dict or type(data.get("step")) is not str:
            raise OptionError(f"{where}: expected a step, got {shown(data)}; {_NEWER}")
        entry = named(data["step"])
        if entry is None:
            raise OptionError(f"{where}: there is no step {shown(data['step'])}; {_NEWER}")
        if entry.name != "call":
            where = f"{where}, {entry.name}"
        if not issubclass(entry.kind, kind):
            raise OptionError(f"{where}: this is no {name_of(kind)}; {_NEWER}")
        types = {name: one for name, one in options_types(entry.kind).items() if name not in entry.fixed}
        return _made(entry.make, self._options(data, types, where, "step"), where, entry.kind)

    def source(self, data: Any, where: str = "source") -> Any:
        """A source of those that are no more than their arguments."""
        if type(data) is not dict or type(data.get("source")) is not str:
            raise OptionError(f"{where}: expected a source, got {shown(data)}; {_NEWER}")
        name = data["source"]
        where = f"{where}, {name}"
        if name == "subset":
            _check_names(where, data, ("source", "of", "indices"))
            indices = read_array(data["indices"], where)
            base = self.source(data["of"], where)
            return _made(lambda: SubsetSource(base, indices), {}, where)
        if name not in SOURCES:
            raise OptionError(f"{where}: there is no such source; {_NEWER}")
        make, types = SOURCES[name]
        return _made(make, self._options(data, types, where, "source"), where)

    def _options(
        self, data: dict[Any, Any], types: dict[str, Any], where: str, tag: str = ""
    ) -> dict[str, Any]:
        _check_names(where, data, (*types, tag) if tag else types)
        return {
            name: self._typed(data[name], hint, f"{where}, {name}" if name != "function" else where)
            for name, hint in types.items()
        }

    def _typed(self, data: Any, hint: Any, where: str) -> Any:
        """A value of a declared type."""
        for kind in alternatives(hint):
            if kind is Any:
                return read_value(data, where)
            if is_code(kind):
                return self.code(data, where)
            if is_step(kind):
                return self.step(data, where, kind)
            if is_record(kind):
                if type(data) is dict:
                    return kind(**self._options(data, options_types(kind), where))
            elif typing.get_origin(kind) in (tuple, list):
                inner = items_of(kind, len(data)) if type(data) is list else None
                if inner is not None and {*inner} == {str}:  # (there may be a million of them)
                    if {*map(type, data)} <= {str}:
                        return typing.get_origin(kind)(data)
                elif inner is not None:
                    pairs = enumerate(zip(data, inner, strict=True))
                    items = (self._typed(item, one, f"{where}[{at}]") for at, (item, one) in pairs)
                    return typing.get_origin(kind)(items)
            elif kind is float:
                if type(data) in (int, float):
                    return data
                if type(data) is dict and data.keys() == {"float"}:
                    return read_float(data["float"], where)
            elif type(data) is kind:
                return data
        raise OptionError(f"{where}: expected {name_of(hint)}, got {shown(data)}; {_NEWER}")


def _check_names(
    where: str, data: dict[Any, Any], names: Iterable[str], *, optional: Iterable[str] = ()
) -> None:
    wanted = list(names)
    for name in data:
        if name not in wanted and name not in optional:
            raise OptionError(f"{where}: there is no option {shown(name)}; {_NEWER}")
    for name in wanted:
        if name not in data:
            raise OptionError(f"{where}: the option {name!r} is missing; {_NEWER}")


def _made(make: Callable[..., Any], options: dict[str, Any], where: str, kind: type = object) -> Any:
    try:
        made = make(**options)
    except Exception as error:  # these are headrace's own functions: they refuse what they are given
        raise OptionError(f"{where}: {error}") from error
    if not isinstance(made, kind):
        raise OptionError(f"{where}: with such options this would be {made}; {_NEWER}")
    return made
