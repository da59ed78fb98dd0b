"""What nodes have taken in so far, told to the shared host of this machine, which draws that first.

It is of interest only while a dataset is being read into the memory of the nodes: see ``coordinate/nearby.py``. A
thread of the job's asks the nodes, a few times a second, and ends with that.
"""

from __future__ import annotations

import os
import threading
import time

from headrace.channel.asking import ask_plainly, greet
from headrace.channel.channel import Channel
from headrace.cluster.members import TROUBLE, Members, ask
from headrace.cluster.messages import MOST_CAME, Arrived, Came, Node
from headrace.coordinate.protocol import MOST_NEARER, PROTOCOL, Hello, Nearer, Noted
from headrace.core.errors import HostUnavailable, ProtocolError
from headrace.host import runtime

_PAUSE, _PER_NODE = 0.1, 0.005
"""Seconds between two rounds of questions: at least, and for each node. (So a node of a large cluster is asked as
often by all the others together as by a few.)"""
_SOON = 0.03
"""And where the host has yet to hear of the dataset: a job that has just begun waits for what it will be told."""
_ANSWER = 1.0
"""Seconds for a node to answer."""
_PATIENCE = 5.0
"""Seconds for the host to."""
_LEFT = 30.0
"""Seconds for which a node is not asked that has not answered: all others wait for it."""
_UNKNOWN = 60.0
"""Seconds for which a host may know nothing of the dataset: the job that uses it has not come, or never will."""


class Teller:
    """Of one job and one dataset."""

    def __init__(self, dataset: str, members: Members) -> None:
        self._dataset, self._members = dataset, members
        self._running = threading.Lock()
        self._over = threading.Event()

    def run(self) -> None:
        """From when nodes have begun to read until they have read all that they have room for."""
        if not self._running.acquire(blocking=False):
            return  # (somebody does it already)
        try:
            _Round(self._dataset, self._members, self._over).run()
        finally:
            self._running.release()

    def close(self) -> None:
        """It is of no interest any more."""
        self._over.set()


class _Round:
    """One run of it."""

    def __init__(self, dataset: str, members: Members, over: threading.Event) -> None:
        self._dataset, self._members, self._over = dataset, members, over
        self._counts: dict[str, int] = {}
        """By server: how many samples it had taken in when it was last asked."""
        self._left: dict[str, float] = {}
        """By server: until when it is not asked."""
        self._reads: dict[str, float] = {}
        """By server that has said that it reads: until when that is believed without being asked again."""
        self._untold: list[bytes] = []
        self._told = 0
        """Samples of which the host was told."""
        self._channel: Channel | None = None

    def run(self) -> None:
        known = time.monotonic()
        try:
            while not self._over.is_set():
                more, all_of_it = self._look()
                if self._over.is_set():
                    return  # (not all were asked: other jobs may go on by what comes)
                told = self._tell(more)
                if told:
                    known = time.monotonic()
                    if not more:
                        return
                elif time.monotonic() - known > _UNKNOWN:
                    return
                if told and not all_of_it:
                    continue
                nodes = len(self._members.view.nodes)
                self._over.wait(max(_PAUSE, _PER_NODE * nodes) if told else _SOON)
        finally:
            if self._channel is not None:
                self._channel.close()

    def _look(self) -> tuple[bool, bool]:
        """Ask all nodes; whether any of them takes more in, and whether they have told all that has come."""
        more, all_of_it = False, True
        for node in self._members.view.nodes:
            if self._over.is_set():
                break
            now, server = time.monotonic(), node.incarnation
            if not self._members.is_well(node) or self._left.get(server, 0.0) > now:
                more |= self._reads.get(server, 0.0) > now
                continue
            try:
                arrived = self._ask(node)
            except TROUBLE:  # (whoever reads by way of it finds out what is wrong)
                self._left[server] = time.monotonic() + _LEFT
                more |= self._reads.get(server, 0.0) > now
                continue
            self._reads[server] = now + 2 * _LEFT if arrived.more else 0.0
            more |= arrived.more
            all_of_it &= len(arrived.samples) < 8 * MOST_CAME
        return more, all_of_it

    def _ask(self, node: Node) -> Arrived:
        with self._members.lent(node) as connection:
            reply, _ = ask(connection, Came(self._dataset, self._counts.get(node.incarnation, 0)), _ANSWER)
            if not isinstance(reply, Arrived) or len(reply.samples) % 8:
                raise ProtocolError(f"{connection.name} answered with {type(reply).__name__}")
        self._counts[node.incarnation] = reply.count
        if reply.samples:
            self._untold.append(reply.samples)
        return reply

    def _tell(self, more: bool) -> bool:
        """Tell the host; whether that was of use."""
        samples = b"".join(self._untold)
        self._untold = [samples]
        at = 0
        while True:
            part = samples[at : at + 8 * MOST_NEARER]
            rest = at + len(part) < len(samples)
            noted = self._say(Nearer(self._dataset, part, more or rest, self._told))
            if noted is None or noted.lost:
                # Another host, or one that has forgotten it, has to be told all of it.
                self._counts.clear()
                self._untold.clear()
                self._told = 0
                return False
            if not noted.known:
                self._untold = [samples[at:]]
                return False
            at += len(part)
            self._told += len(part) // 8
            if not rest:
                self._untold.clear()
                return True

    def _say(self, nearer: Nearer) -> Noted | None:
        """Tell the host something; None: it cannot be told."""
        try:
            if self._channel is None:
                channel = runtime.connect(_PATIENCE)
                if channel is None:
                    return None
                self._channel = channel
                greet(channel, Hello(PROTOCOL, "near", os.getpid()), _PATIENCE)
            reply = ask_plainly(self._channel, nearer, _PATIENCE)
            if not isinstance(reply, Noted):
                raise ProtocolError(f"the host answered with {type(reply).__name__}")
            return reply
        except (OSError, HostUnavailable, ProtocolError):
            if self._channel is not None:
                self._channel.close()
            self._channel = None
            return None
