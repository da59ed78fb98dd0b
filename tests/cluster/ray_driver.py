"""A small Ray cluster of several nodes on this machine, a headrace cluster on it, and jobs that read by way of it.

Run by tests in a process of its own: ``python -m tests.cluster.ray_driver WHAT FOLDER``. Prints JSON.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import headrace as hr
from headrace.cli import main as command
from headrace.cluster import on_ray
from headrace.cluster.manager import MANAGER
from headrace.cluster.node_actor import NAMESPACE, Terms
from headrace.cluster.ports import parse_ports
from headrace.core.errors import HostUnavailable
from tests.loader.helpers import wait_until
from tests.patient_ray import once_more

NODES = 3


def recipe(folder: str) -> hr.Recipe:
    """Numbers of files as targets, so that it shows what was given."""
    paths = sorted(Path(folder).rglob("*.jpg"))
    return hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(32)],
    )


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it came true. Ray is asked a few times a second only: it has other things to do."""
    return wait_until(condition, 120.0, every=0.25)


def epochs(folder: str, count: int, seconds: float = 0.0, until: str = "", **options: Any) -> dict[str, Any]:
    """Some epochs, and then others until there is a file; whether each sample came once in each, and what came from
    the cluster."""
    exact = []
    with hr.DataLoader(recipe(folder), batch_size=8, shuffle=True, num_workers=1, **options) as loader:
        size = len(loader.dataset)
        while len(exact) < count or (until and not os.path.exists(until)):
            seen: collections.Counter[int] = collections.Counter()
            for _, targets in loader:
                seen.update(targets.tolist())
                time.sleep(seconds)
            exact.append(sorted(seen) == list(range(size)) and set(seen.values()) == {1})
        stats = loader.stats()
    pool = stats.pool
    return {
        "exact": exact,
        "pool": None if pool is None else [pool.nodes, pool.samples, pool.helped],
        "text": str(stats),
    }


