"""The session of a recipe: rows prepared by all workers together."""

from __future__ import annotations

import functools
import pickle
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.coordinate.coordinator import Batch, Draws
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.splitter import Splitter
from headrace.core.errors import BadSample, HeadraceError, SampleError, TooManyBadSamples
from headrace.core.forms import Form
from headrace.core.layout import RowLayout, aligned
from headrace.core.sizes import show_size
from headrace.core.sparse import PAGE
from headrace.engine.task import RecipeTask
from headrace.host.embedded import ProcessHost
from headrace.loader.depth import Depth
from headrace.loader.global_random import own_randomness
from headrace.loader.learning import Learning
from headrace.loader.mixing import Mixer
from headrace.loader.objects import begin_worker
from headrace.loader.place import cpus_per_rank
from headrace.loader.recipe_collate import RecipeCollator
from headrace.loader.sessions import SKIPPED, ErrorBook, Hosted, HostParts, collated_value, make_host
from headrace.loader.sharing import Sharing
from headrace.loader.sums import host_sums, means_of
from headrace.loader.wrap import RowWrapper, close_gaps, fill_gaps
from headrace.planning import Measured, Staff, ahead_at_first, rows_per_order, staff
from headrace.recipes.compile import compile_recipe
from headrace.recipes.recipe import Recipe

_PROBES = 16
"""Samples tried, at most, to find out how samples look."""


