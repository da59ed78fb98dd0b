"""``headrace.DataLoader``: torch's, with another engine."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils import data as torch_data

from headrace.core.errors import BadSample, LoaderClosed, OptionError, StateError
from headrace.core.interrupts import held
from headrace.loader.choose_session import choose_session
from headrace.loader.dataset_sessions import AssignedSession, ObjectSession
from headrace.loader.hearing import Hearing
from headrace.loader.inline_sessions import InlineIterableSession
from headrace.loader.iterator import EpochIterator
from headrace.loader.mixing import check_batch_steps
from headrace.loader.native import Native, look_for
from headrace.loader.observer import Observer, Subject
from headrace.loader.options import (
    Chosen,
    Options,
    count_workers,
    place,
    read_options,
    read_snapshots,
    wants_sharing,
)
from headrace.loader.ordering import Ordering, Place
from headrace.loader.own_order import (
    OwnRandomSampler,
    OwnSequentialSampler,
    carried_by,
    own_batches,
    skipped,
)
from headrace.loader.progress import Progress
from headrace.loader.rebuilt import DEFAULTS, adopt, inherit
from headrace.loader.recipe_collate import RecipeCollator
from headrace.loader.recipe_dataset import RecipeDataset, recipe_of, refuse_sources
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.seeds import EpochSeeds
from headrace.loader.sessions import ErrorBook, Session
from headrace.loader.state import LoaderState, pack_generator, read_state, set_generator
from headrace.loader.stateful import is_stateful, load
from headrace.loader.stats import Stats, snapshot

T_co = TypeVar("T_co", covariant=True)

_PIPES = tuple(
    kind for name in ("IterDataPipe", "MapDataPipe") if (kind := getattr(torch_data, name, None)) is not None
)
_TORCH_PARAMETERS = inspect.signature(torch_data.DataLoader.__init__).parameters

_SKIPS = (
    "skip_first_batches() counts batches of an order that this loader does not have: it draws with a shared host, or "
    "has ranks that it finds by itself. Prepare the loader with Accelerate first, or go on from loader.state_dict() "
    "(docs/trainers.md)."
)

_turns = threading.RLock()
"""Held while an iterator begins or ends. It is one for all loaders, as a loader with a lock could not be pickled."""


def _unlock() -> None:
    global _turns
    _turns = threading.RLock()  # whoever holds it may not be in this process


os.register_at_fork(after_in_child=_unlock)


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
    - ``native``: prepare images of torchvision's folder datasets with headrace's kernels, and with its own steps in
      the place of the transforms that it knows (``loader.stats()`` says which), also for a ``collate_fn`` of yours;
      False leaves all of it to the dataset (docs/dropin.md).
    - ``snapshot_every_n_steps``: how often the states of datasets and samplers that keep one are taken, where batches
      are prepared ahead (0: never). None: with every batch if they are small. Whatever it is, a state that is
      loaded goes on exactly where it was saved; what came after the last one taken is read again.
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
        snapshot_every_n_steps: int | None = None,
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
        native: bool = True,
    ) -> None:
        self._live: weakref.ref[EpochIterator] | None = None
        self._early: Iterator[Any] | None = None
        self._session: Session | None = None
        own: dict[str, Any] = {
            "cache": cache,
            "split": split,
            "seed": seed,
            "on_error": on_error,
            "error_budget": error_budget,
            "share": share,
            "sampling": sampling,
            "eviction": eviction,
            "native": native,
        }
        described = recipe_of(refuse_sources(dataset))
        recipe, carried = described if described is not None else (None, None)
        carried = inherit(
            own,
            collate_fn,
            prefetch_factor,
            persistent_workers,
            carried or carried_by(sampler, batch_sampler),
        )
        own = {**DEFAULTS, **carried.options}
        seed, collate_fn, prefetch_factor = own["seed"], carried.collate_fn, carried.prefetch_factor
        persistent_workers, told = carried.persistent_workers, carried.told
        self._own_number = isinstance(num_workers, int) and not isinstance(num_workers, Chosen)
        batched = batch_size is not None or batch_sampler is not None
        if recipe is not None:
            self._native = Native(recipe, collate_fn or recipe.collate)
            dataset = RecipeDataset(recipe, carried)
        else:
            self._native = look_for(
                dataset,
                collate_fn,
                native=bool(own["native"]),
                batched=batched,
                workers=num_workers != 0 and num_workers is not None,
                keeps=bool(own["cache"] or own["share"]),
            )
            recipe = self._native.recipe
        num_workers = count_workers(num_workers, choose=isinstance(dataset, RecipeDataset))
        self._prefetch = prefetch_factor
        # A recipe cannot change between epochs, so its workers, and what they cached, may stay. A dataset might, but
        # with workers that go after each epoch there would be no use in a cache.
        stays = isinstance(dataset, RecipeDataset) or (
            recipe is not None and bool(own["cache"] or own["share"])
        )
        self._keeps = stays if persistent_workers is None else persistent_workers
        if persistent_workers is None:
            persistent_workers = self._keeps and num_workers > 0
        default = sampler is None and batch_sampler is None
        self._iterable = isinstance(dataset, torch_data.IterableDataset)
        given, chosen = sampler, shuffle
        if default and not self._iterable and not isinstance(dataset, _PIPES):
            # What torch would make, except that it can be told the epoch.
            if shuffle:
                given, chosen = OwnRandomSampler(dataset, carried, seed, generator=generator), None
            else:
                given = OwnSequentialSampler(dataset, carried, seed)
        options: dict[str, Any] = {
            "dataset": dataset,
            "batch_size": batch_size,
            "shuffle": chosen,
            "sampler": given,
            "batch_sampler": batch_sampler,
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        with warnings.catch_warnings():
            if not self._own_number:
                # The number is ours, so torch need not warn that the user chose too many.
                warnings.simplefilter("ignore", UserWarning)
            # As it was before somebody wrapped it: Lightning's wrapper takes what it sees for our own parameters.
            inspect.unwrap(torch_data.DataLoader.__init__)(
                self, **{name: value for name, value in options.items() if name in _TORCH_PARAMETERS}
            )
        # Trainers find a loader's parameters in its attributes.
        for name, value in own.items():
            setattr(self, name, value)
        self.rank, self.world_size = rank, world_size
        self._in_order = in_order
        self._shuffle = bool(shuffle)
        self._batch_size, self._drops_last = self.batch_size or 1, self.drop_last
        whole = own_batches(batch_sampler)
        if whole is not None and _same(whole.dataset, dataset):
            # Our own order again, by way of a trainer that divides nothing, or divides what it gets.
            default, self._shuffle = True, whole.shuffled
            self._batch_size, self._drops_last = batch_sampler.batch_size, batch_sampler.drop_last
        elif type(self.batch_sampler) is torch_data.BatchSampler and batch_sampler is None:
            self.batch_sampler.carried = carried  # type: ignore[attr-defined]
        # The user gave no sampler: then the order is ours. Should somebody put another sampler in the place of
        # what was made here, theirs counts.
        order = self.sampler if whole is None else whole
        self._made = (self.sampler, self.batch_sampler, order) if default else None
        self._finds_place = (
            isinstance(dataset, RecipeDataset) and self._ours and whole is None and rank is None
        )
        self._hearing = Hearing(told, self._samplers)
        skips = carried_by(batch_sampler) is not None and skipped(batch_sampler) > 0
        told.rebuilt |= carried_by(sampler, batch_sampler) is not None and not skips
        self._skips_alone = skips and not told.rebuilt and isinstance(dataset, RecipeDataset)
        check_batch_steps(recipe, collate_fn, batched=self._auto_collation)
        self._custom_collate = collate_fn
        self._recipe = recipe
        self._collator: RecipeCollator | None = None
        if recipe is not None and self._native.collate_fn is not None:
            # (a recipe's own collate gets lists, also of one)
            lists = batched or (isinstance(dataset, RecipeDataset) and collate_fn is None)
            self._collator = RecipeCollator(
                self._native.collate_fn, own["on_error"], lists, self._native.present
            )
        self._options: Options = read_options(
            samples=None if self._iterable else _size(dataset),
            described=recipe is not None,
            rank=rank,
            world_size=world_size,
            find_rank=self._finds_place,
            sampler=not self._ours,
            ordered=not (self._ours and self._shuffle) or whole is not None,
            unknown="; ".join(self._native.own),
            **{**own, "share": wants_sharing(own["share"], recipe is not None)},
        )
        if self._skips_alone and self._options.share and own["sampling"] != "uniform":
            raise OptionError(_SKIPS)
        self._book = ErrorBook(
            own["on_error"],
            self._options.error_budget,
            recipe.source.name if recipe is not None else _index_name,
        )
        self._seed: int | None = seed
        self._seeds = EpochSeeds(generator)
        self.snapshot_every_n_steps = read_snapshots(snapshot_every_n_steps)
        self._progress = Progress()
        self._progress.epoch = self._hearing.first
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
                self._native,
            )
        )

    @property
    def _samplers(self) -> tuple[Any, Any]:
        return self.sampler, self.batch_sampler

    @property
    def _ours(self) -> bool:
        made = self._made
        if made is None or made[0] is not self.sampler or made[1] is not self.batch_sampler:
            return False
        return made[1] is None or getattr(made[1], "sampler", made[2]) is made[2]

    def _settle(self) -> None:
        """Read rank and world size: a process group may have come since the loader was made."""
        if isinstance(self.num_workers, Chosen) and self._session is None:
            self.num_workers = count_workers(self.num_workers, choose=True)
        if not self._finds_place or (self._live is not None and self._live() is not None):
            return
        rank, world_size = place(None, None, True)
        if (rank, world_size) == (self._options.rank, self._options.world_size):
            return
        self._drop_session()
        self._options = self._options.placed(rank, world_size, ordered=not (self._ours and self._shuffle))
        self._observer.subject = replace(self._observer.subject, rank=rank, world_size=world_size)
        if self._options.seed is None:
            self._seed = None  # what was drawn alone the others do not know

    # -- iteration ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of one epoch."""
        early, self._early = self._early, None
        if early is not None and not self._closed:
            return early
        if self._closed:
            raise LoaderClosed("the loader was closed; make a new one")
        if not self.num_workers and self.timeout:
            raise ValueError("timeout needs num_workers > 0: without workers there is nothing to wait for")
        if self.num_workers and self.prefetch_factor == 0:
            raise ValueError("prefetch_factor must be at least 1")
        if _PIPES and isinstance(self.dataset, _PIPES):
            return super().__iter__()
        if self._skips_alone and place(None, None, True)[1] > 1:
            raise OptionError(_SKIPS)
        with _turns:  # threads may begin at once, and only one of them can have the session
            return self._start()

    def _start(self) -> EpochIterator:
        running = self._running()
        self._settle()
        resume = self._progress.take_resume()
        asked = self._hearing.follow(resume, self._samplers)
        if asked is not None:
            self._progress.epoch, resume = asked
        if resume is not None:
            load(self.dataset, resume.dataset, "dataset")
        seed = self._choose_seed(resume)
        epoch = resume.epoch if resume is not None else self._progress.epoch
        if running is not None:
            # Somebody is still in the middle of another epoch of this loader: let them be.
            session, kept = choose_session(self, seed, resume), False
        else:
            session, kept = self._take_session(seed, resume), True
        if resume is not None and asked is None:
            self._hearing.resumed(epoch)
        at, steps = self._begin(session, kept, seed, epoch, resume)
        iterator = EpochIterator(self, at, steps=steps, promised=self._promised(resume), resume=resume)
        if kept:
            self._live = weakref.ref(iterator)
        return iterator

    def _begin(
        self, session: Session, kept: bool, seed: int, epoch: int, resume: LoaderState | None
    ) -> tuple[Place, int | None]:
        """Start an epoch, or what ``resume`` leaves of it; returns its batches, where that is known."""
        self._hearing.begin(epoch, self._samplers, foreign=not self._ours)
        ordering = self._ordering
        following = (
            ordering.draws(seed, epoch + 1, None, session) if kept and self._prepares_ahead() else None
        )
        draws = None
        if kept and self._fed == (seed, epoch) and resume is None and following is not None:
            assert isinstance(session, RecipeSession | ObjectSession)
            session.follow(following)
        else:
            if self._fed is not None and kept:
                session.abandon()
            draws = ordering.draws(seed, epoch, resume, session)
            session.begin(draws, following)
        if kept:
            self._fed = (seed, epoch + 1) if following is not None else None
        generator = None if self.generator is None else pack_generator(self.generator.get_state())
        position = resume.position if resume is not None else 0
        place = Place(seed, epoch, session, draws, position, generator)
        self._progress.begin(ordering, resume, place)
        self._hearing.begun(self._samplers)
        return place, ordering.steps(resume)

    def _running(self) -> EpochIterator | None:
        """The iterator that is under way, if there is one."""
        live = self._live() if self._live is not None else None
        if live is not None and live.over:
            live.finish()
            return None
        return live

    def _promised(self, resume: LoaderState | None) -> int | None:
        """Batches of a sampler, as far as it says how many it has."""
        if self._iterable:
            return None
        size = _size(self._index_sampler)
        return None if size is None else size - (resume.position if resume is not None else 0)

    def _late(self, iterator: EpochIterator, session: Session) -> None:
        """Before an iterator's first batch: Lightning tells the epoch only after it made the iterator."""
        asked = self._hearing.follow(iterator.resume, self._samplers)
        if asked is None or self._iterable:
            return
        (epoch, resume), at, kept = asked, iterator.place, session is self._session
        if epoch == at.epoch and self._ours and resume is iterator.resume:
            return
        session.abandon()  # what was passed over was of the order before
        if kept:
            self._fed = None
        place, steps = self._begin(session, kept, at.seed, epoch, resume)
        if resume is not None:
            iterator.place = place
        else:
            iterator.restart(place, steps)

    def _choose_seed(self, resume: LoaderState | None) -> int:
        if resume is not None:
            if self.generator is not None and resume.generator is not None:
                set_generator(self.generator, resume.generator)
            if resume.seed is not None and (
                self._seed is not None or isinstance(self.dataset, RecipeDataset)
            ):
                if self._options.seed is None:
                    self._seed = resume.seed
                return resume.seed
            if resume.seed is not None:
                drawn = self.generator is not None and resume.generator is not None
                self._seeds.go_on(resume.seed, draws=not drawn)
                return resume.seed
        if self._seed is not None:
            return self._seed
        if isinstance(self.dataset, RecipeDataset):
            # One seed for the loader's life, so that epochs follow from it; ranks must agree without talking.
            self._seed = 0 if self._options.world_size > 1 else self._seeds.next()
            return self._seed
        return self._seeds.next()

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
            batch_size=self._batch_size,
            drop_last=self._drops_last,
            shuffle=self._shuffle,
            by_index=self._recipe is not None,
            prefetches=self.num_workers > 0 or self._recipe is not None,
            in_order=self._in_order,
            snapshot_every=self.snapshot_every_n_steps,
        )

    # -- sessions -----------------------------------------------------------------------------------------

    def _take_session(self, seed: int, resume: LoaderState | None) -> Session:
        if self._process != os.getpid():
            # The job was forked: what the loader has belongs to the process that it was forked from.
            self._process, self._session, self._finalizer, self._fed = os.getpid(), None, None, None
            self._observer = Observer(self._observer.subject)
        assigned = isinstance(self._session, AssignedSession | InlineIterableSession)
        if self._session is not None and (resume is None or not assigned):
            if isinstance(self._session, AssignedSession):
                self._session.start_over()
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
        with _turns:
            if session is not self._session:
                session.close()
                return
            self._live = None
            if broken or not self._keeps:
                self._drop_session()
            elif whole:
                if not session.closed:
                    session.rest()
            else:
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
        self._early = None
        self._progress.epoch = epoch
        self._hearing.tell(epoch, self._samplers, foreign=not self._ours)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands, counting what was delivered to you. Plain values, small, JSON-able, but for what
        your own datasets and samplers say of themselves where that is not (docs/resume.md)."""
        self._settle()
        unread = self._progress.untouched and not self._closed
        if unread and self._iterable and is_stateful(self.dataset):
            # Such a dataset says where it is once it was asked for its iterator; the next epoch goes on with it.
            self._early = iter(self)
        seed = self._seed
        if seed is None and isinstance(self.dataset, RecipeDataset) and self._options.world_size > 1:
            seed = 0
        return self._progress.plain(self._ordering, seed, self._seeds, self.generator, self._keeps)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state`` at the next iteration, also with other workers, ranks or batch size."""
        self._early = None
        if self._running() is not None:
            raise StateError(
                "load_state_dict() after iteration began: load the state before the first batch is asked for, "
                "or finish (or drop) the running iterator first"
            )
        self._settle()
        ordering = self._ordering
        self._progress.load(
            read_state(
                state,
                sampling=ordering.sampling,
                size=ordering.size,
                workers=self.num_workers,
                shuffle=self._shuffle,
                step=ordering.step,
            )
        )

    def _delivered(self, place: Place, drawn: Any) -> None:
        progress = self._progress
        progress.deliver(place, drawn)
        if place.session is self._session:
            self._observer.batch(place.session, place.epoch, progress.batches, progress.samples)

    def _epoch_over(self, place: Place) -> None:
        self._progress.end(self._ordering, place)

    # -- the rest -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one epoch."""
        self._settle()
        steps = self._ordering.steps(None)
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
            "decodes": self._native.decodes,
            "translated": self._native.translated,
            "untranslated": self._native.untranslated,
            "own_code": self._native.own,
            "hint": self._native.hint,
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
        self._early = None
        self._drop_session()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(session: Session, observer: Observer) -> None:
    with held():
        observer.leave(session)
        session.close()


def _same(one: Any, other: Any) -> bool:
    """Whether two datasets are one, or of one recipe."""
    return getattr(one, "recipe", one) is getattr(other, "recipe", other)


def _index_name(index: int) -> str:
    return f"dataset[{index}]"


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


adopt(DataLoader)
