"""The datasets that a server holds samples of: what they are made of, and this node's part, which is read ahead.

A dataset is listed here: what this node sees has to be what the job sees. One that no job uses is forgotten for one
that a job does, and made of its definition again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.cluster.fetching import Dataset, Fetcher, Preload
from headrace.cluster.limits import limit_of
from headrace.cluster.memory import PoolMemory
from headrace.cluster.messages import MOST_CAME, Ahead, Arrived, Came, Define, View
from headrace.cluster.placement import Placement, moves
from headrace.core.errors import HeadraceError, ProtocolError
from headrace.recipes.plain import source_from_plain
from headrace.sampling.uniform import epoch_order

_MOST_DATASETS = 64
_LISTING = 600.0
"""Seconds for which somebody waits for a dataset that another is listing."""


class CannotOpen(HeadraceError):
    """A dataset is not to be had here, or is another one here. Who asked goes on without this node."""


class Datasets:
    """Those of one server. Threads that answer requests call."""

    def __init__(self, node: str, memory: PoolMemory, fetcher: Fetcher, log: Callable[[str], None]) -> None:
        self._node, self._memory, self._fetcher, self._log = node, memory, fetcher, log
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._datasets: dict[str, Dataset] = {}
        self._defining: set[str] = set()
        """Those that are being listed. They count: what nobody has room for need not be listed."""
        self._preloads: dict[str, tuple[Ahead, Preload]] = {}
        self._view = View(0)

    def __iter__(self) -> Iterator[Dataset]:
        with self._lock:
            return iter(list(self._datasets.values()))

    def get(self, name: str) -> Dataset | None:
        """One that is known here."""
        return self._datasets.get(name)

    def define(self, define: Define) -> Dataset:
        """Make a dataset of its definition, unless it is known. Of jobs that limit samples differently, the highest
        limit holds here: each of them looks for itself whether it takes what it is given."""
        name = define.dataset
        with self._changed:
            if not self._changed.wait_for(lambda: name not in self._defining, _LISTING):
                raise CannotOpen(
                    "it is still listing the data"
                )  # (its storage may hang; who waits has a thread)
            before = self._datasets.get(name)
            while before is None and len(self._datasets.keys() | self._defining) >= _MOST_DATASETS:
                if not self._forget():
                    raise ProtocolError(
                        f"this server has {_MOST_DATASETS} datasets that jobs use, and takes no more"
                    )
            self._defining.add(name)
        try:
            found = self._open(define, before)
            with self._lock:
                # (one that was known may have been forgotten meanwhile)
                self._memory.open(name, found.samples)
                self._datasets[name] = found
            return found
        except CannotOpen:
            raise
        except (
            Exception
        ) as error:  # (of libraries that talk to storage, too; and there may be no memory for it)
            known = isinstance(error, HeadraceError | OSError | ValueError)
            said = str(error) if known else f"{type(error).__name__}: {error}"
            self._log(f"the data cannot be opened: {said}")
            raise CannotOpen(f"it cannot open the data: {said}") from error
        finally:
            with self._changed:
                self._defining.discard(name)
                self._changed.notify_all()

    def _open(self, define: Define, before: Dataset | None) -> Dataset:
        plain = json.loads(define.definition)
        limit = limit_of(plain)
        if before is not None and limit <= before.limit:
            return before
        source = source_from_plain(plain)
        if source.fingerprint() != define.dataset:
            # (how many they are may differ from node to node, and is nothing to make many warnings of)
            self._log(f"{len(source)} files here, which are others than a job sees: {source!r:.512}")
            raise CannotOpen(
                "it sees other files there than the job does, or other versions of them; give all nodes the same "
                "storage at the same path"
            )
        if before is None:
            return Dataset(define.dataset, source, repr(source)[:512], limit)
        before.source, before.limit = source, limit
        return before

    def _forget(self) -> bool:
        """Forget a dataset that nobody uses, if there is one. (Who does after all is asked what it is made of.)"""
        name = self._memory.forget()
        if name is None:
            return False
        self._datasets.pop(name, None)
        if name in self._preloads:
            self._preloads.pop(name)[1].stop()
        return True

    def preload(self, ahead: Ahead) -> None:
        """Read what is this node's part of an epoch, in the order of its use; what was begun before is left."""
        with self._lock:
            # (nobody forgets it from here on)
            dataset = self._datasets.get(ahead.dataset)
            if dataset is None:
                raise ProtocolError("that dataset is not known here")
            if ahead.position > dataset.samples:
                raise ProtocolError(f"position {ahead.position} of {dataset.samples}")
            before, _ = self._preloads.get(ahead.dataset, (None, None))
            # (others may be in the middle of the same, unless what they had was let go meanwhile; but a job that is
            # started anew may say what it said before)
            if not (ahead.shared and before == ahead) or self._memory.was_let_go(ahead.dataset):
                self._memory.drop_ahead(ahead.dataset)
                dataset.asked[:] = False
            self._read(dataset, ahead)

    def _read(self, dataset: Dataset, ahead: Ahead) -> None:
        if dataset.name in self._preloads:
            self._preloads[dataset.name][1].stop()
        placement = Placement(self._view, dataset.name, dataset.samples)

        def order() -> NDArray[np.int64]:
            samples = epoch_order(dataset.samples, ahead.seed, ahead.epoch, ahead.shuffled)[ahead.position :]
            mine: NDArray[np.bool_] = placement.nodes_of(samples) == placement.place_of(self._node)
            return samples[mine]

        preload = Preload(self._fetcher, self._memory, dataset, order, shared=ahead.shared)
        self._preloads[dataset.name] = ahead, preload

    def came(self, request: Came) -> Arrived:
        """What is held since somebody last asked. Of a dataset that is not known, nothing: that is no reason to end
        the connection, as it is asked again several times a second."""
        dataset = self._datasets.get(request.dataset)
        if dataset is None:
            return Arrived(0, b"", False)
        with self._lock:
            _, preload = self._preloads.get(dataset.name, (None, None))
        # (asked before what has come is looked at: whoever hears that no more comes has heard of all)
        reads = preload is not None and preload.reads
        count, samples, room = self._memory.came(dataset.name, request.since, MOST_CAME)
        more = len(samples) == 8 * MOST_CAME or (reads and room)
        return Arrived(count, samples, more)

    def see(self, view: View) -> None:
        """Other servers have come or gone: what they had may be this node's to read by now."""
        with self._lock:
            if view.number <= self._view.number:
                return
            moved, self._view = moves(self._view, view), view
            # (all under one lock: a job may be about to begin another epoch)
            for name, (ahead, _) in list(self._preloads.items()) if moved else []:
                self._read(self._datasets[name], ahead)

    def close(self) -> None:
        """Read no more."""
        with self._lock:
            for _, preload in self._preloads.values():
                preload.stop()
