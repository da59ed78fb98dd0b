"""Start the shared host as a process that has nothing to do with the job that happened to start it."""

from __future__ import annotations

import importlib.util
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from headrace.core import environment
from headrace.core.errors import HostUnavailable

_LOG_LIMIT = 1 << 20
"""Bytes of the log above which it is begun anew."""
_TAIL = 20
"""Lines of the log in an error."""

# Starts the host as a grandchild of the job, so that it is nobody's zombie, and nobody who ends the job's children
# ends it too. Stays until the job has found a host (its stdin ends) or the host has ended, and then tells how.
_STARTER = """
import os, select, signal, sys
host = os.fork()
if not host:
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(sys.argv[1], sys.argv[1:])
poll = select.poll()
poll.register(0, select.POLLIN)
while not poll.poll(20):
    ended, status = os.waitpid(host, os.WNOHANG)
    if ended:
        status = os.waitstatus_to_exitcode(status)
        os._exit(status if status >= 0 else 128 - status)
os._exit(0)
"""


def host_command() -> list[str]:
    """What starts a host."""
    # -P: it runs in /, which is no place to import from.
    return [sys.executable, "-P", "-m", "headrace.host.service"]


class Launch:
    """A host that is being started, in a session of its own and logging to a file."""

    def __init__(self, directory: str, log: str, command: Sequence[str]) -> None:
        if not sys.executable:
            raise HostUnavailable("the shared host cannot be started: this program does not know its Python")
        self._log = log
        try:
            out = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if os.fstat(out).st_size > _LOG_LIMIT:
                    os.ftruncate(out, 0)
                self._log_start = os.fstat(out).st_size
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _STARTER, *command],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    cwd="/",
                    env=_environment(directory),
                    start_new_session=True,
                )
            finally:
                os.close(out)
        except OSError as error:
            raise HostUnavailable(f"the shared host cannot be started: {error}") from error

    def status(self) -> int | None:
        """With which status it ended (128 and the signal's number, if by one); None while it runs."""
        return self._process.poll()

    def said(self) -> str:
        """The end of what was logged since, for an error."""
        try:
            with open(self._log, "rb") as file:
                file.seek(self._log_start)
                lines = file.read(2 * _LOG_LIMIT).decode(errors="replace").splitlines()[-_TAIL:]
        except OSError:
            lines = []
        if not lines:
            return f"It wrote nothing to {self._log}."
        return "\n  ".join([f"The end of {self._log}:", *lines])

    def close(self) -> None:
        """Leave the host alone. The process that started it is gone after this."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _environment(directory: str) -> dict[str, str]:
    """The job's environment, made independent of where the job runs."""
    found = environment.of_host(directory)
    paths = [os.path.abspath(path) for path in found.get("PYTHONPATH", "").split(os.pathsep) if path]
    # The job may have found headrace, and what headrace needs, by its working directory or a path of its own.
    known = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    usual = {os.path.realpath(path) for path in (*known, *site.getsitepackages())}
    for package in ("headrace", "msgspec", "numpy"):
        spec = importlib.util.find_spec(package)
        file = spec.origin if spec is not None else None
        root = str(Path(file or __file__).resolve().parents[1])
        if root not in usual and root not in paths:
            paths.append(root)
    if paths:
        found["PYTHONPATH"] = os.pathsep.join(paths)
    return found
