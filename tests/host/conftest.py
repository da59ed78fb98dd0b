"""A runtime directory for each test, with a path that is short enough for a socket."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headrace.host import runtime


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which a test's host lives; it is ended afterwards, if one is left."""
    directory = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    home = directory / "run"
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(home))
    yield home
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(home))
    with suppress(Exception):
        channel = runtime.connect(1.0)
        if channel is not None:
            with closing(channel):
                pid = channel.peer.pid
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)
