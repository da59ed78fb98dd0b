"""The shared host as a process: one per user and machine, started by the first job that shares.

It carries messages to the commons and replies back, watches who is there, and goes when nobody has been there for
a while. It runs no user code and maps none of the cache's memory; it only says where things lie.

Nothing that somebody sends, or fails to do, ends it. What goes wrong with a request is written to the log and ends
the connection that it came from, and there is an end to all that somebody could let grow.
"""

from __future__ import annotations

import gc
import secrets
import signal
import time

from headrace.channel.channel import Listener
from headrace.coordinate.commons import Commons
from headrace.coordinate.events import Emptied, Filled, Ticked, Tidied
from headrace.core import environment
from headrace.core.memory import usable_cpus
from headrace.host.cache_memory import CacheMemory
from headrace.host.connections import allow_descriptors, log
from headrace.host.event_file import EventFile
from headrace.host.requests import Requests
from headrace.host.runtime import claim
from headrace.host.switchboard import Switchboard

_TICK = 0.1
"""Seconds between looks at those who wait."""
_LOOK = 2.0
"""Seconds between looks at whether this host is still wanted, and found."""
_FOR_MEMORY = 0.005
"""Seconds of a tick for giving memory back: about a millisecond for each MiB."""
IDLE = 60.0
"""Seconds without jobs after which a host goes, or its cache if ranks may come (``HEADRACE_HOST_IDLE``)."""


class Service:
    """The host's loop."""

    def __init__(self, listener: Listener, *, idle: float = IDLE, events: str = "") -> None:
        """``events``: a file to which all that happens is written; see ``event_log``."""
        self._idle = idle
        self.memory = CacheMemory()
        self.commons = Commons(
            instance=secrets.randbits(62) + 1,
            nonce=secrets.randbits(64),
            span=self.memory.span,
            cpus=usable_cpus(),
        )
        self._events = EventFile(events, self.commons, self.memory.span) if events else None
        self.switchboard = Switchboard(listener)
        self.requests = Requests(self.commons, self.memory, self.switchboard, self._events, self._moves)
        self.switchboard.handler = self.requests
        self._longest = environment.host_patience() / 2
        """Seconds that a turn may take: in less than that, no job gives a host up."""
        self._quiet_since = self._looked = self._ticked = self._turned = time.monotonic()

    def _moves(self) -> None:
        """It does not stand still."""
        self._turned = time.monotonic()

    def run(self) -> None:
        """Serve until told to stop, or until nobody has been there for a while."""
        self._moves()
        while not self.requests.stopping:
            self._turn()
        self.close()

    def _turn(self) -> None:
        waits = bool(self.commons.state.waiting) or self.commons.state.stalled or self.requests.devices.waits
        soon = waits or self.memory.gave_back or self.switchboard.resting
        ready = self.switchboard.poll(_TICK if soon else _LOOK)
        if time.monotonic() - self._turned > self._longest:
            # Jobs may have given this host up, and still read what it would give to others.
            log("it stood still for too long; whoever is still here goes on with another host")
            self.stop()
            return
        for fd, events in ready:
            self.switchboard.serve(fd, events)
            self.requests.send_replies()
        now = self._turned = time.monotonic()
        self.switchboard.look(now)
        if now - self._ticked >= _TICK:
            self._ticked = now
            self._tick()
        if self.requests.members.jobs:
            self._quiet_since = now
        if now - self._looked >= _LOOK:
            self._looked = now
            self._look(now)

    def _tick(self) -> None:
        try:
            self.requests.tell(Ticked(self.requests.members.count_workers()))
            self.requests.send_replies()
            self._give_memory_back()
            self.requests.devices.look()
            self.requests.failures = 0
        except Exception as error:
            self.requests.broken(error)

    def _give_memory_back(self) -> None:
        """If the machine holds more for the cache than its budget, let some of what is not filled go."""
        until = time.monotonic() + _FOR_MEMORY
        self.memory.gave_back = True
        while self.memory.gave_back and time.monotonic() < until:
            self.memory.gave_back = False
            self.requests.tell(Filled(self.memory.resident()))
            self.requests.send_replies()

    def _look(self, now: float) -> None:
        """Let go of those who say nothing, and forget; and go, if nobody wants this host any more."""
        self.switchboard.drop_silent(now)
        try:
            self.requests.tell(Tidied())
        except Exception as error:
            self.requests.broken(error)
        self.requests.send_replies()
        found = self.switchboard.listener.in_place()
        if not self.requests.members.jobs and now - self._quiet_since >= (self._idle if found else 0.0):
            if found and self.commons.state.absent.awaited:
                self.requests.tell(Emptied())  # a rank may come that only this host knows the samples of
            else:
                self.stop()

    def stop(self) -> None:
        """End after the present round."""
        self.requests.stopping = True

    def close(self) -> None:
        """Let everybody go. Jobs go on by themselves."""
        if self._events is not None:
            self._events.close()
        self.switchboard.close()
        self.requests.devices.close()


def main() -> None:
    """Be the host, unless there is one."""
    claimed = claim()
    if claimed is None:
        return
    idle = environment.host_idle(IDLE)
    allow_descriptors()
    # What lives here lives long, or is gone at once by its count of references.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    service = Service(claimed, idle=idle, events=environment.host_events())
    signal.set_wakeup_fd(service.switchboard.wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: service.stop())
    service.run()


if __name__ == "__main__":
    main()
