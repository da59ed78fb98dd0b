"""Where code comes from: an installed package, known by its version, or the user's own files."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator

_OWN = __name__.partition(".")[0]
NOTES = frozenset(
    (
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__"),
        *("__annotations_cache__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__"),
        *("__firstlineno__", "__hash__", "__match_args__", "__module__", "__orig_bases__", "__parameters__"),
        *("__qualname__", "__slotnames__", "__slots__", "__static_attributes__", "__type_params__"),
        *("__weakref__", "_abc_impl"),
    )
)
"""Members of classes that are no part of what they do."""


@functools.cache
def _installed_below() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(path, "") for path in paths if path)


def _is_installed(place: str, top: str) -> bool:
    """Whether a file or folder of the package ``top`` was put where it is by an installer.

    Packages need not lie where this Python has its own: clusters and containers add folders of them to the path.
    """
    if place.startswith(_installed_below()):
        return True
    entries = [entry for entry in sys.path if entry and place.startswith(os.path.join(entry, ""))]
    folder = max(entries, key=len, default="")
    return bool(folder) and (
        os.path.basename(os.path.normpath(folder)) in ("site-packages", "dist-packages")
        or top in _installed_in(folder)
    )


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    """The packages and modules in a folder that an installer has written down there."""
    found: set[str] = set()
    for distribution in importlib.metadata.distributions(path=[folder]):
        if distribution.read_text("RECORD") is None:
            continue  # (a project's own folder may describe it, too: its code is the user's)
        for file in distribution.files or ():
            found.add(file.parts[0].partition(".")[0])
    return frozenset(found)


@functools.cache
def installed(module: str) -> str | None:
    """Name and version of an installed (or built-in) module; None for the user's own code."""
    loaded = sys.modules.get(module)
    top = module.partition(".")[0]
    if loaded is None or module == "__main__":
        return None
    if top == _OWN:
        return module  # what it does is counted by a version of its own
    file = getattr(loaded, "__file__", None)
    places = [file] if file else list(getattr(loaded, "__path__", ()))
    if not all(_is_installed(place, top) for place in places):
        return None
    if top in sys.stdlib_module_names:
        return f"{module} of Python {sys.version_info[0]}.{sys.version_info[1]}"
    if not places:  # made while the program runs
        return None
    version = getattr(sys.modules.get(top), "__version__", None)
    return f"{module} {version}" if isinstance(version, str) else f"{module} {content(module).hex()}"


def module_of(value: object) -> str:
    """The module in which a class or function is defined; empty where that is not known."""
    # (a class may have a property of this name, for its instances)
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else ""


def content(module: str) -> bytes:
    """A digest of the file that a module is loaded from; empty where there is none."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            found = importlib.util.find_spec(module.partition(".")[0])  # of the top alone: no code is run
        except (ImportError, ValueError):
            return b""
        file = None if found is None or not found.has_location else found.origin
    return b"" if not file else _digest(file)


def _digest(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError:
        return b""


def names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that the code, or functions defined in it, may use."""
    return {name for inner in _all(code) for name in inner.co_names}


def imports(code: types.CodeType, package: str) -> list[str]:
    """Modules that the code, or functions defined in it, imports while it runs."""
    found = set()
    for inner in _all(code):
        for instruction in dis.get_instructions(inner):
            if instruction.opname == "IMPORT_NAME":
                name = str(instruction.argval)
                relative = f"{package}.{name}".strip(".")
                found.add(name if name in sys.modules or relative not in sys.modules else relative)
    return sorted(found)


def _all(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _all(const)
