"""Batches in GPU memory: copied on a stream of their own, from page-locked slots, ordered by events alone.

Three orders have to hold, and no thread of the host waits for any of them (but for a loop that is many copies ahead):

- *The slot after the copy.* Its lease ends only when an event behind the copy has happened.
- *The copy after the last use of its target.* Targets come from torch's allocator, of the pool of the copying stream.
  What the user lets go of is used again when all streams that it was handed to are done with it (``record_stream``).
- *The user's work after the copy.* The stream that is current as a batch is handed out waits for the event.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.loader.pinning import pin_tensor

IN_FLIGHT = 8
"""Copies that are begun and not done, at most. A loop that waits for nothing would else be ahead of its device by as
many batches as there is memory for."""
_ELSEWHERE = (
    "batches come to {0}, which was the device of this process when its first epoch began; now that is cuda:{1}, "
    "where the model probably is. Call torch.cuda.set_device() before the loader is used, or name the device: "
    "device='cuda:{1}'"
)
_PORTABLE = 1
"""cudaHostRegisterPortable: locked for all contexts of the process."""


def read_device(device: Any) -> str | None:
    """The device that a user names, as ``cuda`` or ``cuda:1`` says it, or ``"auto"``; None: the CPU."""
    if device is None or device == "auto":
        return None if device is None else "auto"
    try:
        found = torch.device("cuda", device) if type(device) is int else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f'device={device!r}: {error}; write "cuda", "cuda:1" or "auto"') from None
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        raise OptionError(
            f'device={device!r}: batches are put into the memory of CUDA devices; write "cuda" or "auto"'
        )
    return str(found)


def find_device(name: str | None) -> torch.device | None:
    """The device that is meant in this process; None: the CPU."""
    if name is None:
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        if not count:
            return None
        current = torch.cuda.current_device()
        # (who has several ranks here and has not chosen yet will choose this one)
        return torch.device("cuda", current or (environment.local_rank() or 0) % count)
    if not count:
        raise OptionError(
            f'device={name!r}: torch finds no CUDA device here; with device="auto" batches stay on the CPU then'
        )
    found = torch.device(name)
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= count:
        raise OptionError(f"device={name!r}: there are {count} CUDA devices here, counted from 0")
    return torch.device("cuda", index)


class Event:
    """An event of torch's. In a child that is forked it lives for ever: torch ends a process that lets one go and
    cannot use its device. (torch's own must not be referred to weakly: not all of its versions say when they are
    gone.)"""

    __slots__ = ("__weakref__", "of_torch")
    _all: ClassVar[weakref.WeakSet[Event]] = weakref.WeakSet()
    _guarded: ClassVar[list[bool]] = []

    def __init__(self, stream: Any) -> None:
        """Happens when all that is on the stream by now is done."""
        if not self._guarded:
            self._guarded.append(True)
            os.register_at_fork(after_in_child=self._keep_all)
        self._all.add(self)
        self.of_torch: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.of_torch.record(stream)

    def query(self) -> bool:
        """Whether it has happened."""
        return bool(self.of_torch.query())

    def synchronize(self) -> None:
        """Wait until it has."""
        self.of_torch.synchronize()

    @classmethod
    def _keep_all(cls) -> None:
        gc.freeze()  # (nor is what was garbage already the child's to clear away)
        for event in list(cls._all):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))


class LockedPages:
    """Mappings of this process that are page-locked. One that comes a second time is worth locking."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._known: dict[int, bool | None] = {}
        """By address: locked, refused; None: it came once."""

    def lock(self, mapped: memoryview) -> bool:
        """Whether a mapping is locked, so that devices read it by themselves."""
        whole: Any = mapped.obj
        address = int(whole.ctypes.data)
        known = self._known.get(address, False)
        if address not in self._known:
            self._known[address] = None
            weakref.finalize(whole, self._gone, address).atexit = False
        elif known is None:
            error = _runtime().cudaHostRegister(address, len(mapped), _PORTABLE)
            self._known[address] = known = int(error) == 0
            if not known:
                _forget_error()
        return bool(known)

    def _gone(self, address: int) -> None:
        # (before it is unmapped: this looks after what lies above the mapping itself)
        if self._known.pop(address, None) and os.getpid() == self._owner:
            _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _forget_error() -> None:
    """The next kernel, whosever it is, would be told of what a call before it was refused."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


class Sent:
    """A batch whose copies are under way."""

    __slots__ = ("_device", "_event", "_tensors", "_value")

    def __init__(self, value: Any, tensors: list[torch.Tensor], event: Event, device: torch.device) -> None:
        self._value, self._tensors, self._event, self._device = value, tensors, event, device

    def take(self) -> Any:
        """The batch, for the stream that is current now."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event.of_torch)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        return self._value


class Unsettled(ABC):
    """Stands for a batch of which something has to be done on its way, elsewhere, before the rest can be."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether ``settle`` waits for nothing."""

    @abstractmethod
    def settle(self, timeout: float | None) -> Any:
        """The batch, as a session gives it. Raises what the session would have raised; after a TimeoutError it may be
        called again."""


