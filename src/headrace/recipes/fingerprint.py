"""Digests of definitions: equal in every process for equal definitions, different for different ones.

A definition is walked down to plain data. Functions count by their code, defaults, closure and the globals
they use; objects by their class and state; whatever comes from an installed package by its name and version.
Pickles are not used: their bytes depend on interning, hash seeds and import order.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
import random
import struct
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.core.errors import OptionError


def digest(*parts: Any) -> str:
    """The sha256, in hex, of any definition."""
    walk = _Walk()
    walk.add(parts)
    return walk.sha.hexdigest()


@functools.cache
def _installed_below() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(os.path.join(path, "") for path in paths if path)


@functools.cache
def _installed(module: str) -> str | None:
    """Name and version of an installed (or built-in) module; None for the user's own code."""
    loaded = sys.modules.get(module)
    top = module.partition(".")[0]
    file = getattr(loaded, "__file__", None)
    if loaded is None or module == "__main__" or (file and not file.startswith(_installed_below())):
        return None
    if top in sys.stdlib_module_names:
        return f"{module} of Python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"{module} {getattr(sys.modules.get(top), '__version__', '')}"


class _Walk:
    """Feeds a definition to a hash, piece by piece, each with its kind and length."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self._done: dict[int, tuple[bytes, Any]] = {}
        self._open: dict[int, int] = {}
        self._cyclic = False

    def token(self, kind: str, data: bytes = b"") -> None:
        self.sha.update(struct.pack("<16sQ", kind.encode()[:16], len(data)))
        self.sha.update(data)

    def add(self, value: Any) -> None:
        """Feed any value."""
        for kind, feed in _PLAIN:
            if type(value) is kind:
                self.token(kind.__name__, feed(value))
                return
        key = id(value)
        if key in self._open:
            self._cyclic = True
            self.token("cycle", str(len(self._open) - self._open[key]).encode())
        else:
            self.token("object", self._done[key][0] if key in self._done else self._digest(key, value))

    def _digest(self, key: int, value: Any) -> bytes:
        """An object's own digest, so that it counts the same wherever and however often it is met."""
        outer, self.sha = self.sha, hashlib.sha256()
        outer_cyclic, self._cyclic = self._cyclic, False
        self._open[key] = len(self._open)
        self._add_object(value)
        del self._open[key]
        found = self.sha.digest()
        if not self._cyclic or isinstance(value, types.FunctionType | type):
            self._done[key] = found, value  # an id means something only as long as its object lives
        self.sha = outer
        self._cyclic |= outer_cyclic
        return found

    def many(self, kind: str, values: Any) -> None:
        values = list(values)
        self.token(kind, struct.pack("<Q", len(values)))
        for value in values:
            self.add(value)

    def _add_object(self, value: Any) -> None:
        own = getattr(type(value), "__headrace_fingerprint__", None)
        if own is not None:
            self.token("own")
            self.add(own(value))
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, tuple | list):
            self.many(type(value).__name__, value)
        elif isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections", "types"):
            self.many(type(value).__name__, [item for pair in value.items() for item in pair])
        elif isinstance(value, set | frozenset):
            self.many("set", sorted(digest(item) for item in value))
        elif isinstance(value, np.ndarray | np.generic):
            self._add_array(value)
        elif isinstance(value, np.dtype):
            self.token("dtype", str(value).encode())
        elif isinstance(value, types.ModuleType):
            self.token("module", (_installed(value.__name__) or value.__name__).encode())
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self.many("method", (value.__func__, value.__self__))
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | np.ufunc):
            owner = getattr(value, "__self__", None)
            self.token("builtin", f"{getattr(value, '__module__', '')}.{value.__name__}".encode())
            if owner is not None and not isinstance(owner, types.ModuleType):
                self.add(owner)
        elif isinstance(value, types.UnionType | types.GenericAlias) or type(value).__module__ == "typing":
            self.token("annotation", repr(value).encode())
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, functools.partial):
            self.many("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            # Their state is no part of a definition; workers seed what user code draws from.
            self.token("generator", type(value).__name__.encode())
        elif type(value).__module__.startswith("torch") and hasattr(value, "detach"):
            self._add_array(value.detach().cpu().numpy())
        else:
            self._add_instance(value)

    def _add_array(self, value: Any) -> None:
        if value.dtype.kind == "O":
            self.many("objects", value.tolist())
            return
        self.token("array", f"{value.dtype.str}{value.shape}".encode())
        self.token("data", np.ascontiguousarray(value).tobytes())

    def _name(self, value: Any) -> str:
        module = value.__module__
        # A script's functions are those of __main__ in the job and of __mp_main__ in spawned workers.
        module = "__main__" if module == "__mp_main__" else module
        return f"{module}:{value.__qualname__}"

    def _add_function(self, value: types.FunctionType) -> None:
        self.token("function", self._name(value).encode())
        known = _installed(value.__module__ or "")
        if known is not None:
            self.token("installed", known.encode())
        else:
            self._add_code(value.__code__)
            names = sorted(_global_names(value.__code__) & value.__globals__.keys())
            self.many("globals", [item for name in names for item in (name, value.__globals__[name])])
        self.many("defaults", (value.__defaults__, value.__kwdefaults__))
        self.many("closure", [_content(cell) for cell in value.__closure__ or ()])

    def _add_code(self, code: types.CodeType) -> None:
        self.token("code", code.co_code)
        self.many("names", (code.co_names, code.co_varnames, code.co_freevars, code.co_flags))
        self.many("consts", code.co_consts)

    def _add_class(self, value: type) -> None:
        self.token("class", self._name(value).encode())
        known = _installed(value.__module__)
        if known is not None:
            self.token("installed", known.encode())
            return
        self.many("bases", value.__bases__)
        members = vars(value)
        for name in sorted(members):
            member = members[name]
            if isinstance(member, staticmethod | classmethod):
                member = member.__func__
            elif isinstance(member, property):
                member = (member.fget, member.fset)
            elif not inspect.isfunction(member) and (name.startswith("__") or not _is_plain(member)):
                continue  # slots, notes of copyreg and abc, and the like: no part of what the class does
            self.many("member", (name, member))

    def _add_instance(self, value: Any) -> None:
        self.token("instance")
        self.add(type(value))
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            self.many("fields", [item for f in fields for item in (f.name, getattr(value, f.name))])
            return
        try:
            state = value.__reduce_ex__(2)
        except Exception as error:
            self._add_unpicklable(value, error)
            return
        if isinstance(state, str):
            self.token("named", state.encode())
            return
        # The first is copyreg's own helper; the rest are arguments, state, items and pairs.
        self.many("state", (state[1], state[2] if len(state) > 2 else None))
        self.many("items", state[3] if len(state) > 3 and state[3] is not None else ())
        self.many("pairs", [i for pair in (state[4] or () if len(state) > 4 else ()) for i in pair])

    def _add_unpicklable(self, value: Any, error: Exception) -> None:
        if hasattr(value, "__dict__"):
            self.many("attributes", [item for pair in sorted(vars(value).items()) for item in pair])
        elif type(value).__module__ not in ("_thread", "_io", "builtins", "weakref", "_weakref"):
            # Locks, files and the like are tools; anything else may hold what makes the result.
            raise OptionError(
                f"{value!r} has no state to take a fingerprint of ({error}); make it picklable, or "
                "give its class a method __headrace_fingerprint__ that returns plain data"
            ) from error


_PLAIN: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (type(None), lambda value: b""),
    (type(...), lambda value: b""),
    (bool, lambda value: b"%d" % value),
    (int, lambda value: b"%d" % value),
    (float, lambda value: struct.pack("<d", value)),
    (complex, lambda value: struct.pack("<dd", value.real, value.imag)),
    (str, lambda value: value.encode("utf-8", "surrogatepass")),
    (bytes, bytes),
    (bytearray, bytes),
)


def _is_plain(value: Any) -> bool:
    return type(value) in {kind for kind, _ in _PLAIN} or isinstance(value, tuple | list | dict | np.ndarray)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None


def _global_names(code: types.CodeType) -> set[str]:
    """Names of globals that the code, or functions defined in it, may use."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _global_names(const)
    return names
