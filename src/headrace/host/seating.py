"""Where the ranks of a machine find each other's needs: the roster of those who may use the same CPUs."""

from __future__ import annotations

import functools
import hashlib
import os

from headrace.core.errors import HostUnavailable
from headrace.core.memory import usable_cpus
from headrace.engine.roster import Roster
from headrace.engine.seat import Seat
from headrace.host.runtime import runtime_dir


def take_seat(*, shares_turns: bool) -> Seat:
    """A seat for a rank of this process, among those who may use the same CPUs. See ``Seat``."""
    cpus = usable_cpus()
    roster = _roster(_key(cpus))
    roster.attach()
    seat = Seat(roster, shares_turns=shares_turns, cpus=cpus)
    if not seat.limit:
        seat.set_limit(cpus)
    return seat


def _key(cpus: int) -> str:
    """What those have in common who share their CPUs. Who is bound to CPUs of its own shares with nobody."""
    try:
        mine = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        mine = []
    return hashlib.sha256(repr((mine, cpus)).encode()).hexdigest()[:12]


@functools.cache
def _roster(key: str) -> Roster:
    # One for a process: to close a second one would let go of the locks on the first.
    try:
        return Roster.at(os.path.join(runtime_dir(), f"roster-{key}"))
    except (HostUnavailable, OSError):  # there is no place for it, so each job is for itself
        return Roster.of_its_own()
