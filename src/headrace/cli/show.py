"""A host's status as text."""

from __future__ import annotations

from headrace.cli.tables import line, safe, table
from headrace.core.forms import CACHEABLE
from headrace.core.sizes import show_size
from headrace.host.control import HostStatus, JobStatus

_NONE = "none"


def show_status(status: HostStatus, now: float) -> str:
    """Everything that a person wants to see, a few lines per job."""
    memory = status.memory
    lines = [
        line(
            "host",
            f"pid {status.pid}, headrace {safe(status.version)} (protocol {status.protocol}), "
            f"up {show_time(now - status.started)}",
        ),
        line(
            "memory",
            f"{show_size(memory.used)} of {show_size(memory.budget)} in {memory.entries} extents"
            + (f" ({memory.used / memory.budget:.0%})" if memory.budget else "")
            + (f", {memory.encoded:.0%} set aside for encoded samples" if memory.encoded else ""),
        ),
        line(
            "prepared",
            f"{status.decodes} samples decoded, {status.refills} by idle workers; {status.evictions} evicted",
        ),
    ]
    shelves = sorted(status.shelves, key=lambda shelf: (_furthest_first(shelf.form), shelf.key))
    lines += table(
        "cache",
        ["form", "key", "samples", "bytes", "jobs"],
        [[s.form, s.key[:12], str(s.samples), show_size(s.bytes), str(s.jobs)] for s in shelves],
    )
    if status.devices:
        lines += table(
            "devices",
            ["device", "bytes", "at most", "jobs"],
            [[d.device, show_size(d.bytes), show_size(d.budget), str(d.jobs)] for d in status.devices],
        )
    lines += table(
        "datasets",
        ["name", "samples", "jobs"],
        [[d.name, str(d.samples), str(d.jobs)] for d in status.datasets],
    )
    lines += table(
        "jobs",
        ["name", "pid", "rank", "dataset", "sampling", "epoch", "left", "drawn", "per s", "workers", "idle"],
        [_job(job) for job in status.jobs],
    )
    lines += table(
        "hits",
        ["name", "rank", "hits", *(form.name.lower() for form in reversed(CACHEABLE)), _NONE],
        [_hits(job) for job in status.jobs],
    )
    return "\n".join(lines)


def show_time(seconds: float) -> str:
    """``seconds`` for people: ``3725`` becomes ``"1 h 2 min"``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _job(job: JobStatus) -> list[str]:
    return [
        job.name or job.id[:12],
        str(job.pid),
        f"{job.rank}/{job.world_size}",
        job.dataset,
        job.sampling,
        str(job.epoch),
        str(job.left),
        str(job.delivered),
        f"{job.rate:.1f}" if job.rate < 100 else f"{job.rate:.0f}",
        str(job.workers),
        show_time(job.idle_s),
    ]


def _hits(job: JobStatus) -> list[str]:
    forms = [form.name.lower() for form in reversed(CACHEABLE)]
    return [
        job.name or job.id[:12],
        f"{job.rank}/{job.world_size}",
        f"{job.hit_rate:.1%}",
        *(str(job.hits.get(form, 0)) for form in [*forms, _NONE]),
    ]


def _furthest_first(form: str) -> int:
    forms = [known.name.lower() for known in CACHEABLE]
    return -forms.index(form) if form in forms else 1
