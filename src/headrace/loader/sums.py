"""What a loader's workers and its loop measured, summed up."""

from __future__ import annotations

import time

from headrace.core.forms import CACHEABLE, Form
from headrace.host.base import Host
from headrace.loader.place import cpus_per_rank
from headrace.loader.sessions import Session
from headrace.planning import Means, Measured, Staff


def means_of(staff: Staff) -> Means:
    """What a loader has to work with."""
    return Means(cpus_per_rank(), max(1, staff.processes * staff.threads), max(1, staff.processes))


def host_sums(host: Host, delivered: float, waited: float) -> Measured:
    """Sums of a host since it began; of the clock and the loop's CPU, since whenever."""
    return host.totals.spent.measured(
        seconds=time.perf_counter(), delivered=delivered, waited=waited, loop_cpu=time.process_time()
    )


def session_sums(
    session: Session, seconds: float, loop_cpu: float, delivered: float, waited: float
) -> Measured:
    """The same of any session; one without a host knows only of the loop. ``seconds`` and
    ``loop_cpu``: what the clocks showed."""
    host: Host | None = getattr(session, "host", None)
    if host is not None:
        spent = host.totals.spent
        return spent.measured(seconds=seconds, delivered=delivered, waited=waited, loop_cpu=loop_cpu)
    return Measured(seconds=seconds, delivered=delivered, waited=waited, loop_cpu=loop_cpu)


def entries(session: Session) -> tuple[float, float, float, float]:
    """Samples that entered in no form, encoded, decoded and augmented."""
    host: Host | None = getattr(session, "host", None)
    if host is None:
        return 0.0, 0.0, 0.0, 0.0
    hits = host.coordinator.directory.hits
    none, encoded, decoded, augmented = (float(hits[form]) for form in (Form.NONE, *CACHEABLE))
    return none, encoded, decoded, augmented
