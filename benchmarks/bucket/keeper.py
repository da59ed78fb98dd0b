"""Keeps the S3 server: starts it in its namespace, says what it did so far, and takes everything away in the end.

    python -m benchmarks.bucket.keeper OWNER WEED FOLDER

It is no child of the benchmark, because a measured run counts, and ends, whatever its benchmark has started. It
lives until the benchmark closes its standard input, which also happens when that is killed. One line on standard
output says ``ready``, or what went wrong. Whoever connects to ``counters_at(OWNER)`` is sent one JSON object.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.bucket import network
from benchmarks.common.tree import read_stat

KEY, SECRET, REGION = "bucket-bench", "bucket-bench-is-no-secret", "us-east-1"
"""What the loaders sign their requests with. The server lives for one benchmark and can be reached from nowhere."""
S3_PORT, METRICS_PORT = 8333, 9327
MEMORY = "1GiB"
VOLUME_MB, VOLUMES = 1024, 16
START_S = 60.0
_PR_SET_PDEATHSIG = 1
_REQUESTS = re.compile(r"^SeaweedFS_s3_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_KIND = re.compile(r'type="([^"]*)"')


def count_requests(metrics: str) -> dict[str, int]:
    """Requests by kind, out of what the server says of itself. HEAD counts as GET there."""
    found: dict[str, int] = {}
    for labels, number in _REQUESTS.findall(metrics):
        kind = _KIND.search(labels)
        name = kind.group(1) if kind else "?"
        found[name] = found.get(name, 0) + round(float(number))
    return found


def run_folder(owner: int) -> Path:
    """Where a server's sockets are: their paths have to be short."""
    return Path(f"/tmp/{network.PREFIX}{owner}")


def counters_at(owner: int) -> Path:
    """Where one asks what a server did."""
    return run_folder(owner) / "counters"


def ports(owner: int) -> dict[str, int]:
    """Ports of the server's parts. Sockets in /tmp are named after them, and all servers of a machine share that."""
    first = 11000 + 8 * (owner % 1000)
    return {part: first + number for number, part in enumerate(("master.port", "volume.port", "filer.port"))}


def sockets(owner: int) -> list[Path]:
    """Where those sockets are."""
    names = {part.partition(".")[0]: port + 10000 for part, port in ports(owner).items()}
    names["s3"] = ports(owner)["filer.port"] + 10001
    return [Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock") for name, port in names.items()]


def command(weed: str, folder: Path, owner: int) -> list[str]:
    """How the server is started: light, told to call nobody, its own talk kept inside of its namespace."""
    options = {
        "dir": folder / "server",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.ip.bind": network.SERVER,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": VOLUME_MB,
        "volume.max": VOLUMES,
        "filer": "true",
        "filer.localSocket": run_folder(owner) / "filer",
        "s3": "true",
        "s3.port": S3_PORT,
        "s3.port.grpc": ports(owner)["filer.port"] + 10001,
        "s3.localSocket": run_folder(owner) / "s3",
        "s3.config": folder / "s3.json",
        "s3.iam": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "metricsIp": "127.0.0.1",
        "metricsPort": METRICS_PORT,
        **ports(owner),
    }
    return [weed, "-logtostderr", "server", *(f"-{name}={value}" for name, value in options.items())]


class Keeper:
    """The server, and who asks about it."""

    def __init__(self, owner: int, weed: str, folder: Path) -> None:
        self.owner, self.folder, self.cable = owner, folder, network.Cable.of(owner)
        network.enter(self.cable.server)
        (folder / "server").mkdir(parents=True, exist_ok=True)
        run_folder(owner).mkdir(mode=0o700)
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Write"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        with open(folder / "server.log", "wb") as log:
            self.server = subprocess.Popen(
                command(weed, folder, owner),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "GOMEMLIMIT": MEMORY},
                preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(counters_at(owner)))
        self.listener.listen()

    def wait_until_ready(self) -> str:
        """An empty string, or why it does not come."""
        until = time.monotonic() + START_S
        url = f"http://{network.SERVER}:{S3_PORT}/status"
        while time.monotonic() < until:
            if self.server.poll() is not None:
                return f"the server ended with {self.server.returncode}: {self.last_words()}"
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
                return ""
            time.sleep(0.1)
        return f"the server did not answer within {START_S:.0f} s: {self.last_words()}"

    def last_words(self) -> str:
        """The end of the server's log."""
        lines = (self.folder / "server.log").read_text(errors="replace").splitlines()
        return lines[-1][-300:] if lines else "it said nothing"

    def counters(self) -> dict[str, Any]:
        """What happened so far: requests, bytes over the cable (seen from the server), its CPU seconds."""
        received, sent = network.moved()
        stat = read_stat(self.server.pid)
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=10) as answer:
            by_kind = count_requests(answer.read().decode())
        return {
            "requests": sum(by_kind.values()),
            "by_kind": by_kind,
            "received": received,
            "sent": sent,
            "cpu_s": stat.own_s if stat else 0.0,
        }

    def serve(self) -> None:
        """Answer until the benchmark is gone."""
        selector = selectors.DefaultSelector()
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.listener:
                    self.answer()
                elif not os.read(sys.stdin.fileno(), 1 << 10):
                    return

    def answer(self) -> None:
        """Tell one who asks."""
        connection, _ = self.listener.accept()
        with connection, contextlib.suppress(OSError):
            try:
                told = self.counters()
            except OSError as error:
                told = {"failed": f"the server does not answer ({error}): {self.last_words()}"}
            connection.sendall(json.dumps(told).encode())

    def close(self) -> None:
        """End the server; take away its data and both namespaces."""
        self.server.kill()  # (it would take its time to save what is thrown away)
        self.server.wait()
        self.listener.close()
        clear(self.owner, self.folder)


def clear(owner: int, folder: Path) -> None:
    """Take away what a keeper has, or has left."""
    network.Cable.of(owner).remove()
    for place in (folder, run_folder(owner)):
        shutil.rmtree(place, ignore_errors=True)
    for path in sockets(owner):
        path.unlink(missing_ok=True)


def main() -> None:
    """Leave the benchmark's tree of processes, start the server, keep it."""
    owner, weed, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    keeper = None
    try:
        keeper = Keeper(owner, weed, folder)
        reason = keeper.wait_until_ready()
        print(reason or "ready", flush=True)
        if not reason:
            keeper.serve()
    except OSError as error:
        print(error, flush=True)
    finally:
        if keeper is not None:
            keeper.close()
        else:
            clear(owner, folder)


if __name__ == "__main__":
    main()
