"""How many processes prepare, and with how many threads each."""

from __future__ import annotations

from typing import NamedTuple

_THREADS = 4
"""Threads in one process, at most: what runs between native calls takes turns at the interpreter lock."""
_PROCESSES = 32
"""Up to so many CPUs, each gets a process: from a decoded cache, 16 with a thread each deliver 1.7 times what 4 with
four threads do (54,000 samples per second on 16 CPUs, against 32,000). With more CPUs threads come in as well, as
processes take memory, and time to start."""
_HELD = 0.4
"""User code that holds the lock for more than this share of its time gains nothing from a second thread."""


class Staff(NamedTuple):
    """Worker processes, and preparing threads in each."""

    processes: int
    threads: int


def staff(
    cpus: int, processes: int | None = None, held: float | None = None, *, node: int | None = None
) -> Staff:
    """The staff for ``cpus`` CPUs. ``processes``: the user's own number, which is obeyed.

    ``node``: CPUs of the machine, where ranks share them and this one has ``cpus`` for its part: it may have up to
    twice as many threads, since those of a rank that would be late work while others rest. ``held`` is the measured
    share of time for which user code holds the interpreter lock: None when there is no user code, negative while it
    is not known yet.
    """
    wanted = processes if processes is not None else cpus // min(_THREADS, -(-cpus // _PROCESSES))
    wanted = max(1, wanted)
    if held is None or 0 <= held <= _HELD:
        most = cpus if node is None else max(cpus, min(node, 2 * cpus))
        return Staff(wanted, max(1, min(_THREADS, most // wanted)))
    if held < 0:
        return Staff(wanted, 1)
    return Staff(wanted if processes is not None else max(wanted, cpus), 1)
