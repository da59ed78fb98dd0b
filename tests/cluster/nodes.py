"""Node servers for tests: in this process, each with its own memory, sockets and certificate."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import simplejpeg

import headrace as hr
from headrace.cluster import members
from headrace.cluster.certificates import make_certificate
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.limits import limit_of
from headrace.cluster.messages import Node, View
from headrace.cluster.pooled import Pool, PooledSource
from headrace.cluster.rows import TLS
from headrace.cluster.server import NodeServer
from headrace.recipes.plain import source_to_plain
from headrace.sources.source import Source

needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None,
    reason="needs NIXL: make test-slow has it",
)
TOKEN = "the token of this cluster"


class Servers:
    """Some node servers that know of each other."""

    def __init__(self, folder: Path, count: int = 3, memory: int = 64 << 20) -> None:
        self.folder = folder
        self.servers: dict[str, NodeServer] = {}
        self.nodes: dict[str, Node] = {}
        self.log: list[str] = []
        self.helpers: list[Helpers] = []
        self._number = 0
        for number in range(count):
            self.add(f"n{number}", memory)
        self.tell()

    def help(self, name: str, count: int = 1, transport: str = TLS, code: tuple[str, ...] = ()) -> Helpers:
        """Start helpers of a server's, as processes; nobody knows of them before ``tell``. They do not step back:
        while other tests take all processors, they would never run."""
        node = self.nodes[name]
        config = Config(name, "127.0.0.1", TOKEN, node.socket, code=code, transport=transport, idle=False)
        made = Helpers(config, count)
        made.look(wait=True)
        self.nodes[name] = msgspec.structs.replace(node, helpers=made.all, code=code)
        self.helpers.append(made)
        return made

    def add(self, name: str, memory: int = 64 << 20) -> Node:
        """Start one; nobody knows of it before ``tell``."""
        context, fingerprint = make_certificate(name)
        server = NodeServer(name, token=TOKEN, memory=memory, log=self.log.append)
        path = str(self.folder / f"{name}.sock")
        server.listen_unix(path)
        port = server.listen_tls("127.0.0.1", context)
        node = Node(name, os.urandom(4).hex(), "127.0.0.1", port, fingerprint, memory, path)
        self.servers[name], self.nodes[name] = server, node
        return node

    def tell(self, nodes: Iterable[Node] | None = None) -> View:
        """Tell all servers of a view: of all of them, or of some."""
        self._number += 1
        view = View(self._number, tuple(self.nodes.values()) if nodes is None else tuple(nodes))
        for server in self.servers.values():
            server.see(view)
        return view

    def lose(self, name: str) -> None:
        """End one, without a word to the others."""
        self.servers.pop(name).close()

    def pool(self, source: Source, at: str = "n0") -> Pool:
        """How a job on a node finds a dataset."""
        plain = source_to_plain(source)
        definition = json.dumps(plain).encode()
        return Pool(self.nodes[at].socket, source.fingerprint(), definition, limit_of(plain))

    def pooled(self, source: Source, at: str = "n0") -> PooledSource:
        """The dataset for a job on that node."""
        return PooledSource(source, self.pool(source, at))

    @property
    def fetched(self) -> int:
        """Samples that were read from storage."""
        return sum(server.fetcher.fetched for server in self.servers.values())

    def close(self) -> None:
        """End all of them."""
        for helpers in self.helpers:
            helpers.close()
        for server in self.servers.values():
            server.close()


def forget_members() -> None:
    """This process knows no servers any more."""
    for _, found in members._here.values():
        found.close()
    members._here.clear()


def make_files(folder: Path, count: int = 120, nbytes: int = 3000) -> Source:
    """A folder of files, each with bytes of its own."""
    (folder / "a").mkdir(parents=True)
    for number in range(count):
        (folder / "a" / f"{number:04d}.bin").write_bytes(
            number.to_bytes(4, "little") * ((nbytes + number) // 4)
        )
    return hr.folder(folder, extensions=(".bin",))


def write_photos(folder: Path, count: int) -> None:
    """Small JPEG images, each of its own."""
    drawn = np.random.default_rng(0)
    for number in range(count):
        pixels = np.kron(drawn.integers(0, 255, (24, 32, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
        (folder / f"{number:03d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))


def write_large_photos(folder: Path, count: int) -> None:
    """JPEG images that take long to decode, in two classes."""
    drawn = np.random.default_rng(0)
    for number in range(count):
        pixels = np.kron(drawn.integers(0, 255, (30, 40, 3), np.uint8), np.ones((40, 40, 1), np.uint8))
        into = folder / f"c{number % 2}"
        into.mkdir(parents=True, exist_ok=True)
        (into / f"{number:03d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
