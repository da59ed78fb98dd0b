"""The manager: an actor of Ray's that has a server on every node, and tells all of them of each other."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import msgspec

from headrace.cluster.membership import Membership
from headrace.cluster.messages import Node, View, encode
from headrace.cluster.node_actor import NAMESPACE, SERVER, NodeActor, Terms, import_ray, log, step_forward

MANAGER = "headrace-manager"
_LOOK = 0.5
"""Seconds between two looks at who is there."""
_PATIENCE = 3.0
"""Seconds for a server to answer, before it is taken out of the view."""
_HOPELESS = 10.0
"""Seconds without an answer after which a server is ended, for Ray to start another. (One that died answers: Ray says
so. The next is given as long as the first.)"""
_AGAIN = 10.0
"""Seconds before a server that could not start is tried again."""
START = 180.0
"""Seconds for a server to start: where many nodes read Python from one file server that takes a while."""
_REMIND = 30.0
"""Seconds after which a server is told of a view again that it should know."""

_node = msgspec.msgpack.Decoder(Node)


def last_line(text: str) -> str:
    """What went wrong, of what Ray says of it."""
    return next((one.strip() for one in reversed(text.splitlines()) if one.strip()), "")


class Manager:
    """It keeps nothing that it could not find out again: where Ray restarts it, it finds servers by their names."""

    def __init__(self, token: str, terms: Terms) -> None:
        self._ray = import_ray()
        step_forward()
        self._token, self._terms = token, terms
        self._members = Membership(patience=_PATIENCE, hopeless=_HOPELESS, start=START)
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
                log(f"{type(error).__name__}: {error}")
            self._closed.wait(_LOOK)

    def _look(self) -> None:
        ray, now = self._ray, time.monotonic()
        alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
        for node in [one for one in self._actors if one not in alive]:
            del self._actors[node]
            self._asked.pop(node, None)
            self._told.pop(node, None)
        starting = []
        for node in alive - set(self._actors):
            if now >= self._failed.get(node, (-_AGAIN, ""))[0] + _AGAIN:
                try:
                    self._actors[node] = ray.get_actor(f"{SERVER}{node}", namespace=NAMESPACE)
                except ValueError:
                    self._actors[node] = self._start(node)
                    starting.append(node)
        for node, actor in self._actors.items():
            if node not in self._asked:
                self._asked[node] = actor.describe.remote()
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked) or 1, timeout=_LOOK)
        found: dict[str, Node] = {}
        for node, asked in list(self._asked.items()):
            if asked in ready:
                del self._asked[node]
                try:
                    found[node] = _node.decode(ray.get(asked))
                    self._failed.pop(node, None)
                except ray.exceptions.RayActorError as error:  # (it is being restarted, or never will be)
                    if error.actor_init_failed:
                        self._failed[node] = now, last_line(str(error))
                        del self._actors[node]
                    else:
                        starting.append(node)
                except Exception as error:
                    log(f"node {node}: {type(error).__name__}: {error}")
        view, hopeless = self._members.heard(alive, found, now, starting)
        for node in hopeless:
            log(f"the server of node {node} does not answer; another is started")
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
        """Go on from what servers know of an earlier manager's time: who was up, and the highest number that one has
        (that of a node whose clock is ahead; until it hears a higher one, it takes no view for a new one)."""
        ray = self._ray
        if not self._telling:
            return
        ready, self._telling = ray.wait(self._telling, num_returns=len(self._telling), timeout=0)
        highest = self._view.number
        for one in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # (it has died, and will be told again)
                number, up = ray.get(one)
                highest = max(highest, number)
                self._members.were_up(up)
        if highest > self._view.number:
            self._view = View(highest + 1, self._view.nodes)

    def _tell(self, now: float) -> None:
        """Tell servers of the view, as far as they do not know it: of hundreds of nodes, it is half a megabyte."""
        said, unheard = b"", self._members.unheard
        for one in self._view.nodes:
            server, number, when = self._told.get(one.id, ("", -1, 0.0))
            known = (server, number) == (one.incarnation, self._view.number) and now < when + _REMIND
            if one.id in self._actors and not known:
                said = said or encode(self._view)
                self._telling.append(self._actors[one.id].see.remote(said, unheard))
                self._told[one.id] = one.incarnation, self._view.number, now

    def _start(self, node: str) -> Any:
        ray = self._ray
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return (
            ray.remote(NodeActor)
            .options(
                name=f"{SERVER}{node}",
                namespace=NAMESPACE,
                lifetime="detached",
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
