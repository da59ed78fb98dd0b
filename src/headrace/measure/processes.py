"""The same as ``run_threads``, in several processes at once: as a machine's workers do."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from headrace.core.interrupts import held, impatient
from headrace.measure.timed_threads import Throughput, Work, run_threads

_RESULT = struct.Struct("<Qddd")
_READY = b"r"
_GRACE = 10.0
"""Seconds that processes may take beyond the time that they should: to start, and for their last order."""
_LOOK = 0.1
"""Seconds after which is looked whether somebody wants it to end."""


def in_processes(
    count: int, make_works: Callable[[int], Sequence[Work]], seconds: float, grace: float = _GRACE
) -> Throughput | None:
    """Fork ``count`` processes, each of which runs threads for what ``make_works(its number)`` gives.

    They start when all of them are ready. None where one of them fails, hangs or dies: what was measured by the
    others is worth nothing then.
    """
    with held():  # Ctrl-C ends the waiting, and comes when everything is put away
        results = _results(count, make_works, seconds, grace)
    if results is None:
        return None
    found = [Throughput(*_RESULT.unpack(result)) for result in results]
    done = sum(each.done for each in found)
    cpu = sum(each.cpu * each.done for each in found)
    seconds = max(each.seconds for each in found)
    return Throughput(done, seconds, sum(each.rate for each in found), cpu / max(done, 1))


def _results(
    count: int, make_works: Callable[[int], Sequence[Work]], seconds: float, grace: float
) -> list[bytes] | None:
    go, hold = os.pipe()
    children: dict[int, int] = {}
    """The end of a pipe that we read from, and the process at its other end."""
    results = None
    try:
        try:
            for number in range(count):
                ours, theirs = os.pipe()
                children[ours] = 0
                try:
                    children[ours] = pid = _fork()
                    if pid == 0:
                        os.close(hold)
                        _child(theirs, go, partial(make_works, number), seconds)
                finally:
                    os.close(theirs)
            ready = _receive(children, len(_READY), grace)
        finally:
            os.close(hold)  # who waits at the other end finds that nothing will come, and begins
            os.close(go)
        if ready is not None:
            results = _receive(children, _RESULT.size, seconds + grace)
    except OSError:  # no more processes are to be had
        pass
    finally:
        _end(children)
    return results


def _end(children: dict[int, int]) -> None:
    """End all processes; there is nothing in them to be saved."""
    for end, pid in children.items():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.close(end)


def _fork() -> int:
    """Fork as the loader does by default. An interrupt must not find the child before it can die of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    pid = -1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of some library may be about
            pid = os.fork()
        return pid
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(out: int, go: int, make_works: Callable[[], Sequence[Work]], seconds: float) -> NoReturn:
    """What a process does."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        works = make_works()
        for work in works:
            work()  # what is done only once
        os.write(out, _READY)
        os.read(go, 1)
        os.write(out, _RESULT.pack(*run_threads(works, seconds)))
        status = 0
    finally:
        os._exit(status)


def _receive(children: dict[int, int], size: int, timeout: float) -> list[bytes] | None:
    """So many bytes from each process; None if one does not send them in time, or somebody is impatient."""
    until = time.monotonic() + timeout
    waiting, received = set(children), []
    while waiting:
        poll = select.poll()  # ``select`` itself knows descriptors below 1024 only
        for end in waiting:
            poll.register(end, select.POLLIN)
        left = until - time.monotonic()
        readable = poll.poll(max(0, int(1000 * min(left, _LOOK))))
        if impatient() or (not readable and left <= _LOOK):
            return None
        for end, _ in readable:
            data = os.read(end, size)  # so few bytes come in one piece
            if len(data) != size:
                return None
            received.append(data)
            waiting.discard(end)
    return received