class Flight:
    """Copies under way, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: deque[Any] = deque()
        self.waited = 0.0
        """Seconds, in all."""

    def make_room(self) -> None:
        """For one more: where there are too many, the oldest is waited for."""
        while self._events and self._events[0].query():
            self._events.popleft()
        if len(self._events) < self._most:
            return
        begun = time.perf_counter()
        while len(self._events) >= self._most:
            self._events.popleft().synchronize()
        self.waited += time.perf_counter() - begun

    def add(self, event: Any) -> None:
        """A copy is begun; the event is behind it."""
        self._events.append(event)


class DeviceFeed:
    """Copies batches to one device."""

    def __init__(self, device: torch.device, *, chosen: bool = True) -> None:
        """``chosen``: the user has named this very device."""
        self.device = device
        self._watches = not chosen
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._locked = LockedPages()
        self._users = self.stream
        self._flight = Flight(IN_FLIGHT)
        self.sent = self.copied = 0
        """Bytes; and of these, those that the host had to copy first."""

    @property
    def waited(self) -> float:
        """Seconds for which a loop that was too far ahead of its device was held back, in all."""
        return self._flight.waited

    def send(self, value: Any, lease: Any = None, finish: Callable[[Any], Any] | None = None) -> Sent:
        """Begin to copy all tensors of a nested value. ``lease``: of the slot that they lie in, if they do.
        ``finish``: what is left to be done there, with what was copied."""
        if self._watches and torch.cuda.current_device() != self.device.index:
            self._watches = False
            warnings.warn(_ELSEWHERE.format(self.device, torch.cuda.current_device()), stacklevel=2)
        self._flight.make_room()
        locked = lease is not None and self._locked.lock(lease.mapped)
        self._users = torch.cuda.current_stream(self.device)
        made: list[torch.Tensor] = []
        with torch.cuda.stream(self.stream):
            there = self._nested(value, made)
            if finish is not None:
                there = finish(there)
                made = list(_tensors(there))
            event = Event(self.stream)
        self._flight.add(event)
        if locked:
            lease.until(event)
        return Sent(there, made, event, self.device)

    def _nested(self, value: Any, made: list[torch.Tensor]) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value, made)
        if kind is list or kind is tuple:
            return kind([self._nested(item, made) for item in value])
        if kind is dict:
            return {key: self._nested(item, made) for key, item in value.items()}
        if isinstance(value, str | bytes):
            return value
        if isinstance(value, torch.Tensor):
            return self._other(value, made)
        if isinstance(value, Mapping):
            items = {key: self._nested(item, made) for key, item in value.items()}
            return _rebuilt(value, items, lambda: kind(items))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self._nested(item, made) for item in value))
        if isinstance(value, Sequence):
            listed = [self._nested(item, made) for item in value]
            return _rebuilt(value, listed, lambda: kind(listed))
        return self._other(value, made) if callable(getattr(value, "to", None)) else value

    def _tensor(self, tensor: torch.Tensor, made: list[torch.Tensor]) -> torch.Tensor:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
            moved: torch.Tensor = self._other(tensor, made)
            return moved
        source = tensor
        self.sent += tensor.nbytes
        if not tensor.is_pinned():
            source = pin_tensor(tensor)
            self.copied += tensor.nbytes
        there = torch.empty_like(source, device=self.device)
        there.copy_(source, non_blocking=True)
        made.append(there)
        return there

    def _other(self, value: Any, made: list[torch.Tensor]) -> Any:
        """Whatever knows how to move itself."""
        if isinstance(value, torch.Tensor):
            there = value.to(self.device, non_blocking=True)
            made.append(there)
            return there
        # Which tensors it makes, nobody knows: so they belong to the user's stream, as if the user had called it.
        with torch.cuda.stream(self._users):
            there = value.to(self.device, non_blocking=True)
        self.stream.wait_stream(self._users)
        return there


def _rebuilt(value: Any, items: Any, make: Any) -> Any:
    try:
        return make()
    except TypeError:  # a class whose constructor takes other things
        return items


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of what a recipe gives."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Ahead:
    """Batches of an epoch whose copies were begun before they are asked for."""

    def __init__(self, keeps: int) -> None:
        """``keeps``: how many, beside the one that is handed out."""
        self._keeps = keeps
        self._waiting: deque[tuple[Any, Any] | Exception] = deque()
        self._over = False

    def next(self, session: Any, timeout: float | None, left: int | None) -> tuple[Any, Any] | None:
        """The next batch of a session, in its turn. ``left``: batches that may be asked for, with this one."""
        if not self._waiting and self._over:
            return None
        found = self._waiting.popleft() if self._waiting else session.next(timeout)
        if isinstance(found, Exception):
            raise found
        if found is None:
            return None
        drawn, value = found
        if isinstance(value, Unsettled):
            self._begin_more(session, left)  # (what comes after it goes on meanwhile)
            try:
                value = value.settle(timeout)
            except TimeoutError:
                self._waiting.appendleft(found)
                raise
        self._begin_more(session, left)
        return drawn, value

    @staticmethod
    def _settled(drawn: Any, value: Unsettled) -> tuple[Any, Any] | Exception:
        try:
            return drawn, value.settle(None)
        except Exception as error:  # in its turn
            return error

    def _begin_more(self, session: Any, left: int | None) -> None:
        """Begin to copy what is there. Nothing is waited for."""
        for at, one in enumerate(self._waiting):
            if isinstance(one, tuple) and isinstance(one[1], Unsettled):
                if not one[1].ready:
                    break
                self._waiting[at] = self._settled(*one)
        while len(self._waiting) < self._keeps and not self._over:
            if (left is not None and len(self._waiting) + 1 >= left) or not session.ready:
                return
            try:
                found = session.next(None)
            except Exception as error:  # in its turn
                self._waiting.append(error)
                return
            if found is None:
                self._over = True
            else:
                self._waiting.append(found)
