"""A loader's memory: what was known of its recipe when it began, and what it keeps of what it saw.

Reading happens once, when workers have been started and are busy starting. Writing happens once after the first
seconds, so that a job which is killed has learned something, and else between epochs and at the end. Either takes
about a millisecond, and whatever goes wrong with it is no matter of the job's.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

from headrace.coordinate.directory import Directory
from headrace.core import environment
from headrace.core.forms import Form
from headrace.core.layout import RowLayout
from headrace.host.base import Host
from headrace.loader.sharing import job_name
from headrace.loader.sums import host_sums, means_of
from headrace.measure import Profile, Seen, learn, load_profile
from headrace.measure.profile_files import fingerprint_of
from headrace.measure.seen import Cost, Starved
from headrace.planning import LOOK_EVERY, Measured, Staff, Supply, Terms
from headrace.recipes.recipe import Recipe

_FIRST = 5.0
"""Seconds after which something is kept for the first time."""
_SELDOM = 60.0
"""Seconds between two times that something is kept after an epoch."""
_ENOUGH = 256
"""Samples of which a mean is believed, or as many as there are."""
_STARTING = 8
"""Batches that say more about starting up than about the job."""
_BATCHES = 32
"""Batches, at least, from which the job's own pace is known; and the seconds that it spent over them."""
_BUSY = 0.5
_AT_WORK = 0.5
"""Fetching that keeps a CPU busy for more than this part of its time is not waiting for storage."""


def first_here(rank: int) -> bool:
    """Whether this rank keeps profiles: one on each machine is enough."""
    local = environment.local_rank()
    return (rank if local is None else local) == 0


