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
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.cluster.certificates import make_certificate
from headrace.cluster.found import socket_of, sweep
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.members import allow_descriptors
from headrace.cluster.membership import Membership
from headrace.cluster.messages import Node, Status, View, decode_reply, encode
from headrace.cluster.ports import ANY, Ports, check_room
from headrace.cluster.rails import rails_of
from headrace.cluster.rows import TLS
from headrace.cluster.server import NodeServer
from headrace.core.errors import HostUnavailable, MissingExtra, OptionError
from headrace.core.memory import available_memory, total_memory, usable_cpus
from headrace.core.sizes import parse_size, show_size

NAMESPACE, MANAGER, _SERVER = "headrace", "headrace-manager", "headrace-node-"
_LOOK = 0.5
"""Seconds between two looks at who is there."""
_PATIENCE = 3.0
"""Seconds for a server to answer, before it is taken out of the view."""
_HOPELESS = 10.0
"""Seconds without an answer after which a server is ended, for Ray to start another. (One that died answers: Ray says
so. The next is given as long as the first.)"""
_AGAIN = 10.0
"""Seconds before a server that could not start is tried again."""
_START = 180.0
"""Seconds for a server to start: where many nodes read Python from one file server that takes a while."""

_INTERRUPTED = 10.0
"""Seconds for a manager that is no longer wanted to end what it has begun: it may be starting itself."""
_REMIND = 30.0
"""Seconds after which a server is told of a view again that it should know."""

_node = msgspec.msgpack.Decoder(Node)


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
    """A node server, as Ray runs it: one process on each node."""

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
        self._server = NodeServer(node, token=token, memory=budget, log=_log)
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

    def see(self, view: bytes) -> int:
        """Other servers have come or gone. The number of the view that it has."""
        found = decode_reply(view)
        return self._server.see(found) if isinstance(found, View) else 0

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


def _last_line(text: str) -> str:
    """What went wrong, of what Ray says of it."""
    return next((one.strip() for one in reversed(text.splitlines()) if one.strip()), "")


def _log(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)


