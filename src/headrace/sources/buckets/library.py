"""The library that talks to buckets, usable in this process whatever its parents did.

It runs threads of its own, which a forked child does not have: there, every call to it would wait for ever. So a
child has a copy of it, loaded from memory as another file would be: that takes milliseconds, and all children of a
process share the pages.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from typing import Any

from headrace.core.errors import MissingExtra

_NAME = "obstore._obstore"


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.module: Any = None
        self.stale = _NAME in sys.modules
        """Whether somebody may have used the library in another process than this one."""
        self.spare = -1
        """A copy of it in memory, that was not loaded in this process."""
        self.depth = 0
        """Forks between the first process and this one."""


_state = _State()


def library() -> Any:
    """The library's native module, with an own copy of all that it keeps where that is needed."""
    if _state.module is None:
        with _state.lock:
            if _state.module is None:
                _state.module = _load()
    return _state.module


def _load() -> Any:
    try:
        original = importlib.import_module(_NAME)
    except ImportError:
        raise MissingExtra("obstore", "bucket", "reading from a bucket") from None
    if not _state.stale:
        return original
    descriptor, _state.spare = _state.spare, -1
    if descriptor < 0:
        descriptor = _copy(str(original.__file__))
    try:
        # A library that was loaded under the same name is taken for this one, whatever the name stands for now; and
        # the number may well be the one that a parent's copy had.
        place = f"/proc/self/fd{'/.' * _state.depth}/{descriptor}"
        name = f"headrace_buckets_{os.getpid()}._obstore"
        loader = importlib.machinery.ExtensionFileLoader(name, place)
        spec = importlib.util.spec_from_file_location(name, place, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module
    finally:
        os.close(descriptor)


def _copy(path: str) -> int:
    descriptor = os.memfd_create("headrace-obstore")
    try:
        with open(path, "rb") as file:
            size, have = os.fstat(file.fileno()).st_size, 0
            while have < size:
                have += os.sendfile(descriptor, file.fileno(), have, size - have)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _before_fork() -> None:
    """One copy for all children, instead of one for each."""
    module = _state.module
    if module is not None and _state.spare < 0:
        with contextlib.suppress(OSError):  # a child that has none makes its own
            _state.spare = _copy(str(importlib.import_module(_NAME).__file__))


def _in_child() -> None:
    _state.lock = threading.Lock()
    _state.depth += 1
    _state.stale = _state.stale or _NAME in sys.modules
    _state.module = None


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
