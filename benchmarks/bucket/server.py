"""The benchmark's side of the S3 server: start it, ask it, be rid of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bucket import keeper, network
from benchmarks.common.progress import say
from benchmarks.common.tree import adopt_orphans

REPOSITORY = Path(__file__).resolve().parents[2]
BUCKET = "photos"
FOLDER = "server-"
"""What the folders of servers begin with; then the process that they belong to."""


class NoServer(RuntimeError):
    """There is no server; the message says why."""


@dataclass(frozen=True)
class Counters:
    """What a server did up to a moment, or between two."""

    requests: int
    by_kind: dict[str, int]
    received: int
    sent: int
    cpu_s: float

    @property
    def bytes(self) -> int:
        """Over the cable, both ways."""
        return self.received + self.sent

    def since(self, before: Counters) -> Counters:
        """The difference."""
        kinds = {kind: number - before.by_kind.get(kind, 0) for kind, number in self.by_kind.items()}
        return Counters(
            self.requests - before.requests,
            {kind: number for kind, number in kinds.items() if number},
            self.received - before.received,
            self.sent - before.sent,
            self.cpu_s - before.cpu_s,
        )


def ask(path: Path) -> Counters:
    """What the keeper behind a socket says. Costs the cable nothing."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except OSError as error:
        raise NoServer(f"The server's keeper does not answer: {error}") from error
    told: dict[str, Any] = json.loads(text)
    if "failed" in told:
        raise NoServer(told["failed"])
    return Counters(**told)


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    cable: network.Cable
    counters_at: Path
    """Where one asks what it did."""
    folder: Path
    """Where its files are; what else lies there goes with it, too."""
    endpoint: str = f"http://{network.SERVER}:{keeper.S3_PORT}"

    def counters(self) -> Counters:
        """What it did so far."""
        return ask(self.counters_at)


def loaders_environment(endpoint: str) -> dict[str, str]:
    """What tells S3 clients where the bucket is and who they are, in the places where they look."""
    return {
        "AWS_ACCESS_KEY_ID": keeper.KEY,
        "AWS_SECRET_ACCESS_KEY": keeper.SECRET,
        "AWS_REGION": keeper.REGION,
        "AWS_DEFAULT_REGION": keeper.REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "S3_ENDPOINT_URL": endpoint,
    }


@contextlib.contextmanager
def serve(data: Path, weed: Path) -> Iterator[Server]:
    """A server with an empty bucket, in a namespace of its own; its files are below ``data`` and go with it."""
    network.check()
    sweep(data)
    owner = os.getpid()
    cable, folder = network.Cable.of(owner), data / f"{FOLDER}{owner}"
    folder.mkdir(parents=True)
    process = None
    try:
        cable.lay()
        # (had an earlier run made this process adopt orphans, the keeper would become its child again)
        adopt_orphans(False)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bucket.keeper", str(owner), str(weed), str(folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        process.wait()
        assert process.stdout is not None
        told = process.stdout.readline().strip()
        if told != "ready":
            raise NoServer(told or "the server's keeper ended without a word")
        yield Server(cable, keeper.counters_at(owner), folder)
    finally:
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.read()  # ends when the keeper has
        keeper.clear(owner, folder)


def sweep(data: Path) -> None:
    """Take away what killed benchmarks left."""
    left = network.sweep()
    folders = [(FOLDER, folder) for folder in data.glob(f"{FOLDER}*")]
    folders += [(network.PREFIX, folder) for folder in Path("/tmp").glob(f"{network.PREFIX}*")]
    for prefix, folder in folders:
        owner = folder.name.removeprefix(prefix)
        if owner.isdigit() and not Path("/proc", owner).exists():
            left.append(folder.name)
            keeper.clear(int(owner), folder)
    if left:
        say(f"an earlier benchmark was killed; removed {', '.join(sorted(left))}")
