"""Parts of objects that lie near each other are read in one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.sources.location import Location

GAP = 64 << 10
"""Bytes between two parts that are read along with them: a request more costs more time than so many bytes."""
LONGEST = 8 << 20
"""Bytes that several parts are read in together, at most: what follows is read beside it, by another request."""


@dataclass(slots=True)
class Request:
    """A part of an object, and which rows are in it."""

    what: bytes
    version: bytes
    start: int
    stop: int | None
    """None: to the end."""
    rows: list[int] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether it is all of an object."""
        return not self.start and self.stop is None


def together(locations: Sequence[Location]) -> list[Request]:
    """The requests that read all locations; each location lies in one of them."""
    different = len({(one.what, one.start) for one in locations}) == len(locations)
    if different and all(one.length is None for one in locations):
        return [Request(one.what, one.version, one.start, None, [row]) for row, one in enumerate(locations)]
    order = sorted(
        range(len(locations)),
        key=lambda row: (
            locations[row].what,
            locations[row].version,
            locations[row].length is None,
            locations[row].start,
        ),
    )
    out: list[Request] = []
    for row in order:
        one = locations[row]
        stop = None if one.length is None else one.start + one.length
        last = out[-1] if out else None
        if last is not None and (last.what, last.version) == (one.what, one.version):
            if last.stop is None or stop is None:
                if last.stop is None and stop is None and last.start == one.start:
                    last.rows.append(row)
                    continue
            elif one.start <= last.stop + GAP and max(stop, last.stop) - last.start <= LONGEST:
                last.stop = max(stop, last.stop)
                last.rows.append(row)
                continue
        out.append(Request(one.what, one.version, one.start, stop, [row]))
    return out
