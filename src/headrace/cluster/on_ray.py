"""A headrace cluster on a Ray cluster: Ray starts a node server on each node, restarts those that die, and keeps the
manager that knows of all of them.

Ray carries nothing but names, numbers and what is said here as plain bytes; samples go from server to process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.cluster.certificates import make_certificate
from headrace.cluster.found import socket_of, sweep
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.membership import Membership
from headrace.cluster.messages import Node, Status, View, decode_reply, encode
from headrace.cluster.rails import rails_of
from headrace.cluster.rows import TLS
from headrace.cluster.server import NodeServer
from headrace.core.errors import HostUnavailable, MissingExtra
from headrace.core.memory import available_memory, usable_cpus
from headrace.core.sizes import parse_size

NAMESPACE, MANAGER = "headrace", "headrace-manager"
_LOOK = 0.5
"""Seconds between two looks at who is there."""
_PATIENCE = 3.0
"""Seconds for a server to answer, before it is taken out of the view."""
_HOPELESS = 10.0
"""Seconds without an answer after which a server is ended, for Ray to start another."""
_START = 60.0
"""Seconds for a server to start."""

_node = msgspec.msgpack.Decoder(Node)


def import_ray() -> Any:
    """Ray, or an error that says how to install it."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "a cluster") from None
    return ray


class NodeActor:
    """A node server, as Ray runs it: one process on each node."""

    def __init__(self, node: str, token: str, memory: str, cpus: int, transport: str) -> None:
        """``cpus``: helpers; -1: as many as this node has CPUs. ``transport``: how they send rows."""
        ray = import_ray()
        budget = parse_size(memory, total=available_memory(), option="memory")
        sweep()
        path = socket_of(node)
        host = ray.util.get_node_ip_address()
        context, fingerprint = make_certificate(node)
        self._server = NodeServer(node, token=token, memory=budget, log=_log)
        self._server.listen_unix(path)
        rails = rails_of(host)
        port = self._server.listen_tls(host, 0, context, rails)
        self._self = Node(node, secrets.token_hex(8), host, port, fingerprint, budget, path, rails=rails)
        self._helpers = Helpers(
            Config(node, host, token, path, rails, transport), usable_cpus() if cpus < 0 else cpus
        )

    def describe(self) -> bytes:
        """Where it is. It is also how others know that it is well."""
        self._helpers.look()
        return msgspec.msgpack.encode(msgspec.structs.replace(self._self, helpers=self._helpers.all))

    def see(self, view: bytes) -> None:
        """Other servers have come or gone."""
        found = decode_reply(view)
        if isinstance(found, View):
            self._server.see(found)

    def status(self) -> bytes:
        """How it stands."""
        return encode(self._server.status())

    def close(self) -> None:
        """End it."""
        self._server.close()
        self._helpers.close()
        with contextlib.suppress(OSError):
            os.unlink(self._self.socket)


def _log(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)


