"""A headrace cluster on a Ray cluster, as the command starts, asks and stops it: Ray runs a node server on each node,
restarts those that die, and keeps the manager that knows of all of them.

Ray carries nothing but names, numbers and what is said here as plain bytes; samples go from server to process.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.cluster.manager import MANAGER, START, Manager, last_line
from headrace.cluster.messages import Status, View, decode_reply
from headrace.cluster.node_actor import NAMESPACE, SERVER, Terms, import_ray
from headrace.core.errors import HostUnavailable, OptionError

_INTERRUPTED = 10.0
"""Seconds for a manager that is no longer wanted to end what it has begun: it may be starting itself."""


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
        return ray.get(asked, timeout=START)
    except ray.exceptions.RayError as error:
        raise HostUnavailable(
            f"the manager of the cluster does not answer ({last_line(str(error))}); Ray may be starting it anew: "
            "try again, or: headrace cluster stop"
        ) from None


def start(ray: Any, terms: Terms, seconds: float = START) -> View:
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
    try:
        found = [decode_reply(one) for one in _told(ray, manager.status.remote())]
    except msgspec.ValidationError:
        raise HostUnavailable(
            "the node servers are of another headrace than this command; install one version on all nodes, then "
            "headrace cluster stop, and start"
        ) from None
    return [one for one in found if isinstance(one, Status)]


def stop(ray: Any, seconds: float = START) -> bool:
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
        if one["namespace"] == NAMESPACE and one["name"].startswith(SERVER):
            with contextlib.suppress(ValueError):  # (it is gone)
                ray.kill(ray.get_actor(one["name"], namespace=NAMESPACE))
                some = True
    return some
