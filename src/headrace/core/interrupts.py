"""Ctrl-C while things are put away: held back until that is done."""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

_SOON = 0.01
"""Seconds after which an interrupt that came in a ``__del__`` is delivered, where it can be raised."""

_AGAIN = 0.2
"""Seconds after which it is delivered again, if nobody has noticed."""


class _Holder:
    """Takes the place of the handler for Ctrl-C."""

    def __init__(self) -> None:
        self.before: Any = None
        """The handler whose place it has."""
        self.came = False
        self.due = False
        """What came is to be delivered with the next call."""
        self.exiting = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.due:
            self.release()
        else:
            self.came = True

    def hold(self) -> bool:
        """Whether Ctrl-C is held back from now on. It is not where it cannot be, or is already."""
        if threading.current_thread() is not threading.main_thread() or self.before is not None:
            return False
        before = signal.getsignal(signal.SIGINT)
        if before is None:  # it was not set from Python, so it could not be put back
            return False
        self.came, self.due = False, False
        try:
            self.before = before
            signal.signal(signal.SIGINT, self)
        except BaseException:  # one came before it was held
            self.before = None
            raise
        return True

    def release(self) -> None:
        """Put the handler back. What came goes to it, but for the interpreter's exit, where it has had its effect."""
        self.due = False
        try:
            signal.signal(signal.SIGINT, self.before)
        finally:
            self.before = None
        came, self.came = self.came, False  # (not sooner: one may come until the handler is back)
        if came and not self.exiting:
            signal.raise_signal(signal.SIGINT)

    def release_soon(self) -> None:
        """The same from a ``__del__``, in which nothing can be raised."""
        if self.came and not self.exiting:
            with contextlib.suppress(RuntimeError):  # too late for threads: the interpreter ends
                threading.Thread(target=self._deliver, daemon=True).start()
                return
        self.came = False
        self.release()

    def _deliver(self) -> None:
        time.sleep(_SOON)
        self.due = not self.exiting
        while self.due and not self.exiting:
            # A signal, and not only its handler: what the main thread waits for has to end. And again: one that comes
            # just before that thread begins to wait goes unnoticed until it has waited.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(_AGAIN)

    def at_exit(self) -> None:
        self.exiting = True


_holder = _Holder()
atexit.register(_holder.at_exit)


def impatient() -> bool:
    """Whether somebody pressed Ctrl-C while it was held back: there is no time to be gentle."""
    return _holder.came


@contextlib.contextmanager
def held(*, in_del: bool = False) -> Iterator[None]:
    """Hold Ctrl-C back. It is raised at the end; ``in_del``: a little later, as nothing can be raised there."""
    if not _holder.hold():
        yield
        return
    try:
        yield
    finally:
        if in_del:
            _holder.release_soon()
        else:
            _holder.release()
