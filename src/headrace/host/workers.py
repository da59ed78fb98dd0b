"""Worker processes: start, watch, replace, stop."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import select
import signal
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.cache.arena import Arena
from headrace.channel import unix
from headrace.channel.channel import REPLY_LIMIT, Channel, send_within
from headrace.coordinate.messages import Command, Event, Stop, decode_event, encoder
from headrace.core.errors import ProtocolError, WorkerDied
from headrace.core.interrupts import held, impatient
from headrace.engine.board import Board
from headrace.engine.link import Link
from headrace.engine.worker import Portable, Task, worker_main
from headrace.host.client import SharedClient

_NAME = "headrace-worker-"
_UNGUARDED = 113
"""How a process ends that was to be a worker and found out that it would start workers itself."""
GUARD = (
    "Each worker imports the script that runs, because multiprocessing's start method is {method!r}, and the script "
    "iterates its loader as soon as it is imported. Put what it does into the main guard:\n\n"
    '    if __name__ == "__main__":\n'
    "        for batch in loader:\n"
    "            ...\n\n"
    'or pass multiprocessing_context="fork" to the loader.'
)
"""What to do about a script that cannot be imported."""

_processes: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown() -> None:
    """In a child that the job forked: multiprocessing would end the job's workers when that child exits."""
    children: set[Any] = getattr(multiprocessing.process, "_children", set())
    children.difference_update(_processes)


os.register_at_fork(after_in_child=_disown)


@dataclass(eq=False)
class Worker:
    """A worker process as its host sees it."""

    id: int
    claimer: int
    process: Any
    channel: Channel
    pidfd: int
    pid: int
    ready: bool = False
    """Whether it said that it works."""

    def why_it_never_began(self, method: str) -> str:
        """For one that ended by itself before it was ready: why the next one would end like it; else empty."""
        code = self.process.exitcode
        if self.ready or code is None or code <= 0 or method == "fork":
            return ""
        if code == _UNGUARDED:
            return GUARD.format(method=method)
        return (
            f"{self.how_it_ended()} while it was starting; what it printed says why. Under the start method "
            f"{method!r}, a worker first imports the script that runs, which has to be a file with a main guard, and "
            "what the loader was given."
        )

    def how_it_ended(self) -> str:
        """How the process ended, for people."""
        code = self.process.exitcode
        if code is None:
            return f"worker {self.id} (pid {self.pid}) closed its link"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            hint = ", perhaps by the out-of-memory killer" if name == "SIGKILL" else ""
            return f"worker {self.id} (pid {self.pid}) was killed by {name}{hint}"
        return f"worker {self.id} (pid {self.pid}) exited with status {code}"


