"""A node server as an actor of Ray's: one process on each node."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.cluster.certificates import make_certificate
from headrace.cluster.found import socket_of, sweep
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.members import allow_descriptors
from headrace.cluster.messages import Node, View, decode_reply, encode
from headrace.cluster.ports import ANY, Ports, check_room
from headrace.cluster.rails import rails_of
from headrace.cluster.rows import TLS
from headrace.cluster.server import NodeServer
from headrace.core.errors import MissingExtra, OptionError
from headrace.core.memory import available_memory, total_memory, usable_cpus
from headrace.core.sizes import parse_size, show_size

NAMESPACE = "headrace"
SERVER = "headrace-node-"
"""How the actors are called, before the node."""


def import_ray() -> Any:
    """Ray, or an error that says how to install it."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "a cluster") from None
    return ray


@dataclass(frozen=True)
class Terms:
    """What a cluster was started with."""

    memory: str
    """Of each node, for samples."""
    cpus: int = -1
    """Helpers of each node; -1: as many as it has CPUs."""
    ports: Ports = ANY
    code: tuple[str, ...] = ()
    """Modules whose code helpers may run."""
    transport: str = TLS
    """How they send rows."""


class NodeActor:
    """See above."""

    def __init__(self, node: str, token: str, terms: Terms) -> None:
        ray = import_ray()
        step_forward()
        allow_descriptors()
        helpers = usable_cpus() if terms.cpus < 0 else terms.cpus
        check_room(terms.ports, helpers)
        budget = budget_of(terms.memory)
        sweep()
        path = socket_of(node)
        host = ray.util.get_node_ip_address()
        context, fingerprint = make_certificate(node)
        self._server = NodeServer(node, token=token, memory=budget, log=log)
        self._known: set[str] = set()
        """Nodes that had a server at some time."""
        self._server.listen_unix(path)
        rails = rails_of(host)
        port = self._server.listen_tls(host, context, terms.ports, rails)
        self._self = Node(
            node, secrets.token_hex(8), host, port, fingerprint, budget, path, rails=rails, code=terms.code
        )
        self._helpers = Helpers(
            Config(node, host, token, path, rails, terms.ports, terms.code, terms.transport), helpers
        )

    def describe(self) -> bytes:
        """Where it is. It is also how others know that it is well."""
        self._helpers.look()
        return msgspec.msgpack.encode(msgspec.structs.replace(self._self, helpers=self._helpers.all))

    def see(self, view: bytes, unheard: list[str]) -> tuple[int, list[str]]:
        """Other servers have come or gone, and of some nodes a manager has heard nothing yet. The number of the view
        that it has; and those of these nodes that had a server before: a manager that has just been restarted cannot
        know."""
        found = decode_reply(view)
        assert isinstance(found, View)
        known = [node for node in unheard if node in self._known]
        self._known.update(one.id for one in found.nodes)
        return self._server.see(found), known

    def status(self) -> bytes:
        """How it stands."""
        return encode(self._server.status())

    def close(self) -> None:
        """End it."""
        self._server.close()
        self._helpers.close()
        with contextlib.suppress(OSError):
            os.unlink(self._self.socket)


def step_forward() -> None:
    """Be no less urgent than what trains. Ray has its processes step back for all others; but who waits for a node
    server, others train with. Few are allowed to (root is): else it stays as it is."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, int(thread)) > 0:
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def budget_of(memory: str) -> int:
    """Bytes that a server here holds samples in."""
    budget = parse_size(memory, total=available_memory(), option="memory")
    # (it is taken once, and filled later: more than there is would be found out by whatever else runs here)
    if budget > total_memory():
        raise OptionError(
            f"--memory {memory} is {show_size(budget)}, but there are only {show_size(total_memory())} on this node"
        )
    return budget


def log(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)
