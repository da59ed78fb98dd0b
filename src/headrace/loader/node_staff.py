"""A loader's part in dividing its machine: it says what it needs, and at times it is the one that decides for all."""

from __future__ import annotations

from headrace.coordinate.coordinator import Batch
from headrace.engine.seat import Seat
from headrace.host.base import Host
from headrace.planning import Staff


class NodeStaff:
    """The seat of a session, if it has one."""

    def __init__(self, seat: Seat | None) -> None:
        self.seat = seat

    def staffed(self, staff: Staff) -> None:
        """There are other hands than before."""
        if self.seat is not None:
            self.seat.staffed(*staff)

    def taken(self, batch: Batch, host: Host) -> None:
        """The loop was given a batch."""
        if self.seat is not None:
            self.seat.taken(batch.sequence + 1)

    def leave(self) -> None:
        """The session is over."""
        if self.seat is not None:
            self.seat.leave()
