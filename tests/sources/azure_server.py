"""A real server of Azure's protocol (Azurite) for tests, on a free port of this machine, in a folder of its own."""

from __future__ import annotations

import atexit
import base64
import contextlib
import email.utils
import functools
import hashlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.sources.s3_server import _end_with_us, free_ports

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that the server knows by itself: everybody knows its key."""
_PROGRAM = Path(__file__).parents[2] / ".azurite/node_modules/.bin/azurite-blob"
_PATIENCE = 60.0


class AzureServer:
    """A server that runs, with a container called "tests"."""

    container = "tests"

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.port = port

    @property
    def options(self) -> dict[str, Any]:
        """``storage_options`` for it."""
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.endpoint}

    def store(self) -> Any:
        """A client of the test's own."""
        from obstore.store import AzureStore

        return AzureStore(self.container, config=self.options, client_options={"allow_http": True})

    def put(self, prefix: str, objects: Mapping[str, bytes]) -> None:
        """Put objects below a prefix, many at a time."""
        import obstore

        store = self.store()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda one: obstore.put(store, f"{prefix}/{one[0]}", one[1]), objects.items()))

    def make_container(self) -> None:
        """The library has no verb for it."""
        date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
        said = (
            "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{self.container}\nrestype:container"
        )
        digest = hmac.new(base64.b64decode(KEY), said.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        url = f"{self.endpoint}/{self.container}?restype=container"
        urlopen(Request(url, method="PUT", headers=headers), timeout=30).close()


@functools.cache
def azure_server() -> AzureServer:
    """The server that all tests of this process share: it is started when it is first needed, and ends with it."""
    found = str(_PROGRAM) if _PROGRAM.exists() else shutil.which("azurite-blob")
    if found is None or shutil.which("node") is None:
        pytest.skip("there is no server of Azure's protocol here: it needs npm, and then: make azurite")
    pytest.importorskip("obstore", reason="obstore is not installed")
    (port,) = free_ports(1)
    place, mine = tempfile.mkdtemp(prefix="hr-azure-"), os.getpid()
    with open(Path(place, "log"), "wb") as out:
        process = subprocess.Popen(
            [found, "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", place,
             "--blobPort", str(port)],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=place, start_new_session=True,
            preexec_fn=_end_with_us,
        )  # fmt: skip

    def end() -> None:
        if os.getpid() == mine:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(end)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            if time.monotonic() > until or process.poll() is not None:
                said = Path(place, "log").read_text()[-2000:]
                raise RuntimeError(f"the server of Azure's protocol does not answer: {said}") from None
            time.sleep(0.05)
    server = AzureServer(port)
    server.make_container()
    return server
