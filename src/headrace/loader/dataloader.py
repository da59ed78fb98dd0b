"""``headrace.DataLoader``: torch's, with another engine."""

from __future__ import annotations

import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils import data as torch_data

from headrace.core.errors import BadSample, LoaderClosed, OptionError, StateError
from headrace.loader.choose_session import choose_session
from headrace.loader.dataset_sessions import IterableSession, ObjectSession
from headrace.loader.iterator import EpochIterator
from headrace.loader.observer import Observer, Subject
from headrace.loader.options import Options, count_workers, read_options, wants_sharing
from headrace.loader.ordering import Ordering
from headrace.loader.progress import Progress
from headrace.loader.recipe_dataset import RecipeDataset
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import ErrorBook, Session
from headrace.loader.state import LoaderState, read_state
from headrace.loader.stats import Stats, snapshot
from headrace.recipes.datasets import recognise
from headrace.recipes.recipe import Recipe
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
    - ``split``: how the cache is divided, ``(encoded, decoded, augmented)``; by default as measurements suggest.
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
        num_workers = count_workers(num_workers, choose=isinstance(dataset, RecipeDataset))
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
        self._options: Options = read_options(
            samples=None if self._iterable else _size(dataset),
            described=recipe is not None,
            cache=cache,
            split=split,
            seed=seed,
            rank=rank,
            world_size=world_size,
            find_rank=isinstance(dataset, RecipeDataset) and self._ours,
            on_error=on_error,
            error_budget=error_budget,
            share=wants_sharing(share, recipe is not None),
            sampler=not self._ours,
            ordered=not (self._ours and self._shuffle),
            sampling=sampling,
            eviction=eviction,
        )
        self._book = ErrorBook(
            on_error, self._options.error_budget, recipe.source.name if recipe else _index_name
        )
        self._seed: int | None = seed
        self._progress = Progress()
        self._fed: tuple[int, int] | None = None
        self._closed = False
        self._process = os.getpid()
        self._finalizer: Any = None
        self._last_stats: Stats | None = None
        self._observer = Observer(
            Subject(
                recipe,
                dataset,
                num_workers,
                self._own_number or recipe is None,
                self._options.cache_bytes,
                self._options.rank,
                self._options.world_size,
            )
        )

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
        resume = self._progress.take_resume()
        seed = self._choose_seed(resume)
        epoch, position = (resume.epoch, resume.position) if resume else (self._progress.epoch, 0)
        live = self._live() if self._live is not None else None
        if live is not None:
            # Somebody is still in the middle of another epoch of this loader: let them be.
            session, kept = choose_session(self, seed, resume), False
        else:
            session, kept = self._take_session(seed, resume), True
        ordering = self._ordering
        following = (
            ordering.draws(seed, epoch + 1, None, session) if kept and self._prepares_ahead() else None
        )
        if kept and self._fed == (seed, epoch) and position == 0 and following is not None:
            assert isinstance(session, RecipeSession | ObjectSession)
            session.follow(following)
        else:
            if self._fed is not None and kept:
                session.abandon()
            session.begin(ordering.draws(seed, epoch, resume, session), following)
        if kept:
            self._fed = (seed, epoch + 1) if following is not None else None
        iterator = EpochIterator(self, session, seed=seed, epoch=epoch, steps=ordering.steps(position))
        if kept:
            self._live = weakref.ref(iterator)
        self._progress.begin(ordering, resume, seed, epoch, session)
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
    def _ordering(self) -> Ordering:
        """Made anew for each question: what it goes by can be changed at any time."""
        return Ordering(
            dataset=self.dataset,
            options=self._options,
            ours=self._ours,
            iterable=self._iterable,
            sampler=self._index_sampler,
            batched=self._auto_collation,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            shuffle=self._shuffle,
            by_index=self._recipe is not None,
            prefetches=self.num_workers > 0 or self._recipe is not None,
        )

    # -- sessions -----------------------------------------------------------------------------------------

    def _take_session(self, seed: int, resume: LoaderState | None) -> Session:
        if self._process != os.getpid():
            # The job was forked: what the loader has belongs to the process that it was forked from.
            self._process, self._session, self._finalizer, self._fed = os.getpid(), None, None, None
            self._observer = Observer(self._observer.subject)
        if self._session is not None and (resume is None or not self._iterable):
            if isinstance(self._session, IterableSession):
                self._session.resume_at_start()
            return self._session
        if self._session is not None:
            self._session.close()
        self._session = choose_session(self, seed, resume)
        self._fed = None
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _end, self._session, self._observer)
        return self._session

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
        self._progress.epoch = epoch
        owners: tuple[Any, ...] = () if self._ours else (self.sampler, self.batch_sampler)
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: plain values, small, JSON-able. Counts what was delivered to you."""
        return self._progress.plain(self._ordering, self._seed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state`` at the next iteration, also with other workers, ranks or batch size."""
        if self._live is not None and self._live() is not None:
            raise StateError(
                "load_state_dict() after iteration began: load the state before the first batch is asked for, "
                "or finish (or drop) the running iterator first"
            )
        ordering = self._ordering
        self._progress.load(
            read_state(
                state,
                sampling=ordering.sampling,
                size=ordering.size,
                workers=self.num_workers,
                shuffle=self._shuffle,
            )
        )

    def _delivered(self, session: Session, seed: int, epoch: int, drawn: Any) -> None:
        progress = self._progress
        progress.deliver(self._ordering, seed, epoch, drawn, session)
        if session is self._session:
            self._observer.batch(session, epoch, progress.batches, progress.samples)

    def _epoch_over(self, epoch: int) -> None:
        self._progress.end(self._ordering, self._seed, epoch)

    # -- the rest -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one epoch."""
        steps = self._ordering.steps(0)
        return super().__len__() if steps is None else steps

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
            "batches": self._progress.batches,
            "samples": self._progress.samples,
            "epoch": max(0, self._progress.epoch - 1),
            "bad_samples": len(self._book.bad),
            "workers": self.num_workers,
            "threads": 1,
            "situation": self._observer.situation(session),
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


def _end(session: Session, observer: Observer) -> None:
    observer.leave(session)
    session.close()


def _index_name(index: int) -> str:
    return f"dataset[{index}]"


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