class Manager:
    """Sees to it that every node of the Ray cluster has a server, and tells all of them of each other.

    It keeps nothing that it could not find out again: where Ray restarts it, it finds the servers by their names.
    """

    def __init__(self, token: str, terms: Terms) -> None:
        self._ray = import_ray()
        step_forward()
        self._token, self._terms = token, terms
        self._members = Membership(patience=_PATIENCE, hopeless=_HOPELESS, start=_START)
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        """By node: when its server could not start, and why."""
        self._view = View(0)
        self._told: dict[str, tuple[str, int, float]] = {}
        """By node: which server was told of a view last, of which, and when."""
        self._telling: list[Any] = []
        """What they have yet to answer to that."""
        self._seen = threading.Event()
        """All servers were heard: a manager that has just been restarted knows of none."""
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
            self._told.pop(node, None)
        for node in alive - set(self._actors):
            if now >= self._failed.get(node, (-_AGAIN, ""))[0] + _AGAIN:
                self._actors[node] = self._start(node)
        for node, actor in self._actors.items():
            if node not in self._asked:
                self._asked[node] = actor.describe.remote()
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked) or 1, timeout=_LOOK)
        found: dict[str, Node] = {}
        starting = []
        for node, asked in list(self._asked.items()):
            if asked in ready:
                del self._asked[node]
                try:
                    found[node] = _node.decode(ray.get(asked))
                    self._failed.pop(node, None)
                except ray.exceptions.RayActorError as error:  # (it is being restarted, or never will be)
                    if error.actor_init_failed:
                        self._failed[node] = now, _last_line(str(error))
                        del self._actors[node]
                    else:
                        starting.append(node)
                except Exception as error:
                    _log(f"node {node}: {type(error).__name__}: {error}")
        view, hopeless = self._members.heard(alive, found, now, starting)
        for node in hopeless:
            _log(f"the server of node {node} does not answer; another is started")
            self._asked.pop(node, None)
            with contextlib.suppress(Exception):
                ray.kill(self._actors[node], no_restart=False)
            # (it is found by its name again; or, where Ray has given it up, another takes it)
            self._actors.pop(node, None)
        if view is not None:
            # (numbers go on after a restart of the manager: mostly by the clock, else by what servers answer)
            number = max(self._view.number + 1, int(time.time() * 1000))
            self._view = View(number, view)
        self._hear()
        if len(self._view.nodes) >= len(self._actors):
            self._seen.set()
        self._tell(now)

    def _hear(self) -> None:
        """Go on from the highest number that a server has: that of an earlier manager, on a node whose clock is
        ahead. Until it hears a higher one, that server takes no view for a new one."""
        ray = self._ray
        if not self._telling:
            return
        ready, self._telling = ray.wait(self._telling, num_returns=len(self._telling), timeout=0)
        highest = self._view.number
        for one in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # (it has died, and will be told again)
                highest = max(highest, ray.get(one))
        if highest > self._view.number:
            self._view = View(highest + 1, self._view.nodes)

    def _tell(self, now: float) -> None:
        """Tell servers of the view, as far as they do not know it: of hundreds of nodes, it is half a megabyte."""
        said = b""
        for one in self._view.nodes:
            server, number, when = self._told.get(one.id, ("", -1, 0.0))
            known = (server, number) == (one.incarnation, self._view.number) and now < when + _REMIND
            if one.id in self._actors and not known:
                said = said or encode(self._view)
                self._telling.append(self._actors[one.id].see.remote(said))
                self._told[one.id] = one.incarnation, self._view.number, now

    def _start(self, node: str) -> Any:
        ray = self._ray
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return (
            ray.remote(NodeActor)
            .options(
                name=f"{_SERVER}{node}",
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=8,
                num_cpus=0,
                scheduling_strategy=affinity,
            )
            .remote(node, self._token, self._terms)
        )

    def view(self) -> bytes:
        """The servers that there are."""
        return encode(self._view)

    def failed(self) -> dict[str, str]:
        """Why some nodes have no server."""
        return {node: said for node, (_, said) in self._failed.items()}

    def status(self) -> list[bytes]:
        """How each of them stands."""
        ray = self._ray
        self._seen.wait(_PATIENCE)
        asked = [
            self._actors[node.id].status.remote() for node in self._view.nodes if node.id in self._actors
        ]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE) if asked else ([], [])
        found: list[bytes] = []
        for one in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # (its node has just been lost)
                found.append(ray.get(one))
        return found

    def stop(self) -> None:
        """End all servers. The manager itself is ended by who called."""
        self._closed.set()
        self._thread.join(2 * _LOOK + _PATIENCE)
        actors = list(self._actors.values())
        with contextlib.suppress(Exception):  # (all at once: some may hang, and there may be hundreds)
            asked = [actor.close.remote() for actor in actors]
            self._ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE)
        for actor in actors:
            with contextlib.suppress(Exception):
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
            f"no Ray cluster was found ({error}); start one with: ray start --head, or say where it is with "
            "--address. If it is there and wants a token, set RAY_AUTH_MODE=token, here and for each ray start"
        ) from None
    except ValueError as error:  # (Ray's, of what is no address)
        where = "RAY_ADDRESS" if address == "auto" else f"--address {address}"
        raise OptionError(f"{where}: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Whether anybody listens there: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()


def _manager(ray: Any) -> Any:
    try:
        return ray.get_actor(MANAGER, namespace=NAMESPACE)
    except ValueError:
        return None


def _told(ray: Any, asked: Any) -> Any:
    """What the manager answers."""
    try:
        return ray.get(asked, timeout=_START)
    except ray.exceptions.RayError as error:
        raise HostUnavailable(
            f"the manager of the cluster does not answer ({_last_line(str(error))}); Ray may be starting it anew: "
            "try again, or: headrace cluster stop"
        ) from None


def start(ray: Any, terms: Terms, seconds: float = _START) -> View:
    """Have a server on every node; the view, once all of them are there. Where not one can start, nothing is left
    behind; nor is where this is interrupted, of what it has begun itself."""
    manager = _manager(ray)
    new = manager is None
    try:
        if new:
            _end_servers(ray)
            manager = _start_manager(ray, terms)
        return _wait(ray, manager, seconds, new=new)
    except (KeyboardInterrupt, SystemExit):
        # (one that was there before stays, and so does one that somebody else has started meanwhile)
        if new and (manager is None or _manager(ray) == manager):
            stop(ray, _INTERRUPTED)
        raise


def _start_manager(ray: Any, terms: Terms) -> Any:
    made = ray.remote(Manager).options(
        name=MANAGER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=8,
        num_cpus=0,
    )
    return made.remote(secrets.token_hex(32), terms)


def _wait(ray: Any, manager: Any, seconds: float, *, new: bool) -> View:
    """The view, once all servers are there. ``new``: the manager was started for it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = decode_reply(_told(ray, manager.view.remote()))
            failed: dict[str, str] = _told(ray, manager.failed.remote())
        except HostUnavailable:
            _check_there(ray, manager)
            raise
        wanted = sum(1 for one in ray.nodes() if one["Alive"])
        there = len(found.nodes) if isinstance(found, View) else 0
        if isinstance(found, View) and there >= wanted:
            return found
        if time.monotonic() > deadline or (failed and there + len(failed) >= wanted):
            if new and not there:
                stop(ray)
            raise HostUnavailable(_missing(there, wanted, failed, gone=new and not there))
        _check_there(ray, manager)
        time.sleep(0.2)


def _check_there(ray: Any, manager: Any) -> None:
    """Whether the manager is the cluster's still."""
    if _manager(ray) != manager:
        raise HostUnavailable(
            "the cluster was stopped while it was being started (headrace cluster stop, or another start that was "
            "interrupted); to start it after all: headrace cluster start"
        )


def _missing(there: int, wanted: int, failed: dict[str, str], *, gone: bool) -> str:
    """What to say of nodes without a server. ``gone``: the cluster was not started, then."""
    said = "".join(f"\n  node {node[:12]}: {why}" for node, why in sorted(failed.items()))
    if not said:
        said = (
            "; the others may lack headrace (pip install 'headrace[ray]' on each node), or see Ray's logs of the "
            "actors headrace-node-..."
        )
    rest = (
        "no cluster was started"
        if gone
        else "they are tried again; to start otherwise: headrace cluster stop"
    )
    return f"{there} of {wanted} nodes have a server{said}\n({rest})"


def current(ray: Any) -> View | None:
    """The servers that there are; None: there is no cluster."""
    manager = _manager(ray)
    if manager is None:
        return None
    found = decode_reply(_told(ray, manager.view.remote()))
    return found if isinstance(found, View) else None


def statuses(ray: Any) -> list[Status] | None:
    """How each server stands; None: there is no cluster."""
    manager = _manager(ray)
    if manager is None:
        return None
    found = [decode_reply(one) for one in _told(ray, manager.status.remote())]
    return [one for one in found if isinstance(one, Status)]


def stop(ray: Any, seconds: float = _START) -> bool:
    """End the cluster, or what is left of one; False: there was none. ``seconds``: for its manager to do so; then it
    is ended, and the servers one by one."""
    manager = _manager(ray)
    if manager is not None:
        with contextlib.suppress(Exception):
            ray.get(manager.stop.remote(), timeout=seconds)
        ray.kill(manager)
    return _end_servers(ray) or manager is not None


def _end_servers(ray: Any) -> bool:
    """End servers that no manager has ended; whether there were any. They know another token than a new one's."""
    some = False
    for one in ray.util.list_named_actors(all_namespaces=True):
        if one["namespace"] == NAMESPACE and one["name"].startswith(_SERVER):
            with contextlib.suppress(ValueError):  # (it is gone)
                ray.kill(ray.get_actor(one["name"], namespace=NAMESPACE))
                some = True
    return some
