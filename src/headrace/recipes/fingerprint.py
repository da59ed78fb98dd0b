"""Digests of definitions: equal in every process for equal definitions, different for different ones.

A definition is walked down to plain data. Functions count by their code, defaults, closure and the globals
they use; objects by their class and state; whatever comes from an installed package by its name and version.
What a definition reads while it runs (files, the environment) does not count. Pickles are not used: their
bytes depend on interning, hash seeds and import order.

Data that a definition uses is read to the last byte, since a part of it would not tell it from other data. So there
is a limit to how much that may be. A file that is mapped to be read only counts as files do, without being read.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import random
import struct
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.core.errors import OptionError
from headrace.core.sizes import show_size
from headrace.recipes.origins import NOTES, content, imports, installed, module_of, names
from headrace.recipes.values import is_tensor, tensor_array

_TOOLS = ("_thread", "_io", "weakref", "_weakref")
"""Modules of locks, files and the like, which hold nothing that makes a result."""
LIMIT = 256 << 20
"""Bytes that are read of a definition: a good part of a second. A loader takes a fingerprint when it starts."""
_ITEM = 256
"""Bytes that could be read in the time that an item of a list takes."""


def digest(*parts: Any, limit: float = LIMIT) -> str:
    """The sha256, in hex, of any definition. ``OptionError`` where it holds more data than ``limit``."""
    return _digest(parts, _Allowance(limit))


def _digest(value: Any, allowance: _Allowance) -> str:
    walk = _Walk(allowance)
    walk.add(value)
    return walk.sha.hexdigest()


class _Allowance:
    """How much data may still be read."""

    def __init__(self, limit: float) -> None:
        self.left = self._limit = limit

    def take(self, nbytes: int, what: str) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise OptionError(
                f"the definition uses too much data to take a fingerprint of (the last: {what}; "
                f"{show_size(self._limit)} is the limit). Map large arrays from a file, np.load(path, "
                'mmap_mode="r"), which counts by its path, size and time; or keep them in an object whose class '
                "has a method __headrace_fingerprint__ that returns plain data, such as a path and a version"
            )


class _Walk:
    """Feeds a definition to a hash, piece by piece, each with its kind and length."""

    def __init__(self, allowance: _Allowance) -> None:
        self.sha = hashlib.sha256()
        self._allowance = allowance
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
                data = feed(value)
                self._allowance.take(len(data), kind.__name__)
                self.token(kind.__name__, data)
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
        self._allowance.take(_ITEM * len(values), f"{kind} with {len(values)} items")
        self.token(kind, struct.pack("<Q", len(values)))
        for value in values:
            self.add(value)

    def _add_object(self, value: Any) -> None:
        # Containers and arrays by their exact type: a class that derives from one has code of its own.
        kind = type(value)
        own = getattr(kind, "__headrace_fingerprint__", None)
        if own is not None:
            self.token("own", _class_digest(kind).encode())
            self.add(own(value))
        elif isinstance(value, type):
            self._add_class(value)
        elif kind in (tuple, list):
            self.many(kind.__name__, value)
        elif kind in (dict, types.MappingProxyType):
            self.many("dict", [item for pair in value.items() for item in pair])
        elif kind in (set, frozenset):
            self.many("set", sorted(_digest(item, self._allowance) for item in value))
        elif kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            self._add_array(value)
        elif isinstance(value, np.dtype):
            self.token("dtype", repr(value).encode())
        elif isinstance(value, types.ModuleType):
            self._add_module(value, None, set())
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self.many("method", (value.__func__, value.__self__))
        elif isinstance(value, np.ufunc):
            self._add_ufunc(value)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType):
            self._add_builtin(value)
        elif isinstance(value, types.UnionType | types.GenericAlias) or kind.__module__ == "typing":
            self.token("annotation", repr(value).encode())
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif kind is functools.partial:
            self.many("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            # Their state is no part of a definition; workers seed what user code draws from.
            self.many("generator", (kind,))
        elif isinstance(value, weakref.ref):
            self.many("weakref", (value(),))
        elif is_tensor(value):
            self._add_tensor(value)
        else:
            self._add_instance(value)

    def _add_array(self, value: Any) -> None:
        self.token("array", f"{isinstance(value, np.generic)} {value.dtype!r} {value.shape}".encode())
        file = mapped(value)
        if value.dtype.kind == "O":
            self.many("objects", value.tolist())
        elif file is not None:
            self.many("file", file)
        else:
            self._allowance.take(value.nbytes, f"array of {show_size(value.nbytes)}")
            self.token("data", np.ascontiguousarray(value).tobytes())

    def _add_tensor(self, value: Any) -> None:
        try:
            nbytes = int(value.nbytes)
        except Exception:  # of a kind without memory of its own: what follows says so
            nbytes = 0
        if nbytes > self._allowance.left:  # (it may be on a GPU: not even a copy is made)
            self._allowance.take(nbytes, f"tensor of {show_size(nbytes)}")
        try:
            array, dtype = tensor_array(value)
        except Exception as error:
            raise _cannot(value, error) from error
        self.many("tensor", (type(value), dtype, array))

    def _add_ufunc(self, value: np.ufunc) -> None:
        name = value.__name__
        for module in ("numpy", "scipy.special"):
            if getattr(sys.modules.get(module), name, None) is value:
                self.token("ufunc", f"{installed(module)}:{name}".encode())
                return
        raise _cannot(value, "only functions of numpy and scipy are known by their names")

    def _add_builtin(self, value: Any) -> None:
        module = module_of(value)
        self.token("builtin", f"{module}.{value.__name__}".encode())
        self._add_origin(module)
        owner = getattr(value, "__self__" if hasattr(value, "__self__") else "__objclass__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner)

    def _add_origin(self, module: str) -> None:
        """Of code that cannot be looked into: the package that it belongs to, or the file that it lies in."""
        known = installed(module)
        self.token("origin", known.encode() if known is not None else content(module))

    def _add_module(self, value: types.ModuleType, used: set[str] | None, seen: set[int]) -> None:
        """A module: its file, and of what is in it now ``used``, or where that is not known, plain values."""
        known = installed(value.__name__)
        if known is not None or id(value) in seen:
            self.token("module", (known or value.__name__).encode())
            return
        seen.add(id(value))
        self.token("module", value.__name__.encode())
        self.token("file", content(value.__name__))
        members = vars(value)
        wanted = sorted(
            name
            for name in members
            if not name.startswith("__") and (name in used if used is not None else _is_plain(members[name]))
        )
        for name in wanted:
            self.token("member", name.encode())
            if isinstance(members[name], types.ModuleType):
                self._add_module(members[name], used, seen)
            else:
                self.add(members[name])

    def _name(self, value: Any) -> str:
        module = module_of(value)
        # A script's functions are those of __main__ in the job and of __mp_main__ in spawned workers.
        module = "__main__" if module == "__mp_main__" else module
        return f"{module}:{value.__qualname__}"

    def _add_function(self, value: types.FunctionType) -> None:
        self.token("function", self._name(value).encode())
        known = installed(module_of(value))
        used: set[str] = set()
        if known is not None:
            self.token("installed", known.encode())
        else:
            self._add_code(value.__code__)
            used = names(value.__code__)
            space = value.__globals__
            for name in sorted(used & space.keys()):
                self.token("global", name.encode())
                self._add_used(space[name], used)
            for name in imports(value.__code__, str(space.get("__package__") or "")):
                self.token("import", name.encode())
                loaded = sys.modules.get(name)
                if loaded is not None:
                    self._add_module(loaded, used, set())
                else:
                    self.token("file", content(name))
        self.many("defaults", (value.__defaults__, value.__kwdefaults__))
        self.token("closure", str(len(value.__closure__ or ())).encode())
        for cell in value.__closure__ or ():
            self._add_used(_content(cell), used)
        if value.__dict__:
            self.many("attributes", [item for pair in sorted(vars(value).items()) for item in pair])

    def _add_used(self, value: Any, used: set[str]) -> None:
        if isinstance(value, types.ModuleType):
            self._add_module(value, used, set())
        else:
            self.add(value)

    def _add_code(self, code: types.CodeType) -> None:
        self.token("code", code.co_code)
        self.token("handlers", code.co_exceptiontable)
        self.many("names", (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
        self.many("call", (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
        self.many("consts", code.co_consts)

    def _add_class(self, value: type) -> None:
        self.token("class", self._name(value).encode())
        known = installed(module_of(value))
        if known is not None:
            self.token("installed", known.encode())
            return
        if type(value) is not type:
            self.add(type(value))
        self.many("bases", value.__bases__)
        members = vars(value)
        for name in sorted(members):
            member = members[name]
            if name in NOTES or isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
                continue
            if isinstance(member, staticmethod | classmethod):
                member = (type(member).__name__, member.__func__)
            elif isinstance(member, property):
                member = (member.fget, member.fset)
            self.many("member", (name, member))

    def _add_instance(self, value: Any) -> None:
        self.token("instance")
        self.add(type(value))
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            rest = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in fields}
            self.many("fields", [item for pair in (fields | rest).items() for item in pair])
            return
        try:
            state = value.__reduce_ex__(2)
        except Exception as error:
            self._add_unpicklable(value, error)
            return
        if isinstance(state, str):
            # A function in a wrapper, or compiled: its name alone does not say what it does.
            self.token("named", state.encode())
            self._add_origin(module_of(value) or module_of(type(value)))
            self.add(getattr(value, "__wrapped__", None))
            return
        # What makes it, and then arguments, state, items and pairs.
        self.many("state", (state[0], state[1], state[2] if len(state) > 2 else None))
        self.many("items", state[3] if len(state) > 3 and state[3] is not None else ())
        self.many("pairs", [i for pair in (state[4] or () if len(state) > 4 else ()) for i in pair])

    def _add_unpicklable(self, value: Any, error: Exception) -> None:
        if hasattr(value, "__dict__"):
            self.many("attributes", [item for pair in sorted(vars(value).items()) for item in pair])
        elif type(value).__module__ not in _TOOLS:
            raise _cannot(value, error) from error
        self.token("tool", str(getattr(value, "name", "")).encode("utf-8", "replace"))


def mapped(value: Any) -> tuple[Any, ...] | None:
    """For an array in a file that is mapped to be read only: which file, and where in it."""
    owner = value
    while isinstance(owner, np.ndarray):
        base = owner.base
        if (
            isinstance(owner, np.memmap)
            and owner.mode == "r"
            and owner.filename
            and not isinstance(base, np.ndarray)
        ):
            try:
                at = os.stat(owner.filename)
            except OSError:  # it is gone, or another one by now: what is mapped is all that is left of it
                return None
            start = value.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            place = os.path.realpath(owner.filename)
            return str(place), at.st_size, at.st_mtime_ns, int(owner.offset), start, value.strides
        owner = base
    return None


def _cannot(value: Any, why: object) -> OptionError:
    return OptionError(
        f"{value!r} has no state to take a fingerprint of ({why}); make it picklable, or "
        "give its class a method __headrace_fingerprint__ that returns plain data"
    )


def _class_digest(kind: type) -> str:
    try:
        return digest(kind)
    except OptionError:  # who speaks for its instances speaks for what cannot be looked into as well
        return f"{kind.__module__}:{kind.__qualname__}"


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
    kinds = {kind for kind, _ in _PLAIN} | {tuple, list, dict, set, frozenset, np.ndarray}
    return type(value) in kinds or isinstance(value, np.generic)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None