class Workers:
    """The worker processes of one host."""

    def __init__(
        self, task: Task, context: Any, arena: Arena, board: Board, shared: SharedClient | None = None
    ) -> None:
        self._task = Portable(task)
        self._context = context
        self._arena, self._board, self._shared = arena, board, shared
        self._poll = select.poll()
        self._by_fd: dict[int, Worker] = {}
        self.all: dict[int, Worker] = {}
        """By worker id."""
        self._tickets = 0
        self._buffer = memoryview(bytearray(unix.INLINE))
        """For messages: to make one so large for each of them would cost more than all the rest."""

    @property
    def method(self) -> str:
        """How processes are started."""
        return str(self._context.get_start_method())

    def start(self, worker_id: int) -> Worker:
        """Start one worker process."""
        method = self.method
        _check_guard(method)
        ours, theirs = unix.pair(self._buffer)
        link = Link(worker_id, self._tickets, self._arena, self._board, theirs)
        close: list[int] = []
        if method == "fork":
            close = [worker.channel.fileno() for worker in self.all.values()] + [ours.fileno()]
            if self._shared is not None and self._shared.fileno() >= 0:
                close.append(self._shared.fileno())
        process = self._context.Process(
            target=worker_main,
            args=(link, self._task, close),
            name=f"{_NAME}{worker_id}",
            daemon=True,
        )
        try:
            # (another thread may take a signal that is blocked here; what is raised while a process forks is lost)
            with held(), _interrupts_blocked(self._context):
                process.start()
        except BaseException as error:
            ours.close()
            if method == "forkserver" and isinstance(error, EOFError | ConnectionError):
                # The server may import the script itself, once for all workers, and has not survived it.
                raise WorkerDied(f"no worker could be started. {GUARD.format(method=method)}") from error
            raise
        finally:
            theirs.close()
        _processes.add(process)
        pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else os.dup(process.sentinel)
        worker = Worker(worker_id, self._tickets, process, ours, pidfd, process.pid)
        self._tickets += 1
        self.all[worker_id] = worker
        for fd in (ours.fileno(), pidfd):
            self._by_fd[fd] = worker
            self._poll.register(fd, select.POLLIN)
        return worker

    def wait(self, timeout: float | None, also: int = -1) -> tuple[list[tuple[Worker, Event]], list[Worker]]:
        """Wait for something to happen: the events that arrived, and the workers that died.

        ``also``: a descriptor that ends the wait, too.
        """
        if also >= 0:
            self._poll.register(also, select.POLLIN)
        try:
            ready = self._poll.poll(None if timeout is None else max(0, int(timeout * 1000 + 0.999)))
        finally:
            if also >= 0:
                self._poll.unregister(also)
        events: list[tuple[Worker, Event]] = []
        dead: list[Worker] = []
        for fd, _ in ready:
            if fd == also:
                continue
            worker = self._by_fd[fd]
            gone = fd == worker.pidfd
            ended = False
            # Everything that a worker said before it died still counts.
            for message in self._receive(worker.channel):
                if message:
                    events.append((worker, decode_event(message)))
                else:
                    ended = True
            if (gone or ended) and worker not in dead:
                dead.append(worker)
        return events, dead

    def send(self, worker: Worker, command: Command) -> None:
        """Tell a worker; one that is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            send_within(worker.channel, None, encoder.encode(command))

    def bury(self, worker: Worker) -> None:
        """Forget a dead worker (and make sure that it is dead)."""
        if worker.process.is_alive():
            worker.process.join(0.5)
            if worker.process.is_alive():
                worker.process.kill()
        worker.process.join()
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        for fd in (worker.channel.fileno(), worker.pidfd):
            self._poll.unregister(fd)
            del self._by_fd[fd]
        worker.channel.close()
        os.close(worker.pidfd)
        if self.all.get(worker.id) is worker:
            del self.all[worker.id]

    def stop(self, patience: float) -> None:
        """Stop all workers: politely, then, after ``patience`` seconds, not."""
        workers = list(self.all.values())
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.channel.send(encoder.encode(Stop()))
        deadline = time.monotonic() + patience
        for act in (None, "terminate", "kill"):
            for worker in workers:
                if act is not None and worker.process.is_alive():
                    getattr(worker.process, act)()
            for worker in workers:
                self._drain_until_gone(worker, deadline)
            deadline = time.monotonic() + 1.0
        for worker in workers:
            worker.process.join()
            self._forget(worker)

    def _drain_until_gone(self, worker: Worker, deadline: float) -> None:
        # A worker that is sending its last event must not block on a full socket while we wait for it.
        while worker.process.is_alive() and time.monotonic() < deadline and not impatient():
            for _ in self._receive(worker.channel):
                pass
            worker.process.join(0.02)

    @staticmethod
    def _receive(channel: Channel) -> Iterator[bytes]:
        """Messages that are there now; an empty one last if the other end is closed."""
        while True:
            try:
                received = channel.receive(REPLY_LIMIT)
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, ProtocolError):
                received = None
            if received is None:
                yield b""
                return
            yield received[0]


def _check_guard(method: str) -> None:
    """End a process that imports the script of another one to become its worker, and would now start workers itself.

    It does so without a word: the one that started it says what happened, once.
    """
    process = multiprocessing.process.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name.startswith(_NAME):
        os._exit(_UNGUARDED)
    raise RuntimeError(GUARD.format(method=method))


@contextlib.contextmanager
def _interrupts_blocked(context: Any) -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal: a worker inherits this mask and is safe until it ignores it."""
    method = context.get_start_method()
    if method == "forkserver":  # which would keep the mask for all that it ever forks
        yield
        return
    if method == "spawn":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # starting it would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
