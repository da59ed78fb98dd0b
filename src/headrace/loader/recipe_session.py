"""The session of a recipe: rows prepared by all workers together."""

from __future__ import annotations

import functools
import pickle
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headrace.cluster.agent import make_agent
from headrace.cluster.joining import Joined
from headrace.cluster.lines import Assistance
from headrace.coordinate.coordinator import Batch, Draws
from headrace.coordinate.messages import Order, OrderDone
from headrace.core import environment
from headrace.core.errors import HeadraceError, StorageUnavailable
from headrace.core.forms import Form
from headrace.core.layout import RowLayout
from headrace.engine.task import RecipeTask
from headrace.host.base import Host
from headrace.host.inline import InlineHost
from headrace.loader.device import Unsettled
from headrace.loader.disk_tier import use_disk
from headrace.loader.finishing import Finisher, rows_kept
from headrace.loader.global_random import own_randomness
from headrace.loader.learning import Learning
from headrace.loader.left_rows import COPIES, Leaves, LeftRows, Opening
from headrace.loader.node_staff import NodeStaff
from headrace.loader.objects import begin_worker
from headrace.loader.recipe_cache import RecipeCache
from headrace.loader.recipe_depth import RecipeDepth, RecipeOrders
from headrace.loader.recipe_rows import RowBatches, probe_layout
from headrace.loader.sessions import ErrorBook, Hosted, HostParts, make_host
from headrace.loader.sharing import Sharing
from headrace.loader.spec import LoaderSpec
from headrace.loader.staffing import Staffing
from headrace.planning import Staff
from headrace.planning.best_effort import HORIZON
from headrace.recipes.compile import compile_recipe
from headrace.recipes.program import Program
from headrace.recipes.recipe import Recipe

_NOT_THERE = (
    "gpu_decode=, gpu_cache=: no image of this recipe is decoded on the GPU. It can be where JPEG images are decoded "
    "in colour, then cropped, resized (bilinear) or flipped to one size, and after that at most normalised, laid out "
    "and erased in part (docs/gpu.md)"
)
_NO_PIXELS = torch.empty(0, dtype=torch.uint8)


