"""Whose order a loader's samples come in, the draws of an epoch in it, and the state that says how far it got."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.core.bits import Bits
from headrace.loader.draws import EndlessDraws, SamplerDraws, UniformDraws
from headrace.loader.options import Options
from headrace.loader.recipe_dataset import RecipeDataset
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import Session
from headrace.loader.sharing import SharedDraws
from headrace.loader.state import VERSION, LoaderState, unpack_seen
from headrace.sampling import Geometry, UniformEpoch


@dataclass
class Ordering:
    """A loader's order: our own, a shared host's, a sampler's, or that of an iterable dataset."""

    dataset: Any
    options: Options
    ours: bool
    """The user gave no sampler."""
    iterable: bool
    sampler: Any
    """Yields lists of keys where ``batched``, else keys."""
    batched: bool
    batch_size: int
    drop_last: bool
    shuffle: bool
    by_index: bool
    """Keys must be indices of samples, because a recipe prepares them."""
    prefetches: bool
    """Samplers are read ahead of what is delivered, so that their own state says nothing."""

    @property
    def drawn_by_host(self) -> bool:
        """Whether a shared host chooses the samples."""
        return self.options.share and self.options.sampling != "uniform"

    @property
    def sampling(self) -> str:
        """What ``LoaderState`` calls it."""
        if self.drawn_by_host:
            return "seen"
        return "iterable" if self.iterable else "uniform" if self.ours else "sampler"

    @property
    def samples(self) -> int:
        """Samples of the dataset, which has to know them."""
        return len(self.dataset)

    @property
    def size(self) -> int | None:
        """Samples of an epoch, where that does not depend on a sampler or the dataset's iterator."""
        return None if self.iterable or not self.ours else self.samples

    def steps(self, position: int) -> int | None:
        """Batches from ``position`` to the epoch's end, where that is known."""
        size = self.size
        return None if size is None else self._geometry().steps(size - position)

    def _geometry(self) -> Geometry:
        return Geometry(self.batch_size, self.options.rank, self.options.world_size, self.drop_last)

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
        if self.iterable:
            return EndlessDraws(seed=seed, epoch=epoch)
        if not self.ours:
            if resume is not None and resume.sampler is not None:
                self.sampler.load_state_dict(resume.sampler)
            skip = resume.position if resume is not None and resume.sampler is None else 0
            # (a sampler that keeps a state of its own goes on by itself)
            return SamplerDraws(
                self.sampler,
                batched=self.batched,
                seed=seed,
                epoch=self._keyed(epoch),
                size=self.samples if self.by_index else None,
                skip=skip,
            )
        make = partial(
            UniformEpoch,
            self.samples,
            self._geometry(),
            seed=seed,
            epoch=self._keyed(epoch),
            shuffle=self.shuffle,
            position=resume.position if resume is not None else 0,
        )
        return UniformDraws(make, seed)

    def _keyed(self, epoch: int) -> int:
        """The epoch as randomness sees it: where each epoch draws a seed of its own, that seed says it all."""
        return epoch if self.options.seed is not None or isinstance(self.dataset, RecipeDataset) else 0

    # -- state --------------------------------------------------------------------------------------------

    def state(self, seed: int | None, epoch: int, position: int, session: Session | None) -> LoaderState:
        """Where a loader stands at ``position`` of an epoch that ``session`` delivers."""
        state = LoaderState(
            VERSION, self.sampling, seed, epoch, position, size=self.size, shuffle=self.shuffle
        )
        if state.sampling == "sampler" and position and not self.prefetches and _stateful(self.sampler):
            state.sampler = self.sampler.state_dict()
        delivered = getattr(session, "delivered", None)
        if delivered is not None:
            state.workers = list(delivered)
        return state


def _stateful(owner: Any) -> bool:
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")
