"""A host's status as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.forms import CACHEABLE
from headrace.core.sizes import show_size
from headrace.host.control import HostStatus, JobStatus

_LABEL = 12
_LONGEST = 32
_NONE = "none"


def show_status(status: HostStatus, now: float) -> str:
    """Everything that a person wants to see, a few lines per job."""
    memory = status.memory
    lines = [
        _line(
            "host",
            f"pid {status.pid}, headrace {_safe(status.version)} (protocol {status.protocol}), "
            f"up {show_time(now - status.started)}",
        ),
        _line(
            "memory",
            f"{show_size(memory.used)} of {show_size(memory.budget)} in {memory.entries} extents"
            + (f" ({memory.used / memory.budget:.0%})" if memory.budget else ""),
        ),
        _line(
            "prepared",
            f"{status.decodes} samples decoded, {status.refills} by idle workers; {status.evictions} evicted",
        ),
    ]
    shelves = sorted(status.shelves, key=lambda shelf: (_furthest_first(shelf.form), shelf.key))
    lines += _table(
        "cache",
        ["form", "key", "samples", "bytes", "jobs"],
        [[s.form, s.key[:12], str(s.samples), show_size(s.bytes), str(s.jobs)] for s in shelves],
    )
    lines += _table(
        "datasets",
        ["name", "samples", "jobs"],
        [[d.name, str(d.samples), str(d.jobs)] for d in status.datasets],
    )
    lines += _table(
        "jobs",
        ["name", "pid", "rank", "dataset", "sampling", "epoch", "left", "drawn", "per s", "workers", "idle"],
        [_job(job) for job in status.jobs],
    )
    lines += _table(
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


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _table(label: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """A table with the label before its first line."""
    if not rows:
        return [_line(label, "none")]
    lines = aligned_table(heads, rows)
    return [_line(label if number == 0 else "", line) for number, line in enumerate(lines)]


def aligned_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, numbers to the right."""
    cells = [list(heads), *([_safe(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(cell[:1].isdigit() for cell in column[1:]) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        placed = [
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(placed).rstrip())
    return lines


def _safe(text: str) -> str:
    """Names come from jobs: nothing in them may move the cursor or break the table."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"
