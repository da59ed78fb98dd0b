"""Whose order a loader's samples come in, the draws of an epoch in it, and the state that says how far it got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from headrace.coordinate.shared_draws import SharedDraws
from headrace.core.bits import Bits
from headrace.loader.dataset_sessions import AssignedSession
from headrace.loader.draws import (
    EndlessDraws,
    LooseDraws,
    SamplerDraws,
    before_first_epoch,
    draws_from_torch,
)
from headrace.loader.inline_sessions import InlineIterableSession
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import Session
from headrace.loader.spec import LoaderSpec
from headrace.loader.state import VERSION, LoaderState, pack_generator, unpack_seen
from headrace.loader.stateful import take
from headrace.sampling import Draw, Geometry, UniformDraws, UniformEpoch


class Ordering:
    """A loader's order: our own, a shared host's, a sampler's, or that of an iterable dataset."""

    def __init__(self, spec: LoaderSpec) -> None:
        self.spec = spec
        self.drawn_by_host, self._ours, self._iterable = (
            spec.drawn_by_host,
            spec.order.ours,
            spec.data.iterable,
        )
        self._by_index = spec.data.recipe is not None
        """Keys must be indices of samples, because a recipe prepares them."""
        self._sampler, self._batched = spec.order.keys, spec.batches.batched

    @property
    def sampling(self) -> str:
        """What ``LoaderState`` calls it."""
        if self.drawn_by_host:
            return "seen"
        return "iterable" if self._iterable else "uniform" if self._ours else "sampler"

    @property
    def samples(self) -> int:
        """Samples of the dataset, which has to know them."""
        return len(self.spec.data.dataset)

    @property
    def size(self) -> int | None:
        """Samples of an epoch, where that does not depend on a sampler or the dataset's iterator."""
        return None if self._iterable or not self._ours else self.samples

    def steps(self, resume: LoaderState | None) -> int | None:
        """Batches to the epoch's end, from its beginning or from a state on, where that is known."""
        size = self.size
        if size is None or resume is None:
            return None if size is None else self._geometry().steps(size)
        return self._geometry().steps(size - resume.position) - len(resume.early)

    @property
    def step(self) -> int:
        """Samples of one step, over all ranks."""
        return self.spec.batches.size * self.spec.options.world_size

    def _geometry(self) -> Geometry:
        batches, options = self.spec.batches, self.spec.options
        return Geometry(batches.size, options.rank, options.world_size, batches.drop_last)

    def seen(self, resume: LoaderState | None) -> Bits | None:
        """The samples that were delivered before, where a shared host draws the rest."""
        return None if resume is None else unpack_seen(resume.seen, self.samples)

    # -- draws --------------------------------------------------------------------------------------------

    def draws(self, seed: int, epoch: int, resume: LoaderState | None, session: Session) -> Any:
        """The draws of an epoch, or of what ``resume`` leaves of it."""
        sharing = session.sharing if isinstance(session, RecipeSession) else None
        if sharing is None:
            return self._own_draws(seed, epoch, resume)
        own = None if self.drawn_by_host else self._own_draws(seed, epoch, resume)
        given = self.seen(resume) if own is None else None
        return SharedDraws(sharing.client, seed=seed, epoch=epoch, given=given, own=own)

    def _own_draws(self, seed: int, epoch: int, resume: LoaderState | None) -> Any:
        position = resume.position if resume is not None else 0
        if self._iterable:
            return EndlessDraws(seed=seed, epoch=epoch, position=position)
        draws: Any
        if self._ours:
            draws = self._uniform_draws(seed, epoch, position)
        else:
            draws = SamplerDraws(
                self._sampler,
                batched=self._batched,
                seed=seed,
                epoch=self._keyed(epoch),
                size=self.samples if self._by_index else None,
                position=position,
                resume=resume.sampler if resume is not None else None,
                prefetched=self.spec.work.workers > 0 or self._by_index,
                every=self.spec.order.snapshot_every,
            )
        if self.spec.order.in_order:
            return draws
        return LooseDraws(draws, position=position, early=resume.early if resume is not None else ())

    def _uniform_draws(self, seed: int, epoch: int, position: int) -> UniformDraws:
        geometry = self._geometry()
        make = partial(
            UniformEpoch,
            self.samples,
            geometry,
            seed=seed,
            epoch=self._keyed(epoch),
            shuffle=self.spec.order.shuffle,
            position=position,
            # Random numbers of a dataset's batches go by their step, so an epoch that goes on counts on.
            first=0 if self._by_index else -(-position // (geometry.batch_size * geometry.world_size)),
        )
        return UniformDraws(make, seed)

    def _keyed(self, epoch: int) -> int:
        """The epoch as randomness sees it: where each epoch draws a seed of its own, that seed says it all."""
        return epoch if self.spec.options.seed is not None or self.spec.data.described else 0

    # -- state --------------------------------------------------------------------------------------------

    def state(self, place: Place) -> LoaderState:
        """Where a loader stands in the middle of an epoch."""
        state = self._state(place.seed, place.epoch, place.position)
        state.generator = place.generator
        draws, session = _drawn_here(place.draws), place.session
        if isinstance(draws, LooseDraws):
            state.early, draws = draws.early, draws.inner
        if isinstance(draws, SamplerDraws):
            state.sampler = draws.mark(place.position)
        if isinstance(session, AssignedSession | InlineIterableSession):
            state.workers = session.marks()
        if isinstance(session, AssignedSession):
            state.last = session.last
        state.dataset = self._dataset_state()
        return state

    def between(
        self,
        seed: int | None,
        epoch: int,
        over: Place | None,
        drawn: Callable[[], torch.Tensor],
    ) -> LoaderState:
        """Where a loader stands before an epoch, the first one or that after ``over``.

        ``drawn``: torch's global generator as the samplers of that epoch will find it.
        """
        state = self._state(seed, epoch, 0)
        state.dataset = self._dataset_state()
        generator = self.spec.order.generator
        if generator is not None:
            state.generator = pack_generator(generator.get_state())
        draws = _drawn_here(over.draws) if over is not None else None
        if isinstance(draws, LooseDraws):
            draws = draws.inner
        if isinstance(draws, SamplerDraws):
            state.sampler = draws.end()
        elif state.sampling == "sampler":
            state.sampler = before_first_epoch(self._sampler, batched=self._batched)
        if state.sampler is not None and draws_from_torch(self._sampler, batched=self._batched):
            state.sampler.torch = pack_generator(drawn())
        session = over.session if over is not None else None
        if isinstance(session, InlineIterableSession):
            (mark,) = state.workers = session.marks(between=True)
            mark.generators = session.next_generators(drawn)
        elif self.spec.work.keeps and isinstance(session, AssignedSession):
            state.workers = session.marks(between=True)
        return state

    def _state(self, seed: int | None, epoch: int, position: int) -> LoaderState:
        return LoaderState(
            VERSION, self.sampling, seed, epoch, position, size=self.size, shuffle=self.spec.order.shuffle
        )

    def _dataset_state(self) -> Any:
        # (what an iterable dataset says of itself is said once it was asked for its iterator: see ``Mark``)
        return None if self._by_index or self._iterable else take(self.spec.data.dataset)


def _drawn_here(draws: Any) -> Any:
    """What the job itself draws, also where a shared host is asked for what it has of that."""
    return draws.own if isinstance(draws, SharedDraws) else draws


@dataclass
class Place:
    """Where one iterator over a loader is."""

    seed: int
    epoch: int
    session: Session
    draws: Any
    """None where they were drawn before the epoch began."""
    position: int
    generator: str | None
    """The loader's generator, once the seed was drawn from it."""

    def deliver(self, drawn: Draw) -> None:
        """A batch is handed to the user."""
        self.position = drawn.position
        draws = _drawn_here(self.draws)
        if isinstance(draws, LooseDraws):
            draws.delivered(drawn.position)
            self.position, draws = draws.position, draws.inner
        if isinstance(draws, SamplerDraws):
            draws.delivered(self.position)