def jobs(ray: Any, folder: str) -> dict[str, Any]:
    """A job on each node, at the same time: inside Ray they find the cluster without being told."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        commands = [
            command(["cluster", "status"]),
            command(["cluster", "start", "--memory", "64MiB"]),
        ]
    view = on_ray.current(ray)
    assert view is not None
    run = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(epochs)
    pinned = [
        run.options(
            scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                one.id, soft=False
            )
        ).remote(folder, 2, **({"share": "ray"} if number == 0 else {}))
        for number, one in enumerate(view.nodes)
    ]
    found = ray.get(pinned, timeout=120)
    statuses = on_ray.statuses(ray) or []
    with contextlib.redirect_stdout(said):
        commands += [
            command(["cluster", "status"]),
            command(["cluster", "stop"]),
            command(["cluster", "status", "--json"]),
        ]
    return {
        "commands": commands,
        "said": said.getvalue(),
        "jobs": found,
        "nodes": len(view.nodes),
        "fetched": sum(one.fetched for one in statuses),
        "held": [sum(dataset.held for dataset in one.datasets) for one in statuses],
    }


def kills(ray: Any, folder: str) -> dict[str, Any]:
    """A server, then the manager, then a node are lost while jobs run."""
    view = on_ray.start(ray, Terms("64MiB"))
    run = ray.remote(num_cpus=1, max_retries=0)(epochs)
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    head = next(one["NodeID"] for one in ray.nodes() if "node:__internal_head__" in one["Resources"])
    over = Path(os.environ["HEADRACE_RUNTIME_DIR"]) / "over"
    job = run.options(scheduling_strategy=affinity(head, soft=False)).remote(folder, 6, 0.1, str(over))
    time.sleep(4.0)
    statuses = on_ray.statuses(ray) or []
    victim = next(one for one in statuses if one.node != head)
    before = {one.id: one.incarnation for one in view.nodes}
    os.kill(victim.pid, signal.SIGKILL)

    def is_back(node: str) -> bool:
        try:
            now = {one.id: one.incarnation for one in on_ray.current(ray).nodes}
        except HostUnavailable:  # (the manager is being replaced)
            return False
        return len(now) == NODES and now[node] != before[node]

    out: dict[str, Any] = {"back": comes(lambda: is_back(victim.node))}
    # A server that hangs: it is taken out, ended, and another is started.
    stopped = next(one for one in on_ray.statuses(ray) or [] if one.node not in (head, victim.node))
    os.kill(stopped.pid, signal.SIGSTOP)
    out["without the one that hangs"] = comes(lambda: len(on_ray.current(ray).nodes) == NODES - 1)
    out["and with another"] = comes(lambda: len(on_ray.current(ray).nodes) == NODES)
    manager = ray.get_actor(MANAGER, namespace=NAMESPACE)
    number = on_ray.current(ray).number
    ray.kill(manager, no_restart=False)
    out["status of a manager that was just restarted"] = len(on_ray.statuses(ray) or []) == NODES

    def manager_back() -> bool:
        try:
            return on_ray.current(ray).number > number and len(on_ray.current(ray).nodes) == NODES
        except Exception:
            return False

    out["manager"] = comes(manager_back)
    # A server that hangs, and the manager is lost before it has found out: the next one takes it for no new one.
    before = {one.id: one.incarnation for one in on_ray.current(ray).nodes}
    stopped = next(one for one in on_ray.statuses(ray) or [] if one.node != head)
    os.kill(stopped.pid, signal.SIGSTOP)
    ray.kill(manager, no_restart=False)
    out["another for one that hung without a manager"] = comes(lambda: is_back(stopped.node))
    CLUSTER.remove_node(next(iter(CLUSTER.worker_nodes)), allow_graceful=False)
    # (what the others say is to be had at once, though all still count on the one that is gone)
    out["status of a node that was just lost"] = len(on_ray.statuses(ray) or []) >= NODES - 1
    out["node"] = comes(lambda: len(on_ray.current(ray).nodes) == NODES - 1)
    over.touch()
    out["job"] = ray.get(job, timeout=120)
    pids = [one.pid for one in on_ray.statuses(ray) or []]
    ray.kill(ray.get_actor(MANAGER, namespace=NAMESPACE), no_restart=False)
    out["stopped"] = on_ray.stop(ray)  # (at once, by the one that takes its place)
    out["ended"] = len(pids) == NODES - 1 and comes(lambda: not any(map(psutil.pid_exists, pids)))
    out["again"] = on_ray.stop(ray)
    return out


def ports(ray: Any, folder: str) -> dict[str, Any]:
    """Servers and helpers on ports of a range; and none of them where others have all of it."""
    first = 23_500 + os.getpid() % 5000
    wanted = f"{first}-{first + 11}"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        options = ["--memory", "64MiB", "--cpus", "1", "--ports"]
        commands = [command(["cluster", "start", *options, wanted])]
        comes(lambda: all(one.helpers for one in on_ray.current(ray).nodes))
        view = on_ray.current(ray)
        assert view is not None
        used = [port for one in view.nodes for port in (one.port, *(helper.port for helper in one.helpers))]
        commands += [command(["cluster", "start", *options, wanted]), command(["cluster", "stop"])]
    host = view.nodes[0].host
    with contextlib.ExitStack() as taken, contextlib.redirect_stderr(said):
        for port in (first, first + 1):
            taken.enter_context(socket.create_server((host, port)))
        commands += [command(["cluster", "start", *options, f"{first}-{first + 1}"])]
    left = on_ray.current(ray)
    # One of three has no port at first.
    with socket.create_server((host, first)), contextlib.redirect_stderr(said):
        few = ["--memory", "64MiB", "--cpus", "0", "--ports", f"{first}-{first + 2}"]
        commands += [command(["cluster", "start", *few])]
    back = comes(lambda: len(on_ray.current(ray).nodes) == NODES)
    on_ray.stop(ray)
    return {
        "back": back,
        "commands": commands,
        "said": said.getvalue(),
        "first": first,
        "used": used,
        "left": left is not None,
    }


def interrupts(ray: Any, folder: str) -> dict[str, Any]:
    """Ctrl-C, and another's stop, while a cluster starts: servers cannot be complete, since a port is missing."""
    first = 23_500 + os.getpid() % 5000
    terms = Terms("64MiB", 0, parse_ports(f"{first}-{first + 2}"))
    out: dict[str, Any] = {}
    host = next(one["NodeManagerAddress"] for one in ray.nodes())
    with socket.create_server((host, first)):
        for what in ("ctrl-c", "stop"):
            hold = on_ray._told
            seen: list[int] = []

            def told(ray: Any, asked: Any, what: str = what, hold: Any = hold, seen: Any = seen) -> Any:
                found = hold(ray, asked)
                servers = [
                    one
                    for one in ray.util.list_named_actors(all_namespaces=True)
                    if one["name"].startswith("headrace-node-")
                ]
                if servers and not seen:
                    seen.append(len(servers))
                    if what == "ctrl-c":
                        raise KeyboardInterrupt
                    on_ray.stop(ray)
                return found

            on_ray._told = told
            try:
                on_ray.start(ray, terms)
            except (KeyboardInterrupt, HostUnavailable) as error:
                out[what] = f"{type(error).__name__}: {error}"
            finally:
                on_ray._told = hold
            out[f"left after {what}"] = [
                one["name"] for one in ray.util.list_named_actors(all_namespaces=True)
            ]
    return out


CLUSTER: Any = None


def start() -> Any:
    """Ray's nodes."""
    from ray.cluster_utils import Cluster

    terms = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**terms, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**terms)
    except BaseException:
        cluster.shutdown()
        raise
    return cluster


def main() -> None:
    """Start Ray, run, and print what came of it."""
    global CLUSTER
    import ray

    what, folder = sys.argv[1:]
    CLUSTER = once_more(start)
    ray.init(address=CLUSTER.address, namespace="tests", log_to_driver=False, logging_level="ERROR")
    try:
        print(
            json.dumps(
                {"jobs": jobs, "kills": kills, "ports": ports, "interrupts": interrupts}[what](ray, folder)
            )
        )
    finally:
        ray.shutdown()
        CLUSTER.shutdown()


if __name__ == "__main__":
    main()