class RecipeSession(Hosted):
    """A recipe's rows, prepared by all workers together, straight into the slot."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        batch_size: int | None,
        budgets: dict[Form, int],
        plans: bool,
        num_workers: int,
        own_number: bool,
        ahead: int | None,
        in_order: bool,
        context: Any,
        book: ErrorBook,
        pin: bool,
        collator: RecipeCollator | None,
        dataset: Any = None,
        worker_init_fn: Callable[[int], None] | None,
        base_seed: int,
        sharing: Sharing | None = None,
        learns: bool = True,
    ) -> None:
        """``plans``: the cache is split anew when measurements suggest it. ``own_number``: the user chose
        ``num_workers``. ``batch_size=None``: samples one by one. ``sharing``:
        draws and cache come from the shared host. ``learns``: what it finds out is kept for the next start.
        ``dataset``: what workers are told that they serve, where that is a dataset of the user's."""
        self._recipe = self.recipe = recipe
        self._batched = batch_size is not None
        self._own = num_workers if own_number else None
        self._book = book
        # (another job may have cached decoded samples that this one gets)
        caches_decoded = budgets[Form.DECODED] > 0 or sharing is not None
        self.caches_decoded = caches_decoded
        self.sharing = sharing
        if sharing is not None:
            budgets = dict.fromkeys(budgets, 0)  # the cache is the shared host's
        program = compile_recipe(recipe, caches_decoded=caches_decoded)
        user_code = recipe.user_code or collator is not None
        # Steps of the user's that draw from global generators need a process each: threads would share those. (Of
        # collate functions, one runs at a time.)
        alone = recipe.user_randomness or (collator is not None and recipe.target_transform is not None)
        self._user_code = user_code and not alone
        held = 1.0 if alone else -1.0 if user_code else None
        self._staff = staff(cpus_per_rank(), self._own, held)
        if not own_number and num_workers > 0:
            num_workers = self._staff.processes
        hands = max(1, num_workers * self._staff.threads)
        size = batch_size or 1
        # One job never gets the same augmented sample twice, so what it can keep of that form are batches that
        # are ready before it asks: the budget is depth.
        self._depth_budget = budgets[Form.AUGMENTED]
        parts = HostParts.build(len(recipe.source), {**budgets, Form.AUGMENTED: 0})
        self.collator = collator
        self._layout = None if collator is not None else program.layout
        self._wrapper = RowWrapper(self._layout, batched=self._batched) if self._layout else None
        on_start = None
        if worker_init_fn is not None or user_code:
            on_start = functools.partial(
                _start_recipe_worker, num_workers, base_seed, dataset, worker_init_fn
            )
        task = RecipeTask(
            recipe,
            self._layout,
            parts.cache,
            caches_decoded,
            self._staff.threads,
            collator,
            on_start,
            None if sharing is None else sharing.store,
        )
        shared: dict[str, Any] = {} if sharing is None else {"shared": True, "ranks": sharing.world_size}
        rows = None if collator is not None else rows_per_order(size, hands, **shared)
        self._tunes = ahead is None and rows is not None
        self._follows_hands = ahead is None and rows is None
        if ahead is None:
            ahead = num_workers + hands if rows is None else ahead_at_first(size, hands, rows, **shared)
        run = None
        if num_workers == 0:
            stages = task.stages(parts.arena, parts.board)

            def run(order: Order) -> OrderDone:
                with own_randomness(user_code):
                    return stages.prepare(stages.fetch(order, None), program)

        self._collated = collator is not None
        host = self.host = make_host(
            parts,
            rows=rows,
            nbytes=self._layout.nbytes(size) if self._layout else 0,
            ahead=max(1, ahead),
            in_order=in_order,
            workers=num_workers,
            task=task,
            context=context,
            run=run,
            shared=None if sharing is None else sharing.client,
        )
        if num_workers == 0:
            host.on_close = stages.store.close
        self._size = size
        # (where there are many hands, more than that may be ahead from the start)
        self._depth = Depth(host, most=max(4, 2 * num_workers, 2 * ahead), hands=hands)
        self._learning = Learning(
            recipe, self.host, keeps=learns, cached=caches_decoded, inline=num_workers == 0
        )
        self._splitter = None
        if plans and parts.cache is not None:
            before = self._learning.terms(sum(parts.directory.budgets.values()), self._staff)
            self._splitter = Splitter(parts.directory, self._sums(), before)
        if self._tunes:
            self.host.spare = 1
        self._warned = False
        self._mixer: Mixer | None = None
        self._seed = 0
        self._unknown: int | None = None
        """The seed to try a first sample with, where only that shows how samples look."""
        if self._layout is not None:
            self.host.bytes_for = self._layout.nbytes
            self._deepen()
        self._pins = pin

    @property
    def workers(self) -> Staff:
        """Processes and threads at work."""
        return self._staff

    @property
    def layout(self) -> RowLayout | None:
        """How rows lie, once that is known."""
        return self._layout

    def _deepen(self) -> None:
        """Let as many more batches be ready ahead as the budget for augmented samples holds."""
        if isinstance(self.host, ProcessHost) and self._layout is not None:
            self.host.ahead += self._depth_budget // aligned(self._layout.nbytes(self._size), PAGE)
            self.host.slots.keep = self.host.ahead + 1

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        if self._layout is None and not self._collated:
            self._unknown = draws.seed
        self._seed = draws.seed
        self._learning.pause()
        self._check_cache()
        super().begin(draws, following)

    def follow(self, draws: Draws) -> None:
        """See ``Hosted``."""
        self._learning.pause()
        self._check_cache()
        super().follow(draws)

    def close(self) -> None:
        """See ``Session``."""
        self._learning.close(self._staff, self._layout)
        super().close()

    def _discover(self, seed: int, timeout: float | None) -> None:
        """Find out how samples look where only user code can say."""
        faults: list[BadSample] = []
        for index in range(min(_PROBES, len(self._recipe.source))):
            order = Order(-1, 0, 0, 1, 0, seed, 0, 0, np.array([index], np.int64).tobytes())
            done = self.host.probe(order, timeout)
            if done.result:
                layout: RowLayout = pickle.loads(done.result)
                self._layout = layout
                self._wrapper = RowWrapper(layout, batched=self._batched)
                self.host.layout = done.result
                self.host.bytes_for = layout.nbytes
                self._deepen()
                return
            for _, reason, trace in done.faults:
                faults.append(BadSample(index, self._recipe.source.name(index), reason, 0, trace))
        if faults:
            raise SampleError(faults[0]) if self._book.rule == "raise" else TooManyBadSamples(faults, 0)
        raise HeadraceError(
            f"{self._recipe!r} gives samples that cannot be laid out as arrays; pass collate="
        )

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        self._learning.asked()
        if self._unknown is not None:
            self._discover(self._unknown, timeout)
            self._unknown = None
        if self.sharing is not None:
            self.sharing.open(self._layout)
        batch = self.host.next_batch(timeout)
        if self._user_code and self.host.totals.gil_held >= 0:
            self._adapt()
        if batch is None:
            return None
        if self._tunes:
            self._depth.taken(company=0 if self.sharing is None else self.sharing.client.company)
        if self._splitter is not None:
            self._split(self._splitter)
        value = self._pinned(self._value(batch))
        self._learning.given(len(batch.drawn.indices), self._staff, self._layout)
        return batch.drawn, value

    def _check_cache(self) -> None:
        """Between epochs, how large samples are is known: say once if the cache has no room for any."""
        directory = self.host.coordinator.directory
        needed = directory.too_small_for() if isinstance(directory, Directory) else 0
        if needed and not self._warned:
            self._warned = True
            warnings.warn(
                f"cache= is {show_size(sum(directory.budgets.values()))}, and a sample takes {show_size(needed)}, so "
                "nothing is cached; write a size such as '8GiB', or a share of the memory such as 0.25",
                stacklevel=4,
            )

    def _split(self, splitter: Splitter) -> None:
        """Now and then: divide the cache by what was measured."""
        if splitter.is_due(time.perf_counter()):
            augmented = self._layout.nbytes(1) if self._layout is not None else 0.0
            splitter.look(self._sums(), means_of(self._staff), augmented)

    def _sums(self) -> Measured:
        host = self.host
        return host_sums(host, sum(host.coordinator.directory.hits.values()), host.totals.waited)

    def _adapt(self) -> None:
        """Once it is known whether user code holds the interpreter lock: more threads, or more processes."""
        self._user_code = False
        host = self.host
        if not isinstance(host, ProcessHost):
            return
        wanted = staff(cpus_per_rank(), self._own, host.totals.gil_held)
        for _ in range(wanted.processes - self._staff.processes):
            host.add_worker()
        if wanted.threads != self._staff.threads:
            host.set_threads(wanted.threads)
        self._staff = wanted
        if self._follows_hands:  # each hand has a batch of its own
            host.ahead = max(host.ahead, wanted.processes * (1 + wanted.threads))
            host.slots.keep = host.ahead + 1

    def _value(self, batch: Batch) -> Any:
        if self._collated:
            return collated_value(batch, self._book, self._lease, self._give_back)
        assert self._layout is not None and self._wrapper is not None
        rows = good = len(batch.drawn.indices)
        try:
            bad = self._book.note(batch)
        except HeadraceError:
            self._give_back(batch)
            raise
        lease = self._lease(batch)
        views = self._layout.views(lease, rows) if bad or self._recipe.batch is not None else []
        if bad:
            if self._book.rule == "skip":
                good = close_gaps(views, bad, rows)
            elif not fill_gaps(views, bad, rows):
                good = 0
            if not good:
                return SKIPPED
        value = self._wrapper.wrap(lease, rows, good)
        if self._recipe.batch is not None:
            self._mixer = self._mixer or Mixer(self._recipe, self._layout)
            value[1] = self._mixer(views, good, batch.drawn, self._seed)
        return value


def _start_recipe_worker(
    num_workers: int, base_seed: int, dataset: Any, init: Callable[[int], None] | None, link: Any
) -> None:
    """User code may use torch, whose own threads do not survive a fork; and each worker is one of many anyway."""
    begin_worker(link.worker, num_workers, base_seed, dataset, init)
