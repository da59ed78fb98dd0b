"""Running orders of rows: the fetching and the preparing stage of one worker, or of the job's own process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone, decode_order
from headrace.coordinate.row_work import DECODE
from headrace.core.layout import RowLayout
from headrace.core.places import Place
from headrace.engine.ahead import AheadCopies
from headrace.engine.board import Board, Claim
from headrace.engine.bodies import Layouts
from headrace.engine.disk_stage import DiskStage
from headrace.engine.fetching import Fetched, FetchStage
from headrace.engine.gate import Gate
from headrace.engine.gil import GilProbe
from headrace.engine.held import HeldSamples
from headrace.engine.mask_files import MaskFiles
from headrace.engine.preparing import Collator, PrepareStage
from headrace.engine.store import Store
from headrace.recipes.program import Program
from headrace.sources.source import Source


class RowStages:
    """The two stages of a row order. ``fetch`` and ``prepare`` may run in different threads."""

    def __init__(
        self,
        source: Source,
        arena: Arena,
        board: Board,
        store: Store,
        layout: RowLayout | None,
        collator: Collator | None = None,
        masks: MaskFiles | None = None,
        place: Place | None = None,
        gate: Gate | None = None,
        disk: DiskStage | None = None,
        held: HeldSamples | None = None,
    ) -> None:
        """``masks``: reads the files that targets name, where they do. ``place``: where slots are, if not in the
        arena. ``gate``: told what is being read, in a worker. ``disk``: the tier below the cache, if there is one.
        ``held``: samples that a device holds."""
        self._arena, self._disk = arena, disk
        self.store = store
        layouts = Layouts(layout, targets=source.targets is not None)
        collates = collator is not None
        self._fetching = FetchStage(
            source, store, layouts, collates=collates, masks=masks, gate=gate, disk=disk, held=held
        )
        self.ahead = (
            AheadCopies(source, disk) if disk is not None and gate is not None and disk.copies else None
        )
        """What is copied where there is nothing else to do, in a worker."""
        self._preparing = PrepareStage(arena, board, store, layouts, collator, place, disk)

    def close(self) -> None:
        """No more orders are run here."""
        if self.ahead is not None:
            self.ahead.close()
        self.store.close()
        if self._disk is not None:
            self._disk.close()

    def load(self, claim: Claim) -> Order:
        """The order that a claim stands for. What comes from shared memory is checked."""
        return load_order(self._arena, claim)

    def look_ahead(self, samples: NDArray[np.int64]) -> list[int]:
        """Get what the tier below the cache has of samples that this thread fetches next; returns the places of those
        that have to be read."""
        return list(range(len(samples))) if self._disk is None else self._disk.look_ahead(samples)

    @property
    def patience(self) -> float:
        """Seconds for which storage is asked again for a sample."""
        return self._fetching.patience

    def fetch(self, order: Order, claim: Claim | None) -> Fetched:
        """Get the input of every row: from the cache, or from the source."""
        return self._fetching.fetch(order, claim)

    def prepare(self, fetched: Fetched, program: Program, probe: GilProbe | None = None) -> OrderDone:
        """Run the program over the rows, into the slot; what was published is open to all thereafter."""
        done = self._preparing.prepare(fetched, program, probe)
        rows = int(np.count_nonzero(fetched.ways >= DECODE))
        self._fetching.prepared(rows, done.spent.decode + done.spent.augment)
        if self._disk is not None:
            self._disk.saw(done.spent)
        return done


def load_order(arena: Arena, claim: Claim) -> Order:
    """The order that a claim stands for. Its place is checked against the arena before it is read."""
    if claim.start < 0 or claim.length < 0 or claim.start + claim.length > claim.area[1]:
        raise ValueError(f"order {claim.order} lies outside of its area")
    buffer = memoryview(arena.map(*claim.area))
    return decode_order(buffer[claim.start : claim.start + claim.length])
