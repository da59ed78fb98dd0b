"""What the manager tells servers, and what is left of a cluster that ends: with a Ray made for it."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.cli.cluster import _shown
from headrace.cluster import manager as managing
from headrace.cluster import node_actor, on_ray
from headrace.cluster.manager import MANAGER, Manager
from headrace.cluster.members import members_of
from headrace.cluster.messages import Node, View, encode
from headrace.cluster.node_actor import NAMESPACE, NodeActor, Terms
from headrace.cluster.pooled import define
from headrace.cluster.server import NodeServer
from headrace.core.errors import HostUnavailable, OptionError
from headrace.planning import peers
from tests.cluster.nodes import Servers, forget_members, make_files
from tests.loader.helpers import wait_until

NEVER = object()
"""What is never answered."""


class Actor:
    """A node server, or the manager, as others see it."""

    def __init__(self, node: Node | None = None) -> None:
        self.node = node
        self.seen: list[View] = []
        self.number = 0
        self.hangs = False
        self.served: Any = object.__new__(NodeActor)
        memory = SimpleNamespace(see=lambda node, view: None)
        self.served._server, self.served._known = SimpleNamespace(see=self._note, memory=memory), set()
        self.served._self = node or Node("", "", "", 0, "", 0)
        self.closed = self.killed = 0
        self.describe = SimpleNamespace(remote=self._describe)
        self.see = SimpleNamespace(remote=self._see)
        self.close = self.stop = SimpleNamespace(remote=self._close)

    def _describe(self) -> Any:
        return NEVER if self.hangs else lambda: msgspec.msgpack.encode(self.node)

    def _see(self, view: bytes, unheard: list[str]) -> Any:
        answer = self.served.see(view, unheard)
        return lambda: answer

    def _note(self, found: View) -> int:
        self.seen.append(found)
        self.number = max(self.number, found.number)
        return self.number

    def _close(self) -> Any:
        self.closed += 1
        return lambda: None


class Ray:
    """What headrace needs of it. What was asked for is there at once."""

    def __init__(self) -> None:
        self.actors: dict[tuple[str, str], Actor] = {}
        self.util = SimpleNamespace(list_named_actors=self.list_named_actors)
        self.exceptions = SimpleNamespace(RayActorError=KeyError, RayError=KeyError)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": one.node.id, "Alive": True} for one in self.actors.values() if one.node is not None
        ]

    def wait(self, asked: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [one for one in asked if one is not NEVER], [one for one in asked if one is NEVER]

    def get(self, asked: Any, timeout: float = 0.0) -> Any:
        return asked()

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        actor.killed += 1
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}

    def get_actor(self, name: str, namespace: str) -> Actor:
        if (namespace, name) not in self.actors:
            raise ValueError(name)
        return self.actors[namespace, name]

    def list_named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        return [{"namespace": namespace, "name": name} for namespace, name in self.actors]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    for module in (on_ray, managing):
        monkeypatch.setattr(module, "import_ray", lambda: made)
    for number in range(3):
        node = Node(f"n{number}", "first", "127.0.0.1", 7400, "its", 1 << 30)
        made.actors[NAMESPACE, f"headrace-node-n{number}"] = Actor(node)
    return made


@pytest.fixture
def manager(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """It looks when it is told to."""
    monkeypatch.setattr(Manager, "_run", lambda self: None)
    return Manager("token", Terms("1GiB"))


def test_servers_are_told_of_a_view_that_they_do_not_know(
    ray: Ray, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = list(ray.actors.values())
    for _ in range(5):
        manager._look()
    assert [[len(view.nodes) for view in one.seen] for one in actors] == [[3]] * 3, "once"
    actors[1].node = msgspec.structs.replace(actors[1].node, incarnation="second")  # type: ignore[type-var]
    for _ in range(5):
        manager._look()
    assert [len(one.seen) for one in actors] == [2] * 3, "one was started anew"
    monkeypatch.setattr(managing, "_REMIND", 0.0)
    manager._look()
    assert [len(one.seen) for one in actors] == [3] * 3, "what was said may have been lost"
    assert len({one.seen[-1].number for one in actors}) == 1


def test_a_manager_whose_clock_is_behind_goes_on_from_what_servers_know(
    ray: Ray, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = list(ray.actors.values())
    manager._look()
    first = actors[0].number
    for clock in (1000.0, 0.0):
        monkeypatch.setattr(managing.time, "time", lambda clock=clock: clock)
        manager = Manager("token", Terms("1GiB"))  # (another one takes its place)
        for _ in range(3):
            manager._look()
        assert [one.seen[-1].number for one in actors] == [one.number for one in actors], (
            "all take it for new"
        )
        assert len({one.number for one in actors}) == 1 and actors[0].number > first
        first, said = actors[0].number, [len(one.seen) for one in actors]
        manager._look()
        assert [len(one.seen) for one in actors] == said, "and that is all"
    lost = actors.pop()
    ray.kill(lost)
    manager._look()
    assert [len(one.seen[-1].nodes) for one in actors] == [2] * 2 and actors[0].number == first + 1


@pytest.mark.parametrize("silent", [0.0, 5.0], ids=["just now", "out of the view already"])
def test_a_server_that_hangs_while_its_manager_is_replaced_is_ended(
    ray: Ray, manager: Manager, monkeypatch: pytest.MonkeyPatch, silent: float
) -> None:
    """Of one that it never heard, the new manager is told by the others; another that starts has its time."""
    clock = 1000.0
    monkeypatch.setattr(managing.time, "monotonic", lambda: clock)
    hanging = ray.actors[NAMESPACE, "headrace-node-n1"]
    manager._look()
    hanging.hangs = True
    clock += silent
    manager._look()
    assert len(manager._view.nodes) == (2 if silent else 3)
    starting = ray.actors[NAMESPACE, "headrace-node-n7"] = Actor(Node("n7", "", "", 0, "", 0))
    starting.hangs = True
    manager = Manager("token", Terms("1GiB"))  # (another one takes its place)
    ended = {}
    for _ in range(200):
        clock += 1.0
        manager._look()
        for name, one in (("hangs", hanging), ("starts", starting)):
            if one.killed:
                ended.setdefault(name, clock - 1001.0 - silent)
    assert ended == {"hangs": 11.0, "starts": 181.0}


def test_a_server_that_a_manager_has_to_start_is_starting(
    ray: Ray, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that node had one before, of which others know, and which Ray has given up."""
    clock = 1000.0
    monkeypatch.setattr(managing.time, "monotonic", lambda: clock)
    manager._look()
    gone = ray.actors.pop((NAMESPACE, "headrace-node-n1"))
    made = Actor(gone.node)
    made.hangs = True
    nodes = [{"NodeID": f"n{number}", "Alive": True} for number in range(3)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(Manager, "_start", lambda self, node: made)
    manager = Manager("token", Terms("1GiB"))  # (another one takes its place)
    for _ in range(60):
        clock += 1.0
        manager._look()
    assert not made.killed
    made.hangs = False
    manager._asked.clear()  # (what was asked is answered)
    manager._look()
    assert len(manager._view.nodes) == 3


def test_a_server_says_which_view_it_has() -> None:
    server = NodeServer("n0", token="", memory=1 << 20, log=print)
    try:
        assert [server.see(View(number)) for number in (7, 5, 8)] == [7, 7, 8]
    finally:
        server.close()


def test_what_nodes_hold_of_a_dataset_is_no_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a part that was another's while that was away, there are two copies when it is back."""
    monkeypatch.setattr(peers, "_SLACK", 60.0)  # (files here are faster than any node)
    source = make_files(tmp_path / "data")
    servers = Servers(tmp_path)
    members = members_of(servers.nodes["n0"].socket)
    try:
        for node in servers.nodes.values():
            define(members, node, servers.pool(source))
        pooled = servers.pooled(source)
        for number, gone in enumerate(["", "n1", "", "n2", ""], 10):
            view = View(number, tuple(one for one in servers.nodes.values() if one.id != gone))
            there = [server for name, server in servers.servers.items() if name != gone]
            for server in there:
                server.see(view)
            assert wait_until(lambda: members.view.number == number)  # noqa: B023
            pooled.read_many(range(len(source)))
            found = [server.status() for server in there]
            assert sum(one.datasets[0].held for one in found) == len(source)
            assert re.search(r"FileSource.* 120 +120 ", "\n".join(_shown(found)))
        memories = [server.memory for server in servers.servers.values()]
        assert sum(one._held[source.fingerprint()].count for one in memories) > len(source), "copies stay"
    finally:
        forget_members()
        servers.close()


def test_all_servers_are_ended_whatever_one_of_them_does(
    ray: Ray, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = list(ray.actors.values())
    manager._look()

    def hangs(asked: list[Any], num_returns: int, timeout: float) -> Any:
        raise TimeoutError

    def kill(actor: Actor, kill: Any = ray.kill) -> None:
        told.append([one.closed for one in actors])
        kill(actor)

    told: list[list[int]] = []
    monkeypatch.setattr(ray, "wait", hangs)
    monkeypatch.setattr(ray, "kill", kill)
    manager.stop()
    assert told == [[1] * 3] * 3
    assert [one.killed for one in actors] == [1] * 3


def test_servers_that_a_manager_has_left_are_ended(ray: Ray) -> None:
    """Else a new manager would find them, with another token than that of those which it starts."""
    others = ray.actors["mine", "headrace-node-n0"] = Actor()
    named = ray.actors[NAMESPACE, "something"] = Actor()
    left = ray.actors[NAMESPACE, MANAGER] = Actor()
    servers = [one for one in ray.actors.values() if one.node is not None]
    assert on_ray.stop(ray) and left.killed == 1 and [one.killed for one in servers] == [1] * 3
    assert not on_ray.stop(ray), "there is none"
    ray.actors[NAMESPACE, "headrace-node-n7"] = Actor()
    assert on_ray.stop(ray), "there was something left"
    assert others.killed == named.killed == 0


class Starting(Ray):
    """One node; a manager that is started has a server start there, and then this happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens = happens
        self.ended: list[Actor] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "n0", "Alive": True}]

    def remote(self, _: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: self.start()))

    def start(self) -> Actor:
        node = Node("n0", "first", "127.0.0.1", 7400, "its", 1 << 30)
        self.actors[NAMESPACE, "headrace-node-n0"] = Actor(node)
        made: Any = Actor()
        made.view = SimpleNamespace(remote=lambda: self.view)
        made.failed = SimpleNamespace(remote=lambda: dict)
        self.actors[NAMESPACE, MANAGER] = made
        return made

    def view(self) -> bytes:
        self.happens()
        return encode(View(1))

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        super().kill(actor, no_restart)
        self.ended.append(actor)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_start_that_is_interrupted_leaves_nothing_behind() -> None:
    made = Starting(interrupt)
    with pytest.raises(KeyboardInterrupt):
        on_ray.start(made, Terms("1GiB"))
    assert not made.actors and len(made.ended) == 2
    assert made.ended[0].closed == 1, "the manager was asked to"


def test_a_start_that_is_interrupted_ends_nothing_of_others() -> None:
    made = Starting(interrupt)
    made.start()
    with pytest.raises(KeyboardInterrupt):
        on_ray.start(made, Terms("1GiB"))
    assert len(made.actors) == 2 and not made.ended, "it was there before"

    def another() -> None:  # (somebody stops what was started, and starts it otherwise)
        on_ray.stop(made)
        made.start()
        made.ended.clear()
        raise KeyboardInterrupt

    on_ray.stop(made)
    made.happens = another
    with pytest.raises(KeyboardInterrupt):
        on_ray.start(made, Terms("1GiB"))
    assert len(made.actors) == 2 and not made.ended


@pytest.mark.parametrize("others", ["stop it", "stop it, and ask it something", "start another"])
def test_a_start_notices_that_its_manager_is_gone(others: str) -> None:
    def happens() -> None:
        on_ray.stop(made)
        if others == "start another":
            made.start()
        if others == "stop it, and ask it something":
            raise KeyError("it has died")  # (the error of Ray's that is one here)

    made = Starting(happens)
    with pytest.raises(HostUnavailable, match="was stopped while it was being started"):
        on_ray.start(made, Terms("1GiB"))


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_of_ipv6(prefix: str) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        on_ray._check_address(f"{prefix}[::1]:{listener.getsockname()[1]}")


@pytest.mark.parametrize(("address", "said"), [("foo", "--address foo"), ("auto", "RAY_ADDRESS")])
def test_what_is_no_address_is_said(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ValueError("Invalid address format")

    monkeypatch.setattr(
        on_ray, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init)
    )
    with pytest.raises(OptionError, match=f"{said}: Invalid address format"), on_ray.connected(address):
        pytest.fail("it is connected")


def test_a_server_takes_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it cannot be filled would show in the middle of an epoch, by what else is ended on that node."""
    monkeypatch.setattr(node_actor, "total_memory", lambda: 4 << 30)
    monkeypatch.setattr(node_actor, "available_memory", lambda: 2 << 30)
    assert node_actor.budget_of("25%") == 512 << 20
    assert node_actor.budget_of("3GiB") == 3 << 30
    with pytest.raises(
        OptionError, match=r"--memory 8GiB is 8.0 GiB, but there are only 4.0 GiB on this node"
    ):
        node_actor.budget_of("8GiB")
