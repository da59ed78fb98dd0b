"""A way to the shared host: what jobs and commands need to know of where it is."""

from __future__ import annotations

from typing import Protocol

from headrace.channel.channel import Channel, Dial


class Way(Protocol):
    """Leads to one host, whichever process that is at the time. ``runtime`` is the one on this machine."""

    def find_or_start(self, timeout: float) -> Channel:
        """A channel to the host, which is started if there is none. Raises HostUnavailable if it cannot be had."""
        ...

    def connect(self, timeout: float) -> Channel | None:
        """The same without starting one; None if there is none."""
        ...

    def dial(self) -> Dial:
        """How the workers of a job reach the host that the job has found."""
        ...

    def depose(self, channel: Channel) -> bool:
        """End the host at the other end, which does not answer; whether it is gone."""
        ...
