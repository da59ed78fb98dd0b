"""Scripts in processes of their own that need not import torch first, which takes longer than most of them.

An interpreter has imported it, and each script runs in a fork of that one, as its ``__main__``, in a session of its
own, to the end that interpreters come to. Scripts about imports and starts need ``subprocess`` instead.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

_interpreter: socket.socket | None = None


class Script:
    """A script that runs, with ``subprocess.Popen``'s names for what tests need of it."""

    def __init__(self, path: Path, *arguments: str, environment: Mapping[str, str] = os.environ) -> None:
        pipes = [os.pipe() for _ in range(3)]
        # (the path of modules is for processes that the script starts)
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        order = {
            "words": [str(path), *arguments],
            "environment": {**environment, **paths},
            "directory": os.getcwd(),
        }
        socket.send_fds(connect(), [json.dumps(order).encode()], [theirs for _, theirs in pipes])
        for _, theirs in pipes:
            os.close(theirs)
        self.stdout: IO[str] = os.fdopen(pipes[0][0])
        self.stderr: IO[str] = os.fdopen(pipes[1][0])
        self._status = os.fdopen(pipes[2][0], "rb", buffering=0)
        self.pid = int.from_bytes(self._status.read(8), "little")
        self.returncode: int | None = None

    def send_signal(self, sign: int) -> None:
        """Send it a signal, if it is still there."""
        if self.returncode is None and not self._ended(0):
            os.kill(self.pid, sign)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 60) -> int:
        """Its exit status, when it is over."""
        if self.returncode is None:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired(f"script {self.pid}", timeout)
            self.returncode = int.from_bytes(self._status.read(8), "little", signed=True)
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """What it still wrote to its output and errors, when it is over."""
        said = ["", ""]

        def read(at: int, stream: IO[str]) -> None:
            with stream:
                said[at] = stream.read()

        readers = [threading.Thread(target=read, args=each) for each in enumerate((self.stdout, self.stderr))]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said[0], said[1]

    def _ended(self, timeout: float) -> bool:
        return bool(select.select([self._status], [], [], timeout)[0])


def run(path: Path, *arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    script = Script(path, *arguments)
    try:
        out, err = script.communicate(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess([str(path)], script.wait(), out, err)


def connect() -> socket.socket:
    """The interpreter of this process. It ends when this one does, and is no child of it: some tests count those."""
    global _interpreter
    if _interpreter is None:
        _interpreter, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.run(
                [sys.executable, "-u", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                check=True,
            )
    return _interpreter


def _serve(channel: socket.socket) -> str:
    """Fork for every order; returns in forks only, with the path of the script."""
    if os.fork():
        os._exit(0)
    import torch  # noqa: F401

    import headrace.loader.dataloader  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, streams, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for stream in streams:
            os.close(stream)
    channel.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = streams.pop()
    pid = os.fork()
    if pid:  # waits for the script, and says how it ended
        for stream in streams:
            os.close(stream)
        os.write(status, pid.to_bytes(8, "little"))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, code.to_bytes(8, "little", signed=True))
        os._exit(0)
    os.close(status)
    os.setsid()
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    order: dict[str, Any] = json.loads(message)
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None
    os.chdir(order["directory"])
    sys.argv[:] = order["words"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    return sys.argv[0]


if __name__ == "__main__":
    __file__ = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(compile(Path(__file__).read_text(), __file__, "exec"))
