"""Which servers count, by when they were last heard. Pure: whoever carries it out tells it who answered, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.cluster.messages import Node


class Membership:
    """The servers of a cluster.

    A server is in the view from when it was heard until it is gone, or was silent for ``patience`` seconds. One that
    was silent for ``hopeless`` seconds (while it starts, ``start``) is to be ended, once in that time. Of one that
    was never heard here, only others can tell which of the two it is.
    """

    def __init__(self, *, patience: float, hopeless: float, start: float) -> None:
        self._patience, self._hopeless, self._start = patience, hopeless, start
        self._heard: dict[str, float] = {}
        """By node: when it was last heard, or is first looked for."""
        self._nodes: dict[str, Node] = {}
        self._up: set[str] = set()
        """Those that have been heard, here or by others, and have not died since: they are not starting."""
        self._starting: set[str] = set()
        """Those that have died, or never were, and another is on its way."""
        self._view: tuple[Node, ...] = ()

    def heard(
        self, alive: Iterable[str], found: Mapping[str, Node], now: float, starting: Iterable[str] = ()
    ) -> tuple[tuple[Node, ...] | None, list[str]]:
        """``alive``: nodes that there are; ``found``: servers that have answered just now; ``starting``: nodes whose
        server is on its way, as one has died or there was none. What the view is from now on, None if it is as
        before; and the nodes whose servers are to be ended."""
        there = set(alive)
        for node in [one for one in self._heard if one not in there]:
            del self._heard[node]
            self._nodes.pop(node, None)
        self._starting = (self._starting | set(starting)) & there - set(found)
        self._up = (self._up | set(found)) & there - self._starting
        for node in there:
            if node in found:
                self._heard[node], self._nodes[node] = now, found[node]
            elif node not in self._heard:
                self._heard[node] = now
        hopeless = []
        for node, last in self._heard.items():
            if now - last > (self._hopeless if node in self._up else self._start):
                self._heard[node] = now + self._start  # (for the one that takes its place to start)
                self._nodes.pop(node, None)
                self._up.discard(node)
                self._starting.add(node)
                hopeless.append(node)
        view = tuple(
            self._nodes[node]
            for node in sorted(self._nodes)
            if -self._patience <= now - self._heard[node] <= self._patience
        )
        changed = view != self._view
        self._view = view
        return (view if changed else None), hopeless

    @property
    def unheard(self) -> list[str]:
        """Nodes whose server either starts or hangs: nobody has said yet which."""
        return sorted(self._heard.keys() - self._up - self._starting)

    def were_up(self, nodes: Iterable[str]) -> None:
        """Others say that these nodes had servers: one that is silent, and was not found to be starting, hangs."""
        self._up.update(set(nodes) & self._heard.keys() - self._starting)
