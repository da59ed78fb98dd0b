"""What the cache looks like to a job that is about to draw, and whether it had better wait a moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.members import Job, Rank
from headrace.coordinate.nearby import Nearby
from headrace.coordinate.passing_on import PassingOn
from headrace.coordinate.state import State
from headrace.core.bits import at_least, count
from headrace.core.forms import Form
from headrace.sampling import CacheView

Ids = NDArray[np.int64]


class Outlook:
    """Tells a sampler what is ready, what is coming, and how much more can be kept."""

    def __init__(self, state: State, passing_on: PassingOn, nearby: Nearby) -> None:
        self._state = state
        self._passing_on = passing_on
        self._nearby = nearby

    def peers(self, job: Job) -> tuple[int, ...]:
        """Jobs that could share what is prepared for this one."""
        peers: set[int] = set()
        for shelf in job.shelves.values():
            peers |= shelf.jobs
        return tuple(sorted(peers - {job.number}))

    def view(self, job: Job) -> CacheView:
        peers = self.peers(job)
        augmented, decoded = job.shelves.get(Form.AUGMENTED), job.shelves.get(Form.DECODED)
        encoded = job.shelves.get(Form.ENCODED)
        ready = []
        read_only = 0
        later = None
        pending = np.zeros(-(-self._state.universe.size // 64), np.uint64)
        if augmented is not None and job.stale is not None:
            fresh = ~job.stale.words
            ready.append(augmented.cached.words & fresh)
            read_only = 1
            pending |= augmented.pending.words & fresh
            later = (augmented.cached.words | augmented.pending.words) & ~fresh
        if decoded is not None:
            pending |= decoded.pending.words
            if peers:  # alone, nothing of it is lost by waiting for its turn
                cached = decoded.cached.words
                if augmented is not None and len(augmented.jobs) > 1 and not augmented.cheap:
                    # Another one is augmented for others, or is about to be: now this job would augment for itself.
                    cached = cached & ~(augmented.cached.words | augmented.pending.words)
                ready.append(cached)
                if not self._passing_on.pays(job):
                    read_only = len(ready)
        # Encoded ones that have a part of their own stay there, and taken in turn they leave storage time to work.
        if (
            encoded is not None
            and peers
            and (not self._state.pool.limited or encoded.jobs - self._state.content(job))
        ):
            ready.append(encoded.cached.words)
        room = self._room(job)
        if 0 < room < 1 << 60:
            self._state.pool.reconsider()
        near = self._nearby.words(job)
        return CacheView(tuple(ready), pending, peers, room, later, read_only, near)

    def only_read(self, job: Job, view: CacheView) -> int:
        """How many samples a job could be given next of which nothing has to be prepared for the cache."""
        remaining = self._state.remaining
        needed = remaining.words(job.number)
        decoded = job.shelves.get(Form.DECODED)
        if (
            decoded is not None
            and not self._passing_on.pays(job)
            and not (needed & ~decoded.cached.words).any()
        ):
            return remaining.left(job.number)
        if job.sampling != "auto" or not view.read_only:  # others do not take them first
            return 0
        found = view.ready[0]
        for ready in view.ready[1 : view.read_only]:
            found = found | ready
        return count(needed & found)

    def _room(self, job: Job) -> int:
        """How many samples that this job prepares could be kept without losing what others need."""
        augmented, decoded = job.shelves.get(Form.AUGMENTED), job.shelves.get(Form.DECODED)
        if augmented is not None and len(augmented.jobs) > 1 and self._state.pool.allows(Form.AUGMENTED):
            displaced = sum(
                shelf.bytes for shelf in self._state.pool.shelves.values() if shelf.form == Form.DECODED
            )
            if displaced:
                return 1 << 61
            return self._state.pool.room(Form.AUGMENTED) // augmented.expected
        if decoded is None or len(decoded.jobs) < 2 or not self._state.pool.allows(Form.DECODED):
            return 1 << 62
        used_up = decoded.cached.words
        for number in decoded.jobs:
            used_up = used_up & ~self._state.remaining.words(number)
        free = self._state.pool.room(Form.DECODED) // decoded.expected
        return free + count(used_up & ~decoded.busy.bits.words)

    def still_waits(self, job: Job) -> bool:
        """Whether the next draw of a job waits on: nothing has happened that would be of interest to it."""
        return job.sampling == "auto" and self._nearby.still_waits(job)

    def should_wait(self, job: Job, rank: Rank, view: CacheView, count: int) -> bool:
        """Whether a draw had better wait a moment, for the rank has others under way.

        What it would prepare now could not be kept, and so would be prepared again for others, although room
        is about to come. Or it would have to be read from storage, while what others have read is about to.
        """
        if job.sampling != "auto":
            return False
        if view.near is not None and self._nearby.comes(job, view, count):
            return True
        if not view.peers or view.room >= count or not rank.open:
            return False
        found = view.pending.copy()
        for ready in view.ready:
            found |= ready
        found &= self._state.remaining.words(job.number)
        return not at_least(found, count - view.room)
