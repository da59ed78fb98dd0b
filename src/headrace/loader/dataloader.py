"""``headrace.DataLoader``: torch's, with another engine."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils import data as torch_data

from headrace.core.bits import Bits
from headrace.core.errors import BadSample, LoaderClosed, OptionError, StateError
from headrace.core.memory import usable_cpus
from headrace.core.sizes import parse_size
from headrace.loader.dataset_sessions import (
    InlineIterableSession,
    InlineSession,
    IterableSession,
    ObjectSession,
)
from headrace.loader.draws import EndlessDraws, SamplerDraws, UniformDraws
from headrace.loader.iterator import EpochIterator
from headrace.loader.objects import ObjectTask
from headrace.loader.options import Options, read_options, wants_sharing
from headrace.loader.pinning import wants_pinning
from headrace.loader.recipe_dataset import RecipeDataset
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import ErrorBook, Session
from headrace.loader.sharing import SharedDraws, Sharing
from headrace.loader.state import VERSION, LoaderState, pack_seen, read_state, unpack_seen
from headrace.loader.stats import Stats, snapshot
from headrace.planning import staff
from headrace.recipes.datasets import recognise
from headrace.recipes.recipe import Recipe
from headrace.sampling import Geometry, UniformEpoch
from headrace.sources import files

T_co = TypeVar("T_co", covariant=True)

_PIPES = tuple(
    kind for name in ("IterDataPipe", "MapDataPipe") if (kind := getattr(torch_data, name, None)) is not None
)
_TORCH_PARAMETERS = inspect.signature(torch_data.DataLoader.__init__).parameters


class DataLoader(torch_data.DataLoader[T_co]):
    """Loads data as ``torch.utils.data.DataLoader`` does, faster, resumable, and cached where you say so.

    All parameters of torch's loader mean what they mean there. ``dataset`` may also be a ``headrace.Recipe``;
    then batches are prepared row by row, by all workers together, straight into shared memory.

    Parameters that torch does not have:

    - ``num_workers``: None (the default) is chosen for you with a recipe, and 0, as in torch, with a dataset;
      ``"auto"`` chooses for a dataset too.
    - ``cache``: memory for prepared samples: bytes, ``"8GiB"``, or a share of RAM (``0.25``, ``"25%"``).
    - ``split``: how the cache is divided, ``(encoded, decoded, augmented)``; all to decoded by default.
    - ``seed``: makes order and augmentations reproducible; with it, an epoch is a pure function of
      (seed, epoch).
    - ``rank``, ``world_size``: the share of each step that this process takes. With a recipe they are found
      in torch.distributed or the environment.
    - ``share``: prepare samples together with all jobs of this user and machine that share (a recipe is needed).
      None: as the environment variable ``HEADRACE_SHARE`` says.
    - ``sampling``: ``"uniform"``, or with ``share`` ``"auto"`` (the default there), ``"opportunistic"`` or
      ``"dependent"``; ``eviction``: what has to go when the shared cache is full (docs/sharing.md).
    - ``on_error``: ``"raise"``, ``"skip"`` or ``"substitute"`` for samples that cannot be prepared, the latter
      two as long as ``error_budget`` (a number, or a share of the dataset) allows.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        cache: int | float | str | None = None,
        split: Sequence[float] | str | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        error_budget: int | float = 0.01,
        share: bool | None = None,
        sampling: str | None = None,
        eviction: str | None = None,
    ) -> None:
        self._live: weakref.ref[EpochIterator] | None = None
        self._session: Session | None = None
        self._own_number = isinstance(num_workers, int)
        recipe = dataset if isinstance(dataset, Recipe) else None
        if recipe is not None:
            dataset = RecipeDataset(recipe)
        elif (num_workers != 0 and num_workers is not None) or cache or share:
            recipe = recognise(dataset, files) if collate_fn is None else None
        if num_workers is None:
            num_workers = "auto" if isinstance(dataset, RecipeDataset) else 0
        if num_workers == "auto":
            num_workers = staff(usable_cpus()).processes
        elif not isinstance(num_workers, int):
            raise TypeError(f'num_workers={num_workers!r}; write a number, or "auto"')
        self._prefetch = prefetch_factor
        # A recipe cannot change between epochs, so its workers, and what they cached, may stay.
        self._keeps = isinstance(dataset, RecipeDataset) if persistent_workers is None else persistent_workers
        if persistent_workers is None:
            persistent_workers = self._keeps and num_workers > 0
        options: dict[str, Any] = {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        with warnings.catch_warnings():
            if not self._own_number:
                # The number is ours, so torch need not warn that the user chose too many.
                warnings.simplefilter("ignore", UserWarning)
            super().__init__(
                dataset,
                batch_size,
                shuffle,
                sampler,
                batch_sampler,
                num_workers,
                collate_fn,
                pin_memory,
                drop_last,
                timeout,
                worker_init_fn,
                multiprocessing_context,
                generator,
                **{name: value for name, value in options.items() if name in _TORCH_PARAMETERS},
            )
        self._in_order = in_order
        self._shuffle = bool(shuffle)
        # What torch made where the user gave nothing: then the order is ours. Should somebody put another
        # sampler in its place later, theirs counts.
        default = sampler is None and batch_sampler is None
        self._made = (self.sampler, self.batch_sampler) if default else None
        self._custom_collate = collate_fn
        self._iterable = isinstance(dataset, torch_data.IterableDataset)
        self._recipe = recipe
        size = None if self._iterable else _size(dataset)
        if recipe is None and parse_size(cache, total=1 << 40):
            raise OptionError(
                "cache= needs a recipe: what a dataset's __getitem__ returns may be random, so it cannot be kept. "
                "Describe the data as a headrace.Recipe to cache it (docs/recipes.md)."
            )
        if share and recipe is None:
            raise OptionError(
                "share=True needs a recipe: what a dataset's __getitem__ does cannot be told from outside, so it "
                "cannot be shared. Describe the data as a headrace.Recipe (docs/recipes.md)."
            )
        self._options: Options = read_options(
            samples=size,
            cache=cache,
            split=split,
            seed=seed,
            rank=rank,
            world_size=world_size,
            find_rank=isinstance(dataset, RecipeDataset) and self._ours,
            on_error=on_error,
            error_budget=error_budget,
            share=recipe is not None and wants_sharing(share),
            ordered=not (self._ours and self._shuffle),
            sampling=sampling,
            eviction=eviction,
        )
        if self._options.world_size > 1 and not self._ours:
            raise OptionError(
                "rank= and world_size= share out headrace's own order; a sampler shares by itself"
            )
        self._book = ErrorBook(
            on_error, self._options.error_budget, recipe.source.name if recipe else _index_name
        )
        self._epoch = 0
        self._seed: int | None = seed
        self._resume: LoaderState | None = None
        self._progress: LoaderState | None = None
        self._fed: tuple[int, int] | None = None
        self._seen: Bits | None = None
        """Where a shared host draws: what was delivered of the present epoch."""
        self._batches = self._samples = 0
        self._closed = False
        self._process = os.getpid()
        self._finalizer: Any = None
        self._last_stats: Stats | None = None

    @property
    def _ours(self) -> bool:
        made = self._made
        return made is not None and made[0] is self.sampler and made[1] is self.batch_sampler

    # -- iteration ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of one epoch."""
        if self._closed:
            raise LoaderClosed("the loader was closed; make a new one")
        if not self.num_workers and self.timeout:
            raise ValueError("timeout needs num_workers > 0: without workers there is nothing to wait for")
        if self.num_workers and self.prefetch_factor == 0:
            raise ValueError("prefetch_factor must be at least 1")
        if _PIPES and isinstance(self.dataset, _PIPES):
            return super().__iter__()
        resume, self._resume = self._resume, None
        seed = self._choose_seed(resume)
        epoch, position = (resume.epoch, resume.position) if resume else (self._epoch, 0)
        live = self._live() if self._live is not None else None
        if live is not None:
            # Somebody is still in the middle of another epoch of this loader: let them be.
            session, kept = self._make_session(seed, resume), False
        else:
            session, kept = self._take_session(seed, resume), True
        following = self._draws(seed, epoch + 1, None, session) if kept and self._prepares_ahead() else None
        if kept and self._fed == (seed, epoch) and position == 0 and following is not None:
            assert isinstance(session, RecipeSession | ObjectSession)
            session.follow(following)
        else:
            if self._fed is not None and kept:
                session.abandon()
            session.begin(self._draws(seed, epoch, resume, session), following)
        if kept:
            self._fed = (seed, epoch + 1) if following is not None else None
        steps = self._steps(position) if self._ours and not self._iterable else None
        iterator = EpochIterator(self, session, seed=seed, epoch=epoch, steps=steps)
        if kept:
            self._live = weakref.ref(iterator)
        self._epoch = epoch + 1
        self._progress = self._state(seed, epoch, position, session if resume is not None else None)
        if self._drawn_by_host:
            self._seen = self._resumed_seen(resume) or Bits.empty(self._length())
        return iterator

    def _choose_seed(self, resume: LoaderState | None) -> int:
        if resume is not None and resume.seed is not None:
            if self._options.seed is None and self._recipe is not None:
                self._seed = resume.seed
            return resume.seed
        if self._seed is not None:
            return self._seed
        if isinstance(self.dataset, RecipeDataset):
            # One seed for the loader's life, so that epochs follow from it; ranks must agree without talking.
            self._seed = 0 if self._options.world_size > 1 else self._random_seed()
            return self._seed
        return self._random_seed()

    def _random_seed(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _prepares_ahead(self) -> bool:
        return (
            bool(
                self._keeps and self.num_workers and self._ours and self._seed is not None and self._in_order
            )
            and not self._iterable
        )

    @property
    def _drawn_by_host(self) -> bool:
        return self._options.share and self._options.sampling != "uniform"

    def _resumed_seen(self, resume: LoaderState | None) -> Bits | None:
        return None if resume is None else unpack_seen(resume.seen, self._length())

    def _draws(self, seed: int, epoch: int, resume: LoaderState | None, session: Session) -> Any:
        sharing = session.sharing if isinstance(session, RecipeSession) else None
        if sharing is None:
            return self._own_draws(seed, epoch, resume)
        own = None if self._drawn_by_host else self._own_draws(seed, epoch, resume)
        given = self._resumed_seen(resume) if own is None else None
        return SharedDraws(sharing.client, seed=seed, epoch=epoch, given=given, own=own)

    def _own_draws(self, seed: int, epoch: int, resume: LoaderState | None) -> Any:
        if self._iterable:
            return EndlessDraws(seed=seed, epoch=epoch)
        if not self._ours:
            if resume is not None and resume.sampler is not None:
                self._index_sampler.load_state_dict(resume.sampler)
            skip = resume.position if resume is not None and resume.sampler is None else 0
            # (a sampler that keeps a state of its own goes on by itself)
            return SamplerDraws(
                self._index_sampler,
                batched=self._auto_collation,
                seed=seed,
                epoch=self._keyed(epoch),
                size=None if self._recipe is None else self._length(),
                skip=skip,
            )
        position = resume.position if resume is not None else 0
        make = partial(
            UniformEpoch,
            self._length(),
            self._geometry(),
            seed=seed,
            epoch=self._keyed(epoch),
            shuffle=self._shuffle,
            position=position,
        )
        return UniformDraws(make, seed)

    def _keyed(self, epoch: int) -> int:
        """The epoch as randomness sees it: where each epoch draws a seed of its own, that seed says it all."""
        return epoch if self._options.seed is not None or isinstance(self.dataset, RecipeDataset) else 0

    def _length(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def _geometry(self) -> Geometry:
        options = self._options
        return Geometry(self.batch_size or 1, options.rank, options.world_size, self.drop_last)

    def _steps(self, position: int) -> int:
        return self._geometry().steps(self._length() - position)

    # -- sessions -----------------------------------------------------------------------------------------

    def _take_session(self, seed: int, resume: LoaderState | None) -> Session:
        if self._process != os.getpid():
            # The job was forked: what the loader has belongs to the process that it was forked from.
            self._process, self._session, self._finalizer, self._fed = os.getpid(), None, None, None
        if self._session is not None and (resume is None or not self._iterable):
            if isinstance(self._session, IterableSession):
                self._session.resume_at_start()
            return self._session
        if self._session is not None:
            self._session.close()
        self._session = self._make_session(seed, resume)
        self._fed = None
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, self._session.close)
        return self._session

    def _make_session(self, seed: int, resume: LoaderState | None) -> Session:
        pin = wants_pinning(self.pin_memory, self.pin_memory_device)
        context = self.multiprocessing_context or multiprocessing.get_context()
        workers = self.num_workers
        common: dict[str, Any] = {
            "in_order": self._in_order,
            "context": context,
            "book": self._book,
            "pin": pin,
        }
        if self._recipe is not None:
            collate = self._custom_collate or self._recipe.collate
            return RecipeSession(
                self._recipe,
                batch_size=(self.batch_size or 1) if self._auto_collation else None,
                budgets=self._options.budgets,
                num_workers=workers,
                own_number=self._own_number,
                ahead=None if self._prefetch is None else max(1, workers * self._prefetch),
                collate_fn=collate,
                worker_init_fn=self.worker_init_fn,
                base_seed=seed,
                sharing=self._sharing(),
                **common,
            )
        if workers == 0:
            book = self._book
            if self._iterable:
                done = tuple(resume.workers[0]) if resume is not None and resume.workers else (0, None)
                return InlineIterableSession(
                    self.dataset,
                    self.collate_fn,
                    auto_collation=self._auto_collation,
                    book=book,
                    pin=pin,
                    batch_size=self.batch_size,
                    drop_last=self.drop_last,
                    resume=(int(done[0]), done[1]),
                )
            return InlineSession(
                self.dataset, self.collate_fn, auto_collation=self._auto_collation, book=book, pin=pin
            )
        task = ObjectTask(
            dataset=self.dataset,
            collate_fn=self.collate_fn,
            auto_collation=self._auto_collation,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            on_error=self._options.on_error,
            num_workers=workers,
            base_seed=seed,
            worker_init_fn=self.worker_init_fn,
            resume=resume.workers if resume is not None else None,
        )
        kind = IterableSession if self._iterable else ObjectSession
        return kind(
            task, ahead=workers * (2 if self.prefetch_factor is None else self.prefetch_factor), **common
        )

    def _sharing(self) -> Sharing | None:
        if not self._options.share or self._recipe is None:
            return None
        return Sharing(
            self._recipe,
            self._options,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            explicit=not self._drawn_by_host,
        )

    def _over(self, iterator: EpochIterator, session: Session, *, whole: bool, broken: bool = False) -> None:
        """An iterator came to its end (``whole``), was dropped on the way, or cannot go on (``broken``)."""
        if session is not self._session:
            session.close()
            return
        self._live = None
        if broken or not self._keeps:
            self._drop_session()
        elif not whole:
            session.abandon()
            self._fed = None

    def _drop_session(self) -> None:
        if self._session is not None:
            self._last_stats = self.stats()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None
        self._session = None
        self._fed = None

    # -- order and resume ---------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs. Without it, epochs count up by themselves."""
        if epoch < 0:
            raise OptionError(f"set_epoch({epoch}): epochs count from 0")
        self._epoch = epoch
        owners: tuple[Any, ...] = () if self._ours else (self.sampler, self.batch_sampler)
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: plain values, small, JSON-able. Counts what was delivered to you."""
        if self._progress is None:
            if self._resume is not None:
                return self._resume.plain()
            return self._state(self._seed, self._epoch, 0, None).plain()
        if self._seen is not None and self._progress.position:
            self._progress.seen = pack_seen(self._seen)
        return self._progress.plain()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state`` at the next iteration, also with other workers, ranks or batch size."""
        if self._live is not None and self._live() is not None:
            raise StateError(
                "load_state_dict() after iteration began: load the state before the first batch is asked for, "
                "or finish (or drop) the running iterator first"
            )
        self._resume = read_state(
            state,
            sampling=self._sampling,
            size=None if self._iterable or not self._ours else self._length(),
            workers=self.num_workers,
            shuffle=self._shuffle,
        )
        self._progress = None
        self._epoch = self._resume.epoch

    @property
    def _prefetches(self) -> bool:
        """Whether samplers are read ahead of what is delivered, so that their own state says nothing."""
        return self.num_workers > 0 or self._recipe is not None

    @property
    def _sampling(self) -> str:
        if self._drawn_by_host:
            return "seen"
        return "iterable" if self._iterable else "uniform" if self._ours else "sampler"

    def _state(self, seed: int | None, epoch: int, position: int, session: Any) -> LoaderState:
        state = LoaderState(VERSION, self._sampling, seed, epoch, position, shuffle=self._shuffle)
        if self._ours and not self._iterable:
            state.size = self._length()
        if (
            state.sampling == "sampler"
            and position
            and not self._prefetches
            and _stateful(self._index_sampler)
        ):
            state.sampler = self._index_sampler.state_dict()
        delivered = getattr(session, "delivered", None)
        if delivered is not None:
            state.workers = list(delivered)
        return state

    def _delivered(self, session: Session, seed: int, epoch: int, drawn: Any) -> None:
        self._batches += 1
        self._samples += len(drawn.indices)
        if self._seen is not None:
            self._seen.add(drawn.whole)
        self._progress = self._state(seed, epoch, drawn.position, session)

    def _epoch_over(self, epoch: int) -> None:
        self._seen = Bits.empty(self._length()) if self._seen is not None else None
        self._progress = self._state(self._seed, epoch + 1, 0, None)

    # -- the rest -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one epoch."""
        if self._ours and not self._iterable:
            return self._steps(0)
        return super().__len__()

    @property
    def bad_samples(self) -> list[BadSample]:
        """Every sample that could not be prepared so far: its index, name and the reason."""
        return list(self._book.bad.values())

    def stats(self) -> Stats:
        """Numbers about this loader: what was delivered, where time went, what the cache holds."""
        session = self._session
        if session is None and self._last_stats is not None:
            return self._last_stats
        mine: dict[str, Any] = {
            "batches": self._batches,
            "samples": self._samples,
            "epoch": max(0, self._epoch - 1),
            "bad_samples": len(self._book.bad),
            "workers": self.num_workers,
            "threads": 1,
        }
        if isinstance(session, RecipeSession) and self.num_workers:
            mine["workers"], mine["threads"] = session.workers
        host = getattr(session, "host", None)
        return Stats(**mine) if host is None else snapshot(host, mine)

    def close(self) -> None:
        """Stop workers and free memory. Batches that you keep stay valid."""
        if getattr(self, "_closed", True):
            return
        self._closed = True
        self._drop_session()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _index_name(index: int) -> str:
    return f"dataset[{index}]"


def _stateful(owner: Any) -> bool:
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
