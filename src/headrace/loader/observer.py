"""Watches a loader while it runs: keeps its sums over all of its sessions, and the record of its run."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import time

from headrace.core import environment
from headrace.core.memory import available_memory
from headrace.loader.describe import Entered, describe
from headrace.loader.place import cpus_per_rank
from headrace.loader.sessions import Session
from headrace.loader.sharing import job_name
from headrace.loader.spec import DataSpec, LoaderSpec
from headrace.loader.sums import entries, session_sums
from headrace.measure import Profile, load_profile
from headrace.measure.profile_files import label_of
from headrace.measure.runs import Run, process_start, prune_runs, run_name, save_run
from headrace.planning import Measured, Situation

_LOOK = 1.0
"""Seconds between two looks at the sums."""
_WRITE = 5.0
"""Seconds between two writings of the record."""
_FADE = 20.0
"""Seconds after which what was measured counts e times less."""
_SHORT = 1.0
"""Seconds that a run has to last for a record to be worth it."""
_loaders = itertools.count()


class Observer:
    """One loader's. ``batch`` is called for each batch, and nearly always only looks at the clocks."""

    def __init__(self, spec: LoaderSpec) -> None:
        self.spec = spec
        self.waited = 0.0
        """Seconds for which the loop waited for batches."""
        self._due = self._write_due = 0.0
        self._recent = self._total = Measured()
        self._entered: Entered = (0.0, 0.0, 0.0, 0.0)
        self._seen: Measured | None = None
        """The sums of the present session at the last look; None: it has delivered nothing yet."""
        self._seen_entries: Entered = (0.0, 0.0, 0.0, 0.0)
        self._profile: Profile | None = None
        self._asked_for_profile = False
        self._available = (0.0, 1)
        self._means_due = 0.0
        self._records = environment.recording()
        self._owner = os.getpid()
        self._directory = _here()
        self._started = 0.0
        self._begun = 0.0
        self._last = 0.0
        """When the last batch was delivered, and the CPU time of this process then."""
        self._last_cpu = 0.0
        self._name = ""
        self._counts = (0, 0, 0)

    def batch(self, session: Session, epoch: int, batches: int, samples: int) -> None:
        """A batch was delivered; counts are those of the whole run."""
        self._counts = (epoch, batches, samples)
        now, self._last_cpu = time.perf_counter(), time.process_time()
        self._last = now
        if now < self._due:
            return
        self._due = now + _LOOK
        if not self._begun:
            self._begun, self._started, self._write_due = now, time.time(), now + _WRITE
        self._look(session)
        if now >= self._write_due:
            self._write_due = now + _WRITE
            self._write(session, finished=False)

    def leave(self, session: Session) -> None:
        """A session is about to be closed; there may be another."""
        if self._begun and os.getpid() == self._owner:
            with contextlib.suppress(Exception):  # a session that broke is closed all the same
                self._look(session)
                self._write(session, finished=True)
        self._seen = None
        self._due = 0.0

    def situation(self, session: Session | None) -> Situation | None:
        """What advice is given on; None before anything was measured."""
        if session is None or self._seen is None:
            return None
        self._look(session)
        if not self._recent.seconds:
            return None
        memory, cpus = self._means()
        return describe(
            self.spec,
            session,
            self._recent,
            self._total,
            self._entered,
            memory=memory,
            cpus=cpus,
            profile=self._known(),
        )

    def _look(self, session: Session) -> None:
        """Add what was measured from the last look to the last batch: what comes after is no part of the training.

        The first batch of a session says more about starting up, so sums begin with it.
        """
        now = session_sums(session, self._last, self._last_cpu, self._counts[2], self.waited)
        hits = entries(session)
        if self._seen is not None:
            new = now - self._seen
            fade = math.exp(-new.seconds / _FADE)
            self._recent = self._recent.faded(fade, new)
            self._total = self._total.faded(1.0, new)
            a, b, c, d = (
                fade * old + after - before
                for old, after, before in zip(self._entered, hits, self._seen_entries, strict=True)
            )
            self._entered = (a, b, c, d)
        self._seen, self._seen_entries = now, hits

    def _means(self) -> tuple[float, int]:
        """What a cache could have, and the CPUs. It takes a while to find out, and hardly changes."""
        now = time.perf_counter()
        if now >= self._means_due:
            self._means_due = now + _WRITE
            self._available = float(available_memory()), cpus_per_rank()
        return self._available

    def _known(self) -> Profile | None:
        """What a profile says of the recipe, if somebody took one."""
        if not self._asked_for_profile and self.spec.data.recipe is not None and environment.profiling():
            self._asked_for_profile = True
            with contextlib.suppress(Exception):  # (what a source of the user's makes of its fingerprint)
                self._profile = load_profile(self.spec.data.recipe)
        return self._profile

    def _write(self, session: Session, *, finished: bool) -> None:
        """The record as of now. A job that was forked leaves that to the process that it was forked from."""
        if not self._records or os.getpid() != self._owner or time.perf_counter() - self._begun < _SHORT:
            return
        first = not self._name
        if first:
            self._name = run_name(self._started, self._owner, next(_loaders))
        epoch, batches, samples = self._counts
        data, options = self.spec.data, self.spec.options
        saved = save_run(
            Run(
                name=self._name,
                label=_label(data),
                hostname=socket.gethostname(),
                pid=self._owner,
                process_started=process_start(self._owner) or 0,
                script=job_name(),
                directory=self._directory,
                rank=options.rank,
                world_size=options.world_size,
                started=self._started,
                updated=time.time(),
                finished=finished,
                epoch=epoch,
                batches=batches,
                samples=samples,
                situation=self.situation(session),
                native=_short(data.native.steps),
                own_code=_short(data.native.own),
                hint=data.native.hint,
            )
        )
        if first and saved:
            prune_runs()


def _label(data: DataSpec) -> str:
    """What people call the data."""
    return (label_of(data.recipe) if data.recipe is not None else type(data.dataset).__name__)[:512]


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """So many names, and of such lengths, that a record stays small."""
    return tuple(name[:200] for name in names[:32])


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
