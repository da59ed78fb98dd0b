"""How a job joins the cluster: its dataset is made known to all node servers, and from then on read through them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable

from headrace.channel.wire import MESSAGE_LIMIT
from headrace.cluster.found import find_members, ray_node
from headrace.cluster.keyed_tier import NodesTier, use_nodes
from headrace.cluster.limits import limit_of
from headrace.cluster.lines import Assistance
from headrace.cluster.members import TROUBLE, Members, ask
from headrace.cluster.messages import MEASURED, NO, YES, Ahead, Held, Node, View
from headrace.cluster.near import Teller
from headrace.cluster.pooled import Pool, PooledSource, define
from headrace.core.errors import HostRefused, OptionError
from headrace.core.sizes import show_size
from headrace.engine.disk_stage import DiskUse
from headrace.planning.helping import MOST_LINES
from headrace.planning.rails import Rail
from headrace.recipes.plain import source_to_plain
from headrace.recipes.recipe import Recipe
from headrace.sources.source import Source

_SOON = 5.0
"""Seconds for a server to hear what will be needed."""
_AT_ONCE = 32
_OTHERS = 10.0
"""Seconds for which a job that begins waits for other nodes to list its dataset, or twice what its own node took. One
whose storage hangs is not to hold up all jobs of the cluster."""
_NAMED = 3
"""Nodes that a warning names; of more it says how many."""
_LONGEST = MESSAGE_LIMIT - (1 << 20)
"""Bytes of a definition."""


class Introduction:
    """A dataset is made known to servers: all of them list it at the same time. Who cannot is done without, and that
    is said once for each reason."""

    def __init__(
        self,
        members: Members,
        pool: Pool,
        *,
        says: bool,
        known: Callable[[Node], None] = lambda node: None,
    ) -> None:
        """``says``: whether this process is the one that warns; ``known``: called for a server that knows the dataset
        only after the job has begun."""
        self._members, self._pool, self._says, self._known = members, pool, says, known
        # (the own node first: it is waited for)
        self._left = deque(sorted(members.view.nodes, key=lambda one: one.id != members.node))
        self._open = {one.id for one in self._left}
        self._first = {one.incarnation for one in self._left}
        self._changed = threading.Condition()
        self._why: dict[str, tuple[str, list[str]]] = {}
        """By reason: how it is put, and the nodes."""
        self._waited = False

    def run(self) -> None:
        """Begin it, and wait as long as is worthwhile; the rest goes on in the background."""
        begun, own = time.monotonic(), self._members.node
        self._begin()
        with self._changed:
            self._changed.wait_for(lambda: own not in self._open)
            took = time.monotonic() - begun
            self._changed.wait_for(lambda: not self._open, max(_OTHERS, 2 * took) - took)
            self._waited = True
            why = list(self._why.values())
        for said, nodes in why:
            self._warn(said, nodes)

    def add(self, nodes: Iterable[Node]) -> None:
        """Servers have come. Nobody waits for them."""
        with self._changed:
            self._left.extend(nodes)
        self._begin()

    def _begin(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._left))):
            threading.Thread(target=self._work, name="headrace-join", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._left:
                    return
                node = self._left.popleft()
            try:
                self._define(node)
            finally:
                with self._changed:
                    self._open.discard(node.id)
                    self._changed.notify_all()

    def _define(self, node: Node) -> None:
        try:
            define(self._members, node, self._pool)
            if self._waited:
                self._known(node)
        except HostRefused as error:
            self._failed(node, error.reason, error.reason)
        except TROUBLE as error:
            self._members.trouble(node)
            if node.incarnation in self._first:  # (others come and go while a job runs)
                self._failed(node, "", f"it does not answer: {error}")

    def _failed(self, node: Node, reason: str, said: str) -> None:
        name = f"{node.id[:12]} ({node.host})"
        with self._changed:
            late = self._waited and reason not in self._why
            self._why.setdefault(reason, (said, []))[1].append(name)
        if late:
            self._warn(said, [name])

    def _warn(self, said: str, nodes: list[str]) -> None:
        if self._says:
            names = ", ".join(sorted(nodes)[:_NAMED]) + (", ..." if len(nodes) > _NAMED else "")
            which = f"node {names}" if len(nodes) == 1 else f"{len(nodes)} nodes ({names})"
            warnings.warn(
                f"a part of the data does not come from the cluster's memory: {which}: {said}", stacklevel=5
            )


class Joined:
    """A dataset in the cluster."""

    def __init__(self, source: Source, pool: Pool, members: Members) -> None:
        self.source = PooledSource(source, pool)
        self._pool, self._members = pool, members
        self._teller = Teller(pool.dataset, members)
        self._early: Ahead | None = None
        """What was said before its epoch began."""
        self._ahead: Ahead | None = None
        """What was said last."""
        self._there = {node.incarnation for node in members.view.nodes}
        self._introduction: Introduction | None = None
        members.watchers.append(self._see)

    def introduce(self, *, says: bool) -> None:
        """Have the servers open the dataset. ``says``: whether this process warns of those that cannot."""
        self._introduction = Introduction(self._members, self._pool, says=says, known=self._remind)
        self._introduction.run()

    def _see(self, view: View) -> None:
        """Servers that come later are told of the dataset, too, and of what the job is at."""
        new = [node for node in view.nodes if node.incarnation not in self._there]
        self._there = {node.incarnation for node in view.nodes}
        if new and self._introduction is not None:
            self._introduction.add(new)

    @property
    def nodes(self) -> int:
        """Servers, as they are now."""
        return len(self._members.view.nodes)

    @property
    def helpers(self) -> int:
        """Those on other nodes, as they are now."""
        view, own = self._members.view, self._members.node
        return min(MOST_LINES, sum(len(node.helpers) for node in view.nodes if node.id != own))

    def use_nodes(self, recipe: Recipe, *, measured: bool) -> DiskUse:
        """The memory of all nodes as a tier for decoded samples. ``measured``: only where that pays. Raises
        OptionError where these cannot be shared."""
        memory = sum(node.memory for node in self._members.view.nodes)
        return use_nodes(recipe, self._pool, memory, measured=measured)

    def assistance(
        self, recipe: Recipe, *, decoded: bool, tier: DiskUse | None, workers: int
    ) -> Assistance | None:
        """What an agent has to know for others to prepare rows of a recipe; None: others cannot. ``decoded``: whether
        decoded samples are cached; ``tier``: below the cache, where helpers use it if it is the nodes'; ``workers``:
        processes of this rank's own."""
        if recipe.collate is not None:
            return None
        if recipe.user_code and not any(node.code for node in self._members.view.nodes):
            return None
        try:
            definition = json.dumps(recipe.to_dict(source=False)).encode()
            key = recipe.rows_key
        except OptionError:
            return None
        nodes: Held = NO
        if tier is not None and isinstance(tier.tier, NodesTier):
            nodes = MEASURED if tier.measured else YES
        state = nodes.encode() or (b"decoded" if decoded else b"")
        # (the source's definition counts, too: what may be read of the same files, and how)
        of = [self._pool.dataset.encode(), self._pool.definition, definition, key.encode(), state]
        number = hashlib.blake2b(b"\0".join(of), digest_size=16).hexdigest()
        rank = f"{self._members.node}/{os.getpid()}"
        return Assistance(self._pool, number, definition, key, decoded, nodes, workers, rank)

    def expect(self, *, seed: int, epoch: int, position: int, shuffled: bool, early: bool = False) -> None:
        """Tell all servers what is needed from now on, in which order. Nobody waits for it. ``early``: the same will
        be said when it begins, and then need not be."""
        self._say(Ahead(self._pool.dataset, seed, epoch, position, shuffled), early)

    def expect_any(self, epoch: int, *, early: bool = False) -> None:
        """The order is not known: the shared host draws. Servers read in one that is the same for all jobs, and the
        host is told what has come."""
        self._say(Ahead(self._pool.dataset, 0, epoch, shared=True), early)

    def _say(self, ahead: Ahead, early: bool) -> None:
        before, self._early = self._early, ahead if early else None
        self._ahead = ahead
        if ahead != before:
            threading.Thread(target=self._tell, args=(ahead,), name="headrace-expect", daemon=True).start()

    def close(self) -> None:
        """The job leaves."""
        self._teller.close()
        with contextlib.suppress(ValueError):
            self._members.watchers.remove(self._see)

    def _remind(self, node: Node) -> None:
        """A server hears of an epoch that has begun before it knew the dataset."""
        if self._ahead is not None:
            self._tell_one(node, self._ahead)

    def _tell_one(self, node: Node, ahead: Ahead) -> None:
        # (who does not hear of it reads what it is asked for, then)
        with contextlib.suppress(*TROUBLE), self._members.lent(node) as connection:
            ask(connection, ahead, _SOON)

    def _tell(self, ahead: Ahead) -> None:
        for node in self._members.view.nodes:
            self._tell_one(node, ahead)
        if ahead.shared:
            self._teller.run()