class RecipeSession(Hosted):
    """A recipe's rows, prepared by all workers together, straight into the slot."""

    def __init__(
        self,
        spec: LoaderSpec,
        recipe: Recipe,
        book: ErrorBook,
        *,
        seed: int,
        pins: bool,
        sharing: Sharing | None = None,
        pool: Joined | None = None,
        learns: bool = True,
        finisher: Finisher | None = None,
        leaves: Leaves | None = None,
    ) -> None:
        """``sharing``: draws and cache come from the shared host. ``pool``: samples come from a cluster's memory.
        ``learns``: what it finds out is kept for the next start. ``finisher``: does on a device what the recipe
        leaves undone. ``leaves``: what workers leave to it."""
        super().__init__(book, pins=pins)
        self.recipe, self.sharing, self.collator = recipe, sharing, spec.data.collator
        self.pool = pool
        budgets = spec.options.budgets
        self._staffing = Staffing(recipe, self.collator, spec.work)
        self.disk = use_disk(
            spec.options.disk,
            recipe,
            cache=budgets,
            staff=self._staffing.now,
            pool=pool,
            nodes=spec.options.nodes and (budgets[Form.DECODED] > 0 or sharing is not None),
        )
        on_disk = self.disk is not None and self.disk.decoded > 0
        # (another job may have cached decoded samples that this one gets)
        self.caches_decoded = budgets[Form.DECODED] > 0 or sharing is not None or on_disk
        if sharing is not None:
            budgets = dict.fromkeys(budgets, 0)  # the cache is the shared host's
        self._batched = spec.batches.batched
        self._assistance = self._find_assistance(spec)
        helpers = int if pool is None or self._assistance is None else lambda: pool.helpers
        orders = RecipeOrders(spec, self._staffing, sharing, helpers)
        program = compile_recipe(recipe, caches_decoded=self.caches_decoded)
        layout = program.layout if self.collator is None else None
        parts = HostParts.build(len(recipe.source), {**budgets, Form.AUGMENTED: 0})
        self._node = NodeStaff(self._staffing.take_seat(), spec.options.world_size)
        left = program.left_rows if self.collator is None else None
        self.could_leave = leaves is None and left is not None
        """Whether rows could be left to a device, and are not."""
        self.could_hold = left is not None and left.can_be_held and (leaves is None or not leaves.cache)
        """Whether images could be held by a device, and are not."""
        if leaves is not None and left is None:
            warnings.warn(_NOT_THERE, stacklevel=2)
        task = self._task(spec, parts, layout, seed)
        if leaves is not None and left is not None and left.can_be_held:
            task.held = leaves.room(parts.arena, len(recipe.source))
        try:
            self.host = self._make_host(spec, parts, orders, task, program)
        except BaseException:
            self._node.leave()
            raise
        self._depth = RecipeDepth(self.host, orders, self._staffing, budgets[Form.AUGMENTED])
        inline = self._staffing.workers == 0
        self._learning = Learning(recipe, self.host, keeps=learns, cached=self.caches_decoded, inline=inline)
        self.cache = RecipeCache(self.host)
        if spec.options.plans and parts.cache is not None:
            self.cache.plan(parts.directory, self._learning, self.workers, self.disk)
        self._seed = 0
        self._finisher = finisher
        self.left: LeftRows | None = None
        if leaves is not None and left is not None:
            self.left = leaves.rows(left.spec, parts.arena, task.held, len(recipe.source))
            self.copies = COPIES
            self.host.coordinator.leave, self.host.coordinator.holds = self.left.share, self.left.holds
        self._unknown = False
        """Only a first sample shows how samples look."""
        self._rows: RowBatches | None = None
        if layout is not None:
            self._lay_out(layout)

    def _find_assistance(self, spec: LoaderSpec) -> Assistance | None:
        """What others have to know to prepare rows for this rank; None: they cannot."""
        staffing = self._staffing
        # (where workers are to be readied by a function, others would not be)
        readied = spec.work.init is not None and staffing.user_code
        if self.pool is None or self.collator is not None or not staffing.workers or readied:
            return None
        if not environment.helped():
            return None
        return self.pool.assistance(
            self.recipe, decoded=self.caches_decoded, tier=self.disk, workers=staffing.workers
        )

    def _task(self, spec: LoaderSpec, parts: HostParts, layout: RowLayout | None, seed: int) -> RecipeTask:
        """What workers do."""
        init, staffing, sharing = spec.work.init, self._staffing, self.sharing
        on_start = None
        if init is not None or staffing.user_code:
            # (what workers are told that they serve, where that is a dataset of the user's)
            dataset = None if spec.data.described else spec.data.dataset
            on_start = functools.partial(_start_recipe_worker, staffing.workers, seed, dataset, init)
        pool = self.pool
        agent = None if self._assistance is None else functools.partial(make_agent, self._assistance)
        return RecipeTask(
            self.recipe if pool is None else replace(self.recipe, source=pool.source),
            layout,
            parts.cache,
            self.caches_decoded,
            staffing.now.threads,
            self.collator,
            on_start,
            None if sharing is None else sharing.store,
            self._node.seat,
            self.disk,
            agent=agent,
        )

    def _make_host(
        self, spec: LoaderSpec, parts: HostParts, orders: RecipeOrders, task: RecipeTask, program: Program
    ) -> Host:
        workers, user_code = self._staffing.workers, self._staffing.user_code
        stages = task.stages(parts.arena, parts.board) if workers == 0 else None
        run = None
        if stages is not None:

            def run(order: Order) -> OrderDone:
                try:
                    with own_randomness(user_code):
                        return stages.prepare(stages.fetch(order, None), program)
                except StorageUnavailable:
                    host.close()  # as where a worker cannot go on: nobody is to be given less than an epoch
                    raise

        host = make_host(
            parts,
            rows=orders.rows,
            nbytes=task.layout.nbytes(orders.size) if task.layout is not None else 0,
            ahead=orders.ahead,
            in_order=spec.order.in_order,
            workers=workers,
            task=task,
            context=spec.work.context,
            run=run,
            shared=None if self.sharing is None else self.sharing.client,
            agent=task.agent is not None,
        )
        if self.disk is not None and self.disk.encoded:
            host.coordinator.horizon = HORIZON
        if stages is not None and isinstance(host, InlineHost):
            host.on_close = stages.close
        return host

    @property
    def workers(self) -> Staff:
        """Processes and threads at work."""
        return self._staffing.now

    @property
    def preparing_most(self) -> int:
        """Threads that prepared at once on this machine, at most, where they had to take turns."""
        return 0 if self._node.seat is None else self._node.seat.most

    @property
    def finished_steps(self) -> tuple[str, ...]:
        """What is done on a device, in the place of workers."""
        return () if self._finisher is None else self._finisher.steps

    @property
    def layout(self) -> RowLayout | None:
        """How rows lie, once that is known."""
        return None if self._rows is None else self._rows.layout

    def _lay_out(self, layout: RowLayout) -> None:
        """It is known how rows lie."""
        self._rows = RowBatches(self.recipe, layout, batched=self._batched, rule=self._book.rule)
        self.host.bytes_for = layout.nbytes
        self._depth.laid_out(layout)

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        self._unknown = self._rows is None and self.collator is None
        self._seed = draws.seed
        self._pause()
        super().begin(draws, following)

    def follow(self, draws: Draws) -> None:
        """See ``Hosted``."""
        self._pause()
        super().follow(draws)

    def _pause(self) -> None:
        """An epoch begins: what was measured goes on from here."""
        self._learning.pause()
        self._depth.pause()
        self.cache.check()
        if self.left is not None:
            self.left.pause()

    def close(self) -> None:
        """See ``Session``."""
        self._learning.close(self.workers, self.layout)
        super().close()
        if self.left is not None:
            self.left.close()
        if self.pool is not None:
            self.pool.close()
        self._node.leave()

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        self._learning.asked()
        if self._unknown:
            found = probe_layout(self.recipe, self.host, self._seed, timeout, rule=self._book.rule)
            self.host.layout = found
            self._lay_out(pickle.loads(found))
            self._unknown = False
        if self.sharing is not None:
            self.sharing.open(self.layout)
        batch = self.host.next_batch(timeout)
        if self._staffing.adapt(self.host):
            self._depth.staffed(self.workers)
            self._node.staffed(self.workers)
        if batch is None:
            return None
        self._node.taken(batch, self.host, self._depth)
        self._depth.taken(
            company=0 if self.sharing is None else self.sharing.client.company,
            took=batch.took,
            elsewhere=self._node.slowest,
        )
        self.cache.look(self.workers, self.layout)
        if self.left is not None:
            leave = self.left.taken(len(batch.draw.indices), self.host.totals.waited)
            self.host.coordinator.leave, self.host.coordinator.holds = leave, self.left.holds
        if batch.left:
            value = self._unsettled(batch)
        else:
            value = self._placed(self._value(batch), self._finish(batch))
        self._learning.given(len(batch.draw.indices), self.workers, self.layout)
        return batch.draw, value

    def _unsettled(self, batch: Batch) -> Any:
        """A batch some rows of which have to be decoded first."""
        assert self._rows is not None and self.left is not None
        lease, self._lent = self._lease(batch), None
        memory = self._rows.layout.views(lease, len(batch.draw.indices))[0]
        return _Unsettled(self, batch, lease, self.left.begin(memory, batch.left, batch.draw.indices))

    def settle(self, batch: Batch, lease: Any, opening: Opening) -> Any:
        """A batch all rows of which are decoded."""
        assert self._rows is not None
        if opening.faults:
            batch.faults = sorted([*batch.faults, *((row, why, "") for row, why in opening.faults.items())])
        bad = self._book.note(batch)
        value = self._rows.value(lease, batch.draw, bad, self._seed)
        if opening.whole and not bad:  # (there is nothing to be copied)
            value = _NO_PIXELS if isinstance(value, torch.Tensor) else type(value)([_NO_PIXELS, *value[1:]])
        self._lent = lease
        return self._placed(value, self._finish(batch, opening))

    def _finish(self, batch: Batch, opening: Opening | None = None) -> Callable[[Any], Any] | None:
        """What is left to be done with a batch once it is on its device. ``opening``: rows that are decoded there."""
        finisher, left = self._finisher, self.left
        if finisher is None and opening is None:
            return None
        bad = sorted({row for row, *_ in batch.faults})
        rows = rows_kept(self._book.rule, bad, len(batch.draw.indices))
        seed, batched = self._seed, self._batched

        def finish(value: Any) -> Any:
            pixels, rest = (value, None) if isinstance(value, torch.Tensor) else (value[0], value[1:])
            done = pixels if batched else pixels[None]
            if opening is not None and left is not None:
                done = left.cut(opening, done, rows)
            if finisher is not None:
                done = finisher(done, batch.draw, seed, rows)
            done = done if batched else done[0]
            return done if rest is None else type(value)([done, *rest])

        return finish

    def _value(self, batch: Batch) -> Any:
        if self.collator is not None:
            return self._collated(batch)
        assert self._rows is not None
        try:
            bad = self._book.note(batch)
        except HeadraceError:
            self._give_back(batch)
            raise
        return self._rows.value(self._lease(batch), batch.draw, bad, self._seed)


class _Unsettled(Unsettled):
    """A batch some rows of which are being decoded on the device."""

    def __init__(self, session: RecipeSession, batch: Batch, lease: Any, opening: Opening) -> None:
        self._session, self._batch, self._lease, self._opening = session, batch, lease, opening

    @property
    def ready(self) -> bool:
        return self._opening.ready

    def settle(self, timeout: float | None) -> Any:
        begun = time.perf_counter()
        self._opening.wait(timeout)
        if self._session.left is not None:
            self._session.left.waited += time.perf_counter() - begun
        lease, self._lease = self._lease, None
        return self._session.settle(self._batch, lease, self._opening)


def _start_recipe_worker(
    num_workers: int, base_seed: int, dataset: Any, init: Callable[[int], None] | None, link: Any
) -> None:
    """User code may use torch, whose own threads do not survive a fork; and each worker is one of many anyway."""
    begin_worker(link.worker, num_workers, base_seed, dataset, init)