class Manager:
    """Sees to it that every node of the Ray cluster has a server, and tells all of them of each other.

    It keeps nothing that it could not find out again: where Ray restarts it, it finds the servers by their names.
    """

    def __init__(self, token: str, memory: str, cpus: int, transport: str = TLS) -> None:
        self._ray = import_ray()
        self._token, self._memory, self._cpus, self._transport = token, memory, cpus, transport
        self._members = Membership(patience=_PATIENCE, hopeless=_HOPELESS, start=_START)
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._view = View(0)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-manager", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._look()
            except Exception as error:  # (Ray's own, of nodes that come and go)
                _log(f"{type(error).__name__}: {error}")
            self._closed.wait(_LOOK)

    def _look(self) -> None:
        ray, now = self._ray, time.monotonic()
        alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
        for node in [one for one in self._actors if one not in alive]:
            del self._actors[node]
            self._asked.pop(node, None)
        for node in alive - set(self._actors):
            self._actors[node] = self._start(node)
        for node, actor in self._actors.items():
            if node not in self._asked:
                self._asked[node] = actor.describe.remote()
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked) or 1, timeout=_LOOK)
        found: dict[str, Node] = {}
        for node, asked in list(self._asked.items()):
            if asked in ready:
                del self._asked[node]
                with contextlib.suppress(Exception):  # (it is being restarted)
                    found[node] = _node.decode(ray.get(asked))
        view, hopeless = self._members.heard(alive, found, now)
        for node in hopeless:
            _log(f"the server of node {node} does not answer; another is started")
            self._asked.pop(node, None)
            with contextlib.suppress(Exception):
                ray.kill(self._actors[node], no_restart=False)
        if view is not None:
            # (numbers go on after a restart of the manager)
            number = max(self._view.number + 1, int(time.time() * 1000))
            self._view = View(number, view)
        for one in self._view.nodes:
            # (again and again: a server that was restarted knows of none)
            if one.id in self._actors and (view is not None or one.id in found):
                self._actors[one.id].see.remote(encode(self._view))

    def _start(self, node: str) -> Any:
        ray = self._ray
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return (
            ray.remote(NodeActor)
            .options(
                name=f"headrace-node-{node}",
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=8,
                num_cpus=0,
                scheduling_strategy=affinity,
            )
            .remote(node, self._token, self._memory, self._cpus, self._transport)
        )

    def view(self) -> bytes:
        """The servers that there are."""
        return encode(self._view)

    def status(self) -> list[bytes]:
        """How each of them stands."""
        ray = self._ray
        asked = [
            self._actors[node.id].status.remote() for node in self._view.nodes if node.id in self._actors
        ]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE) if asked else ([], [])
        return [ray.get(one) for one in ready]

    def stop(self) -> None:
        """End all servers. The manager itself is ended by who called."""
        self._closed.set()
        self._thread.join(2 * _LOOK + _PATIENCE)
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self._ray.get(actor.close.remote(), timeout=_PATIENCE)
            self._ray.kill(actor)
        self._actors.clear()


# -- for the command --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to its cluster for a while; if this process is connected already, to that."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        _check_address(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, TimeoutError, socket.gaierror) as error:
        raise HostUnavailable(
            f"no Ray cluster was found ({error}); start one with: ray start --head, or say where it is with --address"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Whether anybody listens there: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5.0).close()


def _manager(ray: Any) -> Any:
    try:
        return ray.get_actor(MANAGER, namespace=NAMESPACE)
    except ValueError:
        return None


def start(ray: Any, memory: str, cpus: int = -1, transport: str = TLS, seconds: float = _START) -> View:
    """Have a server on every node; the view, once all of them are there. ``cpus``: helpers of each; -1: one for each
    CPU. ``transport``: how these send rows."""
    if _manager(ray) is None:
        ray.remote(Manager).options(
            name=MANAGER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=8,
            num_cpus=0,
        ).remote(secrets.token_hex(32), memory, cpus, transport)
    deadline = time.monotonic() + seconds
    while True:
        view = current(ray)
        wanted = sum(1 for one in ray.nodes() if one["Alive"])
        if view is not None and len(view.nodes) >= wanted:
            return view
        if time.monotonic() > deadline:
            there = 0 if view is None else len(view.nodes)
            raise HostUnavailable(
                f"{there} of {wanted} nodes have a server after {seconds:.0f} s; the others may lack headrace "
                "(pip install 'headrace[ray]' on each node), or see Ray's logs of the actors headrace-node-..."
            )
        time.sleep(0.2)


def current(ray: Any) -> View | None:
    """The servers that there are; None: there is no cluster."""
    manager = _manager(ray)
    if manager is None:
        return None
    found = decode_reply(ray.get(manager.view.remote(), timeout=_START))
    return found if isinstance(found, View) else None


def statuses(ray: Any) -> list[Status] | None:
    """How each server stands; None: there is no cluster."""
    manager = _manager(ray)
    if manager is None:
        return None
    found = [decode_reply(one) for one in ray.get(manager.status.remote(), timeout=_START)]
    return [one for one in found if isinstance(one, Status)]


def stop(ray: Any) -> bool:
    """End the cluster; False: there was none."""
    manager = _manager(ray)
    if manager is None:
        return False
    with contextlib.suppress(Exception):
        ray.get(manager.stop.remote(), timeout=_START)
    ray.kill(manager)
    return True