def join(
    source: Source, *, must: bool, find_rail: Callable[[], Rail | None], says: bool = True
) -> Joined | None:
    """Have the servers of the cluster open a dataset. None where there is no cluster, or it is of no use to this
    dataset; with ``must`` that is an error. ``find_rail``: the network interface of this rank; ``says``: whether it
    is the one that warns of nodes that cannot."""
    if not must and not ray_node():
        return None
    try:
        if not source.encoded:
            raise OptionError("its samples are paths, and what lies there is read by decode")
        plain = source_to_plain(source)
        definition = json.dumps(plain).encode()
        if len(definition) > _LONGEST:
            raise OptionError(
                f"what it is made of takes {show_size(len(definition))}, and {show_size(_LONGEST)} is the most; name "
                "a folder, or a manifest, rather than each file"
            )
    except OptionError as error:
        if must:
            raise OptionError(
                f'share="ray": this dataset cannot be read by other nodes: {error}. Use share=True, which shares on '
                "this machine alone, or a source that is known by its arguments (docs/cluster.md)"
            ) from None
        return None
    found = find_members(must=must)
    if found is None:
        return None
    path, members = found
    rail = find_rail()
    pool = Pool(path, source.fingerprint(), definition, limit_of(plain), "" if rail is None else rail.address)
    joined = Joined(source, pool, members)
    joined.introduce(says=says)
    return joined
