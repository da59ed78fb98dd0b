"""Code of the user's by its import path, ``module:qualname``, alone or with the arguments of a ``functools.partial``.

What has no such path is refused when it is written, so that nobody finds out elsewhere that it cannot be read.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any

from headrace.core.errors import OptionError
from headrace.recipes.origins import module_of
from headrace.recipes.plain.registry import FUNCTIONS, own_name
from headrace.recipes.plain.values import read_value, shown, write_value

_MAINS = ("__main__", "__mp_main__")


def write_code(function: Any, where: str) -> dict[str, Any]:
    """How to find a callable again."""
    if type(function) is functools.partial:
        return {
            "code": _path(function.func, where),
            "arguments": [write_value(value, where) for value in function.args],
            "keywords": [[name, write_value(value, where)] for name, value in function.keywords.items()],
        }
    own = own_name(function)
    return {"code": _path(function, where)} if own is None else {"own": own}


Trust = bool | tuple[str, ...]
"""Whose code may be imported: anybody's, nobody's, or what these modules and packages define."""


def read_code(data: Any, where: str, *, trust: Trust) -> Any:
    """The callable that was written. Without ``trust`` nothing is imported, and only headrace's own are read."""
    match data:
        case {"own": str(name)} if len(data) == 1:
            if name not in FUNCTIONS:
                raise OptionError(
                    f"{where}: headrace has no function {shown(name)}; the data was made by a newer version, or is "
                    "damaged"
                )
            return FUNCTIONS[name]
        case {"code": str(path)} if len(data) == 1:
            return _load(path, where, trust=trust)
        case {"code": str(path), "arguments": list(values), "keywords": list(pairs)} if len(data) == 3:
            function = _load(path, where, trust=trust)
            arguments = [read_value(value, where) for value in values]
            return functools.partial(function, *arguments, **_keywords(pairs, where))
    raise OptionError(f"{where}: {shown(data)} is no function that headrace writes; the data is damaged")


def _keywords(pairs: list[Any], where: str) -> dict[str, Any]:
    out = {}
    for pair in pairs:
        match pair:
            case [str(name), value]:
                out[name] = read_value(value, where)
            case _:
                raise OptionError(f"{where}: {shown(pair)} is no name and value; the data is damaged")
    return out


def _path(function: Any, where: str) -> str:
    name = getattr(function, "__qualname__", None)
    module = module_of(function) or module_of(getattr(function, "__objclass__", None))
    why = _why_not(function, module, name)
    if why:
        what = name if isinstance(name, str) else shown(function)
        raise OptionError(
            f"{where}: {what} {why}, so it cannot be written as an import path. Give a function or class that stands "
            "at the top of a module, and options of its own with functools.partial"
        )
    return f"{module}:{name}"


def _why_not(function: Any, module: str, name: Any) -> str:
    """Why a callable cannot be imported elsewhere; empty: it can."""
    if not isinstance(name, str):
        return f"is an object of class {type(function).__qualname__}"
    if isinstance(function, types.MethodType) and not isinstance(function.__self__, type):
        return f"is a method of an object of class {type(function.__self__).__qualname__}"
    if "<lambda>" in name:
        return "is a lambda"
    if "<locals>" in name:
        return "is defined inside a function"
    if module in _MAINS:
        return "is defined in the script that runs, which other programs do not import"
    loaded = sys.modules.get(module)
    if loaded is None or getattr(loaded, "__spec__", None) is None:
        return f"is of the module {module!r}, which cannot be imported"
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    # (a method of a class is bound anew each time)
    same = found == function if isinstance(function, types.MethodType) else found is function
    return "" if same else f"is not what is found as {module}:{name}"


def _load(path: str, where: str, *, trust: Trust) -> Any:
    module, _, name = path.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts) or module in _MAINS:
        raise OptionError(
            f"{where}: {shown(path)} is no import path (module:name) that headrace writes; the data is damaged"
        )
    if isinstance(trust, tuple) and not any(f"{module}.".startswith(f"{one}.") for one in trust):
        listed = ", ".join(trust) if trust else "none"
        raise OptionError(f"{where}: {path} is not of the modules whose code may be imported here ({listed})")
    if not trust:
        raise OptionError(
            f"{where}: the recipe has code of its own, {path}, and to import code is to run it. If you trust where "
            "the data comes from, write Recipe.from_dict(data, trust_code=True)"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise OptionError(
            f"{where}: {path} cannot be imported ({type(error).__name__}: {error}); put the code where it was when "
            "the recipe was written, onto the path of Python"
        ) from error
    if not callable(found):
        raise OptionError(f"{where}: {path} is {shown(found)}, which cannot be called")
    # (a module also has what it imports itself, os.system for one: only what it defines is its own)
    if isinstance(trust, tuple) and _path(found, where) != path:
        raise OptionError(f"{where}: {path} is not defined there, but as {_path(found, where)}")
    return found