class Learning:
    """What one session of a recipe knows and finds out."""

    def __init__(self, recipe: Recipe, host: Host, *, keeps: bool, cached: bool, inline: bool) -> None:
        """``keeps``: what is found out is written down. ``cached``: samples are prepared by the program that looks
        for decoded ones. ``inline``: in the training process itself."""
        self._recipe, self._host = recipe, host
        self._keeps, self._cached, self._inline = keeps, cached, inline
        self._process = os.getpid()
        self._profile: Profile | None = None
        self._identified = environment.profiling() and self._recall()
        self._delivered, self._enough = 0, min(_ENOUGH, len(recipe.source))
        self._augmented: float | None = None
        self._fetchers = 1
        self._supply, self._starved = Supply(), Measured()
        self._looked = self._kept = host_sums(host, 0, host.totals.waited)
        self._due, self._again = self._kept.seconds + _FIRST, False
        self._given: tuple[float, int] | None = None
        """When the loop was given its last batch, and how many samples were in it."""
        self._starting, self._batches, self._samples, self._busy = _STARTING, 0, 0, 0.0

    def _recall(self) -> bool:
        """Whether the recipe can be told from others; then what is known of it is loaded."""
        try:
            if fingerprint_of(self._recipe) is None:
                return False
            self._profile = load_profile(self._recipe)
        except Exception:  # of a source, or of the state of a step: whatever users write
            return False
        return True

    def terms(self, cache: float, staff: Staff) -> Terms | None:
        """What was known when the loader began, for a planner; None where that is too little."""
        profile = self._profile
        if profile is None or profile.samples != len(self._recipe.source):
            return None
        ingest = profile.consumption.get(job_name(), math.inf)
        try:
            return profile.terms(cache=cache, ingest=ingest, means=means_of(staff))
        except (ValueError, ArithmeticError):  # of a file that somebody has changed
            return None

    # -- while the job runs -----------------------------------------------------------------------------------

    def asked(self) -> None:
        """The loop asks for a batch: it is done with the one before."""
        if self._given is None:
            return
        (since, rows), self._given = self._given, None
        if self._starting:
            self._starting -= 1
            return
        self._batches += 1
        self._samples += rows
        self._busy += time.perf_counter() - since

    def given(self, rows: int, staff: Staff, layout: RowLayout | None) -> None:
        """The loop is given a batch of so many samples."""
        now = time.perf_counter()
        self._given = now, rows
        self._delivered += rows
        if now - self._looked.seconds < LOOK_EVERY or not self._identified:
            return
        self._look(staff, layout)
        if not self._again and now >= self._due and self._delivered >= self._enough:
            self.keep()
            self._given = time.perf_counter(), rows

    def _look(self, staff: Staff, layout: RowLayout | None) -> None:
        now, means = host_sums(self._host, self._delivered, self._host.totals.waited), means_of(staff)
        starved = self._supply.note(now - self._looked, means)
        if starved is not None and starved.fetch_cpu < _AT_WORK * starved.fetch:
            self._starved = self._starved.faded(1.0, starved)
        self._looked, self._fetchers = now, means.fetchers
        if layout is not None:
            self._augmented = float(layout.nbytes(1))

    def pause(self) -> None:
        """An epoch begins: the time since the last one is not the loop's pace, and a good one to keep things."""
        self._given = None
        if time.perf_counter() >= self._due:
            self.keep()

    def close(self, staff: Staff, layout: RowLayout | None) -> None:
        """The session ends."""
        if self._identified and os.getpid() == self._process:
            self._look(staff, layout)
            self.keep()
        self._identified = False

    # -- keeping ----------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Write down what was seen since the last time, as far as it was enough."""
        if not (self._identified and self._keeps) or os.getpid() != self._process:
            return
        now = host_sums(self._host, self._delivered, self._host.totals.waited)
        sums = now - self._kept
        seen = self._seen(sums)
        pace = None
        if self._batches >= _BATCHES and self._busy >= _BUSY:
            pace = self._samples / self._busy
            self._batches, self._samples, self._busy = 0, 0, 0.0
        if sums.prepared >= self._enough:
            self._kept = now
        self._due, self._again = now.seconds + _SELDOM, True
        if seen is None and pace is None:
            return
        try:
            learn(self._recipe, job=job_name(), consumption=pace, seen=seen)
        except Exception:
            self._identified = False  # what fails in a way that nobody thought of should not be tried again

    def _seen(self, sums: Measured) -> Seen | None:
        """What can be believed of what was measured."""
        enough = self._enough
        found: dict[str, Any] = {}
        if self._recipe.encoded and sums.fetched >= enough:
            found["encoded"] = sums.fetched_bytes / sums.fetched
            found["fetch"] = sums.fetch_cpu / sums.fetched
        directory = self._host.coordinator.directory
        decoded = directory.mean(Form.DECODED) if isinstance(directory, Directory) else 0.0
        if decoded and self._delivered >= enough:
            found["decoded"] = decoded
        # (Where jobs share, rows that others have augmented are copied in the same seconds.)
        if sums.prepared >= enough and self._host.shared is None:
            found |= self._stages(sums, apart=decoded > 0)
            found["augmented"] = self._augmented
            found["loop"] = 0.0 if self._inline else sums.loop_cpu / sums.seconds
        if self._recipe.encoded and self._supply.seen:
            found["supply"], found["fetchers"] = self._supply.rate, self._fetchers
        starved = self._starved
        if self._recipe.encoded and starved.fetched >= enough:
            found["storage"] = Starved(
                bytes=starved.fetched_bytes / starved.seconds,
                reads=starved.reading / starved.seconds,
                latency=starved.reading / starved.fetched,
                at=time.time(),
            )
            self._starved = Measured()
        if not any(part is not None for part in found.values()):
            return None
        return Seen(time.time(), waits=self._recipe.user_code, **found)

    def _stages(self, sums: Measured, *, apart: bool) -> dict[str, Cost]:
        """``apart``: some samples were kept decoded; before, decode and augment may be one, and count as decode."""
        wall = sums.decode + sums.augment
        cpu_per_wall = min(1.0, sums.cpu / wall) if wall else 1.0

        def cost(seconds: float) -> Cost:
            return Cost(seconds, seconds * cpu_per_wall)

        if not self._cached:
            return {"uncached": cost(wall / sums.prepared)}
        if not apart:
            return {}
        found = {"augment": cost(sums.augment / sums.prepared)}
        if sums.decoded >= self._enough:
            found["decode"] = cost(sums.decode / sums.decoded)
        return found
