"""A loader's epochs: begun, left and ended, one after another, in a session that is kept as long as it is of use."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.cluster.joining import Joined
from headrace.core.interrupts import held
from headrace.loader.choose_session import choose_session
from headrace.loader.dataset_sessions import AssignedSession
from headrace.loader.divided import divide_anew, division_of
from headrace.loader.hearing import Hearing
from headrace.loader.inline_sessions import InlineIterableSession
from headrace.loader.observer import Observer
from headrace.loader.ordering import Ordering, Place
from headrace.loader.own_order import Told
from headrace.loader.progress import Progress
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.seeds import Seeds
from headrace.loader.sessions import ErrorBook, Hosted, Session
from headrace.loader.setup import size_of
from headrace.loader.spec import LoaderSpec
from headrace.loader.state import LoaderState, pack_generator, read_state
from headrace.loader.stateful import load
from headrace.loader.stats import Stats, take_stats
from headrace.sampling import Draw

_turns = threading.RLock()


def turn() -> AbstractContextManager[Any]:
    """Held while an iterator begins or ends. It is one for all: a loader with a lock could not be pickled."""
    return _turns


def _unlock() -> None:
    global _turns
    _turns = threading.RLock()  # whoever holds it may not be in this process


os.register_at_fork(after_in_child=_unlock)


@dataclass(frozen=True)
class Begun:
    """An epoch, or what is left of one, that an iterator is to give out."""

    place: Place
    steps: int | None
    """Batches to come, where that is known."""
    promised: int | None = None
    """What a sampler says of it."""
    resume: LoaderState | None = None
    """Where it goes on from."""


class Running(Protocol):
    """An iterator over an epoch, as it is known here."""

    place: Place
    resume: LoaderState | None

    @property
    def over(self) -> bool:
        """Whether it has given out its last batch, or cannot go on."""

    def finish(self) -> None:
        """It is not asked any more."""

    def restart(self, place: Place, steps: int | None) -> None:
        """Another epoch is begun in its place, of so many batches."""


Iterating = TypeVar("Iterating", bound=Running)


class Epochs:
    """Those of one loader. What its user may change from one to the next is in the spec that comes with each call."""

    def __init__(self, spec: LoaderSpec, told: Told) -> None:
        self.closed = False
        self.session: Session | None = None
        """What prepares its batches; None: nothing runs, nor is anything kept."""
        self.live: weakref.ref[Running] | None = None
        """The iterator that has the session."""
        self.fed: tuple[int, int] | None = None
        """Seed and number of the epoch that the session prepares ahead."""
        recipe = spec.data.recipe
        name = recipe.source.name if recipe is not None else _index_name
        self.book = ErrorBook(spec.options.on_error, spec.options.error_budget, name)
        self.observer = Observer(spec)
        self._hearing = Hearing(told, spec.order.samplers)
        self._seeds = Seeds(spec)
        self._progress = Progress()
        self._progress.epoch = self._hearing.first
        self._process = os.getpid()
        self._finalizer: Any = None
        self._last_stats: Stats | None = None

    # -- beginning ----------------------------------------------------------------------------------------

    def running(self) -> Running | None:
        """The iterator that is under way, if there is one."""
        live = self.live() if self.live is not None else None
        if live is not None and live.over:
            live.finish()
            return None
        return live

    def move(self, spec: LoaderSpec) -> None:
        """The loader has found another place among the ranks; no iterator is under way."""
        self.drop_session(spec)
        self.observer.spec = spec
        self._seeds.move(spec)

    def start(self, spec: LoaderSpec, make: Callable[[Begun], Iterating], *, beside: bool) -> Iterating:
        """An iterator over the next epoch. ``beside``: somebody is in the middle of another one, and let be."""
        resume = self._progress.take_resume()
        asked = self._hearing.follow(resume, spec.order.samplers)
        if asked is not None:
            self._progress.epoch, resume = asked
        if resume is not None:
            load(spec.data.dataset, resume.dataset, "dataset")
        seed = self._seeds.choose(spec, resume)
        epoch = resume.epoch if resume is not None else self._progress.epoch
        if beside:
            session = choose_session(spec, self.book, seed, resume)
        else:
            session = self._take_session(spec, seed, epoch, resume)
        if resume is not None and asked is None:
            self._hearing.resumed(epoch)
        place, steps = self._begin(spec, session, seed, epoch, resume)
        iterator = make(Begun(place, steps, _promised(spec, resume), resume))
        if not beside:
            self.live = weakref.ref(iterator)
        return iterator

    def _begin(
        self, spec: LoaderSpec, session: Session, seed: int, epoch: int, resume: LoaderState | None
    ) -> tuple[Place, int | None]:
        """Start an epoch, or what ``resume`` leaves of it; returns its batches, where that is known."""
        order, kept = spec.order, session is self.session
        self._hearing.begin(epoch, order.samplers, foreign=not order.ours)
        ordering = Ordering(spec)
        ahead = kept and session.looks_ahead and self._knows_next(spec)
        following = ordering.draws(seed, epoch + 1, None, session) if ahead else None
        draws = None
        if kept and self.fed == (seed, epoch) and resume is None and following is not None:
            assert isinstance(session, Hosted)
            session.follow(following)
        else:
            if self.fed is not None and kept:
                session.abandon()
            draws = ordering.draws(seed, epoch, resume, session)
            session.begin(draws, following)
        if kept:
            self.fed = (seed, epoch + 1) if following is not None else None
        if kept and isinstance(session, RecipeSession) and session.pool is not None:
            _expect(spec, session.pool, seed, epoch, resume)
        generator = None if order.generator is None else pack_generator(order.generator.get_state())
        position = resume.position if resume is not None else 0
        place = Place(seed, epoch, session, draws, position, generator)
        self._progress.begin(ordering, resume, place)
        self._hearing.begun(order.samplers)
        return place, ordering.steps(resume)

    def _knows_next(self, spec: LoaderSpec) -> bool:
        """Whether workers stay for the next epoch, and its order is known."""
        order, work = spec.order, spec.work
        stays = work.keeps and work.workers > 0
        return stays and order.ours and order.in_order and self._seeds.of_all is not None

    def first_asked(self, spec: LoaderSpec, iterator: Running) -> None:
        """Before an iterator's first batch: Lightning tells the epoch only after it made the iterator."""
        asked = self._hearing.follow(iterator.resume, spec.order.samplers)
        if asked is None or spec.data.iterable:
            return
        (epoch, resume), at = asked, iterator.place
        if epoch == at.epoch and spec.order.ours and resume is iterator.resume:
            return
        at.session.abandon()  # what was passed over was of the order before
        if at.session is self.session:
            self.fed = None
        place, steps = self._begin(spec, at.session, at.seed, epoch, resume)
        if resume is not None:
            iterator.place = place
        else:
            iterator.restart(place, steps)

    # -- the session --------------------------------------------------------------------------------------

    def _take_session(self, spec: LoaderSpec, seed: int, epoch: int, resume: LoaderState | None) -> Session:
        if self._process != os.getpid():
            # The job was forked: what the loader has belongs to the process that it was forked from.
            self._process, self.session, self._finalizer, self.fed = os.getpid(), None, None, None
            self.observer = Observer(self.observer.spec)
        assigned = isinstance(self.session, AssignedSession | InlineIterableSession)
        if self.session is not None and (resume is None or not assigned):
            if isinstance(self.session, AssignedSession):
                self.session.start_over()
            return self.session
        if self.session is not None:
            self.session.close()
        self.session = choose_session(
            spec, self.book, seed, resume, lambda pool: _expect(spec, pool, seed, epoch, resume, early=True)
        )
        self.fed = None
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _end, self.session, self.observer)
        return self.session

    def drop_session(self, spec: LoaderSpec) -> None:
        """Stop workers and free memory."""
        if self.session is not None:
            self._last_stats = self.stats(spec)
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None
        self.session = None
        self.fed = None

    # -- ending -------------------------------------------------------------------------------------------

    def delivered(self, place: Place, drawn: Draw) -> None:
        """A batch is handed to the user."""
        progress = self._progress
        progress.deliver(place, drawn)
        if place.session is self.session:
            self.observer.batch(place.session, place.epoch, progress.batches, progress.samples)

    def end(self, spec: LoaderSpec, place: Place) -> None:
        """All batches of an epoch were handed to the user."""
        self._progress.end(Ordering(spec), place)
        self.leave(spec, place.session, ended=True)

    def leave(self, spec: LoaderSpec, session: Session, *, ended: bool = False, broken: bool = False) -> None:
        """An iterator came to its end (``ended``), was dropped on the way, or cannot go on (``broken``)."""
        with turn():
            if session is not self.session:
                session.close()
                return
            self.live = None
            if broken or not spec.work.keeps:
                self.drop_session(spec)
            elif ended:
                if not session.closed:
                    session.rest()
            else:
                session.abandon()
                self.fed = None

    # -- questions ----------------------------------------------------------------------------------------

    @property
    def untouched(self) -> bool:
        """Whether no epoch has begun and no state was loaded."""
        return self._progress.untouched

    def tell(self, spec: LoaderSpec, epoch: int) -> None:
        """The epoch that the next iteration runs."""
        self._progress.epoch = epoch
        self._hearing.tell(epoch, spec.order.samplers, foreign=not spec.order.ours)

    def state(self, spec: LoaderSpec) -> dict[str, Any]:
        """Where the loader stands, as ``state_dict`` gives it."""
        return self._progress.plain(Ordering(spec), self._seeds)

    def go_on(self, spec: LoaderSpec, state: dict[str, Any]) -> None:
        """Let the next iteration go on from ``state``."""
        ordering = Ordering(spec)
        loaded = read_state(
            state,
            sampling=ordering.sampling,
            size=ordering.size,
            workers=spec.work.workers,
            shuffle=spec.order.shuffle,
            step=ordering.step,
        )
        if loaded.sampler is not None:
            divide_anew(loaded, division_of(spec.order.keys, batched=spec.batches.batched))
        self._progress.load(loaded)

    def stats(self, spec: LoaderSpec) -> Stats:
        """The loader's numbers; once there is no session, as the last one left them."""
        session = self.session
        if session is None and self._last_stats is not None:
            return self._last_stats
        return take_stats(spec, session, self._progress, self.book, self.observer.situation(session))


def _promised(spec: LoaderSpec, resume: LoaderState | None) -> int | None:
    """Batches of a sampler, as far as it says how many it has."""
    size = None if spec.data.iterable else size_of(spec.order.keys)
    return None if size is None else size - (resume.position if resume is not None else 0)


def _expect(
    spec: LoaderSpec, pool: Joined, seed: int, epoch: int, resume: LoaderState | None, *, early: bool = False
) -> None:
    """Tell a cluster what an epoch is about to ask for. One rank says it for all. ``early``: it has not begun."""
    if spec.options.rank != 0:
        return
    if spec.drawn_by_host:
        pool.expect_any(epoch, early=early)
        return
    known = spec.order.ours
    pool.expect(
        seed=seed,
        epoch=epoch,
        position=resume.position if resume is not None and known else 0,
        shuffled=known and spec.order.shuffle,
        early=early,
    )


def _end(session: Session, observer: Observer) -> None:
    with held():
        observer.leave(session)
        session.close()


def _index_name(index: int) -> str:
    return f"dataset[{index}]"
