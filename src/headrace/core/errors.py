"""Every error that headrace raises on purpose. Each message says what happened and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class HeadraceError(Exception):
    """Base of all headrace errors."""


class OptionError(HeadraceError, ValueError):
    """An option has a value that cannot be obeyed."""


class MissingExtra(HeadraceError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        super().__init__(f"{what} needs {package}; install it with: pip install 'headrace[{extra}]'")


class OutOfSharedMemory(HeadraceError, MemoryError):
    """The arena does not fit into what the machine (or container) allows."""


class WorkerDied(HeadraceError, RuntimeError):
    """A worker process died and its work could not be given to another."""


class StateError(HeadraceError, RuntimeError):
    """A ``state_dict`` does not fit the loader, or arrives at the wrong moment."""


class LoaderClosed(HeadraceError, RuntimeError):
    """The loader was closed while, or before, it was iterated."""


class ProtocolError(HeadraceError, RuntimeError):
    """A message that does not follow the protocol."""


class HostUnavailable(HeadraceError, RuntimeError):
    """The shared host cannot be found, started or talked to."""

    again = True
    """Whether it may be tried again soon."""


class HostGone(HostUnavailable):
    """The shared host ended the connection. There may be another, or one may be started."""


class HostSilent(HostUnavailable):
    """The shared host does not answer: it is stopped, or hangs."""


class HostRefused(HostUnavailable):
    """The shared host does not take this job."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(f"the shared host refuses: {reason}")
        self.reason, self.again = reason, again


class NotNow(HeadraceError):
    """A source's answer for a sample that cannot be read just now: storage is busy, or a connection was lost.

    It is asked again after a pause, while other samples are read; of ``retry_after`` seconds at least, where storage
    said so. A sample that is itself at fault is answered by any other exception.

    ``paced``: the source itself sees to it that storage which refuses is asked less often, for all samples together.
    So no pause has to be long, and what was refused comes soon after storage is well again.
    """

    def __init__(
        self, reason: str = "not now", *, retry_after: float | None = None, paced: bool = False
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.paced = paced


class StorageUnavailable(HeadraceError, RuntimeError):
    """Storage did not give a sample for as long as it was asked. It is not known to be a bad one."""


class BadSample(msgspec.Struct, frozen=True):
    """One sample that could not be prepared: which one, where it lies, and why."""

    index: int
    name: str
    reason: str
    epoch: int = 0
    traceback: str = ""

    @property
    def unequal(self) -> bool:
        """Whether nothing is wrong with the sample, except that it is not like the others of its batch. The reason
        says how the recipe can put them together; to go on without such samples would be to lose good ones."""
        return "pass collate=" in self.reason

    def __str__(self) -> str:
        return f"sample {self.index} ({self.name}): {self.reason}"


class SampleError(HeadraceError, RuntimeError):
    """A sample could not be prepared and ``on_error`` is ``"raise"``."""

    def __init__(self, bad: BadSample) -> None:
        hint = '\n(pass on_error="skip" or on_error="substitute" to go on without such samples)'
        trace = f"\n\nIn the worker:\n{bad.traceback}" if bad.traceback else ""
        super().__init__(f"{bad}{'' if bad.unequal else hint}{trace}")
        self.bad = bad


class TooManyBadSamples(HeadraceError, RuntimeError):
    """More samples were bad than the error budget allows."""

    def __init__(self, bad: Sequence[BadSample], budget: int) -> None:
        shown = "\n".join(f"  {b}" for b in bad[:20])
        more = f"\n  ... and {len(bad) - 20} more" if len(bad) > 20 else ""
        remedy = "Mend the data or raise error_budget=."
        if any(one.unequal for one in bad):
            remedy = "Samples that differ from others are not broken: change the recipe as it is said there."
        super().__init__(f"{len(bad)} bad samples, and the error budget is {budget}. {remedy}\n{shown}{more}")
        self.bad = list(bad)
