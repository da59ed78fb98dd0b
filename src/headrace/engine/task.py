"""The task of a recipe's workers: row orders, from storage to the slot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from headrace.cache.arena import Arena
from headrace.core import environment
from headrace.core.layout import RowLayout
from headrace.engine.board import Board
from headrace.engine.deciding import Decider
from headrace.engine.disk_stage import DiskStage, DiskUse
from headrace.engine.gate import Gate
from headrace.engine.held import HeldSamples
from headrace.engine.link import Link
from headrace.engine.mask_files import MaskFiles
from headrace.engine.pipeline import RowPipeline
from headrace.engine.preparing import Collator
from headrace.engine.rows import RowStages
from headrace.engine.seat import Seat
from headrace.engine.store import Cache, LocalStore, Store
from headrace.engine.worker import AGENT, Runner
from headrace.recipes.compile import compile_recipe, decoded_form
from headrace.recipes.program import Program
from headrace.recipes.recipe import Recipe
from headrace.sources import crowding


@dataclass
class RecipeTask:
    """Prepare a recipe's samples as rows."""

    recipe: Recipe
    layout: RowLayout | None
    cache: Cache | None
    """The job's own, if it has one."""
    caches_decoded: bool
    threads: int = 1
    collator: Collator | None = None
    on_start: Callable[[Link], None] | None = None
    """Run in each worker before its first order."""
    store: Callable[[Arena, Board], Store] | None = None
    """Makes what cached extents are read from and written to; None: the job's own cache."""
    seat: Seat | None = None
    """The rank's among those who prepare on this machine."""
    disk: DiskUse | None = None
    """The disk tier, if the job uses one."""
    held: tuple[int, int] | None = None
    """Where in the arena it stands which samples a device holds, if one does."""
    agent: Callable[[Link, RecipeTask], Runner] | None = None
    """Makes what the worker of the number ``AGENT`` does."""

    def compile(self) -> Program:
        """A program for one thread."""
        return compile_recipe(self.recipe, caches_decoded=self.caches_decoded)

    def stages(self, arena: Arena, board: Board, gate: Gate | None = None) -> RowStages:
        """The stages, for a worker or, without a gate, for the job's own process."""
        store: Store = LocalStore(self.cache) if self.store is None else self.store(arena, board)
        masks = MaskFiles(self.recipe, gate) if self.recipe.followers else None
        source = self.recipe.source
        disk = None
        if self.disk is not None:
            # (what others have put there may be anything)
            form = decoded_form(self.recipe) if self.disk.decoded else None
            disk = DiskStage(self.disk, source, form, ahead=gate is not None)
        held = None if self.held is None else HeldSamples(arena, self.held, len(source))
        return RowStages(
            source, arena, board, store, self.layout, self.collator, masks, gate=gate, disk=disk, held=held
        )

    def start(self, link: Link) -> Runner:
        """Called in a worker as it starts."""
        _one_thread_for_opencv()
        if link.worker == AGENT and self.agent is not None:
            return self.agent(link, self)
        if self.on_start is not None:
            self.on_start(link)
        if self.seat is not None:
            self.seat.attach()
            if link.worker == 0:
                Decider(self.seat).start()
        seat, board = self.seat, link.board
        gate = Gate(
            None if seat is None else seat.reads,
            environment.reads(),
            None if seat is None else lambda: board.backlog() // seat.processes(),
            crowding.crowded,
        )
        crowding.on_room(gate)
        stages = self.stages(link.arena, link.board, gate)
        return RowPipeline(
            link,
            stages,
            self.compile,
            self.threads,
            measure=(self.recipe.user_code or self.collator is not None) and not self.recipe.user_randomness,
            store=stages.store,
            gate=gate,
            seat=self.seat,
            ahead=stages.ahead,
        )


def _one_thread_for_opencv() -> None:
    """OpenCV would start as many threads as there are CPUs, in every worker."""
    environment.one_opencv_thread()
    if "cv2" in sys.modules:
        # 0 means none beside the caller. 1 would first join the threads of a pool that the fork left behind.
        sys.modules["cv2"].setNumThreads(0)
