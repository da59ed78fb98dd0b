"""A worker process: from its start to its end."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

import cloudpickle

from headrace.coordinate.messages import Command, Failed, Ready
from headrace.core import environment
from headrace.engine.affinity import keep_to
from headrace.engine.link import Link

_TEXT = 32 * 1024
"""Characters of a traceback that travel: messages are limited, and so is what people read."""


AGENT = -1
"""The number of a worker that has its orders made elsewhere."""


class Runner(Protocol):
    """What a worker does with its orders."""

    def on_command(self, command: Command) -> None:
        """A command from the host, in the link's thread."""
        ...

    def serve(self) -> None:
        """Run orders until stopped, in the main thread."""
        ...


class Task(Protocol):
    """What a job's workers are to do. Inherited by a forked worker, cloudpickled to a spawned one."""

    def start(self, link: Link) -> Runner:
        """Set the worker up (seeds, ``worker_init_fn``) and return what runs its orders."""
        ...


class Settled:
    """A task whose workers keep to some of the CPUs each."""

    def __init__(
        self, task: Task, cpus: Sequence[frozenset[int]], agent: frozenset[int] = frozenset()
    ) -> None:
        """``cpus``: those of each worker. One with a number beyond the last begins again with the first. ``agent``:
        those of the worker with the number ``AGENT``, where it has some of its own."""
        self.task, self.cpus, self.agent = task, cpus, agent

    def start(self, link: Link) -> Runner:
        """See ``Task``."""
        return self.task.start(link)

    def settle(self, worker: int) -> None:
        """Called in a worker before all else: threads stay where they are started, and memory where it is first
        written."""
        keep_to((worker == AGENT and self.agent) or self.cpus[worker % len(self.cpus)])


class Portable:
    """A task on its way to another process: lambdas and local functions survive."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __reduce__(self) -> tuple[Callable[[bytes], Portable], tuple[bytes]]:
        return _unpack, (cloudpickle.dumps(self.task),)


def _unpack(data: bytes) -> Portable:
    return Portable(pickle.loads(data))


class RemoteError(Exception):
    """Carries a worker's exception: its type and arguments where they survive pickling, its traceback as text."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.error = error
        text = "".join(traceback.format_exception(error))
        if len(text) > _TEXT:
            text = (
                f"{text[: _TEXT // 4]}\n[... {len(text) - _TEXT} characters ...]\n{text[-_TEXT // 4 * 3 :]}"
            )
        self.text = text
        self.where = where

    def dumps(self) -> bytes:
        """Pickled for the job that started the worker."""
        kind = type(self.error)
        for what in (kind, None):
            try:
                data = cloudpickle.dumps((what, kind.__name__, self.text, self.where))
                pickle.loads(data)
                return bytes(data)
            except Exception:
                continue
        raise AssertionError("text always pickles")


def rebuild(data: bytes) -> BaseException:
    """The exception to raise in the job for one that a worker met: same type, the worker's traceback as text."""
    kind, name, text, where = pickle.loads(data)
    message = f"Caught {name} {where}.\nOriginal {text}"
    if kind is None or not issubclass(kind, Exception):
        # What would end the worker (SystemExit) must not end the job.
        return RuntimeError(message)
    if kind is KeyError:
        # KeyError shows the repr of its argument, which would fold the traceback into one line.
        return KeyErrorMessage(message)
    try:
        # Some exceptions take their text by name.
        error = kind(message=message) if getattr(kind, "message", None) else kind(message)
    except Exception:
        return RuntimeError(message)
    assert isinstance(error, BaseException)
    return error


class _Verbatim(str):
    def __repr__(self) -> str:
        return str(self)


def KeyErrorMessage(message: str) -> KeyError:  # noqa: N802
    """A KeyError whose message prints as it is."""
    return KeyError(_Verbatim(message))


def worker_main(link: Link, portable: Portable, close: Sequence[int]) -> None:
    """The body of a worker process."""
    if isinstance(portable.task, Settled):
        portable.task.settle(link.worker)
    # Collecting garbage would write to every inherited object, and so copy the memory that a fork shares.
    gc.freeze()
    for fd in close:
        # Ends of other workers' channels, inherited by fork: while open here, their owners would not see EOF.
        with contextlib.suppress(OSError):
            os.close(fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the job's to handle; it stops its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see Workers.start
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    link.attach()
    inbox = _Inbox()
    link.watch(inbox.on_command)  # before user code runs: a host that is gone ends this worker even then
    try:
        if link.worker != AGENT:  # (which has little to do, and others wait for it)
            _step_back()
        runner = portable.task.start(link)
    except BaseException as error:
        link.send(Failed(RemoteError(error, f"in DataLoader worker process {link.worker}").dumps()))
        return
    inbox.open(runner)
    link.send(Ready(os.getpid()))
    try:
        runner.serve()
    except BaseException as error:
        link.send(Failed(RemoteError(error, f"in DataLoader worker process {link.worker}").dumps()))
    sys.stdout.flush()
    sys.stderr.flush()


def _step_back() -> None:
    """Let the training loop have a CPU as soon as it wants one. Workers have batches ahead of it and can wait for a
    moment; when it waits, all ranks of its job do. (Where CPUs are enough, this changes nothing.)"""
    with contextlib.suppress(OSError):
        os.nice(environment.niceness())


class _Inbox:
    """Keeps commands that arrive before there is a runner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[Command] = []
        self._runner: Runner | None = None

    def on_command(self, command: Command) -> None:
        with self._lock:
            if self._runner is None:
                self._early.append(command)
                return
        self._runner.on_command(command)

    def open(self, runner: Runner) -> None:
        with self._lock:
            self._runner = runner
            for command in self._early:
                runner.on_command(command)
