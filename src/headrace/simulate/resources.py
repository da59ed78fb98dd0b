"""What work takes time on: processors, links and storage, shared evenly by whoever uses them at a time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Any

from headrace.simulate.clock import Call, Clock

_INSTANT = 1e-9
"""Seconds that are no time at all: numbers are rounded."""


class _Lane:
    """Tasks that all go at one pace at any moment.

    So it is enough to know how far somebody who was there from the beginning would be (``level``): a task ends when
    that has grown by its work. A change of pace thus costs the same however many tasks there are.
    """

    __slots__ = ("level", "pace", "tasks")

    def __init__(self) -> None:
        self.level = self.pace = 0.0
        self.tasks: list[tuple[float, int, Call, tuple[Any, ...]]] = []


class Shared:
    """A capacity that tasks share evenly; a task gets ``most`` of it at the most. Urgent ones are served first.

    Urgent are those of processes that sleep most of the time, which a system's scheduler lets through at once. Idle
    ones get what nobody else wants.
    """

    def __init__(self, clock: Clock, capacity: float, most: float = math.inf) -> None:
        """``capacity``: work per second, of all tasks together. ``most``: of one."""
        self.capacity = capacity
        self._clock, self._most = clock, min(most, capacity)
        self._urgent, self._plain, self._idle = self._lanes = (_Lane(), _Lane(), _Lane())
        self._done = self._since = 0.0
        self._serial = self._token = 0
        self._due = math.inf
        """When the next call is expected; it may turn out too early, never too late."""

    def __len__(self) -> int:
        """How many tasks there are."""
        return sum(len(lane.tasks) for lane in self._lanes)

    def add(self, work: float, call: Call, *arguments: Any) -> None:
        """Begin a task of so much work; ``call`` when it is done."""
        self._add(self._plain, work, call, arguments)

    def add_urgent(self, work: float, call: Call, *arguments: Any) -> None:
        """The same for an urgent one."""
        self._add(self._urgent, work, call, arguments)

    def add_idle(self, work: float, call: Call, *arguments: Any) -> None:
        """The same for one that waits until there is nothing else to do."""
        self._add(self._idle, work, call, arguments)

    def _add(self, lane: _Lane, work: float, call: Call, arguments: tuple[Any, ...]) -> None:
        self._move()
        self._serial += 1
        heapq.heappush(lane.tasks, (lane.level + work, self._serial, call, arguments))
        self._expect()

    def used(self) -> float:
        """Work done by now, over all tasks."""
        self._move()
        return self._done

    def _move(self) -> None:
        """Bring all tasks to the present moment."""
        span, self._since = self._clock.now - self._since, self._clock.now
        if span > 0:
            for lane in self._lanes:
                if lane.tasks:
                    gone = lane.pace * span
                    lane.level += gone
                    self._done += gone * len(lane.tasks)

    def _expect(self) -> None:
        """Set the paces anew, and see to it that somebody looks here when the first task ends."""
        left, due, now = self.capacity, math.inf, self._clock.now
        for lane in self._lanes:
            count = len(lane.tasks)
            if count:
                lane.pace = min(self._most, left / count)
                left = max(0.0, left - lane.pace * count)
                if lane.pace > 0:
                    due = min(due, now + max(0.0, lane.tasks[0][0] - lane.level) / lane.pace)
            else:
                lane.level = 0.0  # so that it does not lose its precision as it grows
        if due < self._due:
            self._due = due
            self._token += 1
            self._clock.at(due, self._look, self._token)

    def _look(self, token: int) -> None:
        if token != self._token:
            return
        self._move()
        self._due = math.inf
        ended = []
        for lane in self._lanes:
            near = lane.level + lane.pace * _INSTANT
            while lane.tasks and lane.tasks[0][0] <= near:
                ended.append(heapq.heappop(lane.tasks))
        self._expect()
        for _, _, call, arguments in ended:
            call(*arguments)


class Thread:
    """Does one thing after the other, on processors that it shares with others. What it does is urgent."""

    def __init__(self, clock: Clock, processors: Shared) -> None:
        self._clock, self._processors = clock, processors
        self._waiting: deque[tuple[float, Call, tuple[Any, ...]]] = deque()
        self._busy = False
        self.spent = 0.0
        """Seconds of processor time that it was given to do."""

    def do(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Take so many seconds of processor time, when everything before is done; then ``call``."""
        self.spent += seconds
        self._waiting.append((seconds, call, arguments))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            seconds, call, arguments = self._waiting.popleft()
            if seconds > 0:
                self._processors.add_urgent(seconds, self._done, call, arguments)
            else:
                self._clock.after(0.0, self._done, call, arguments)

    def _done(self, call: Call, arguments: tuple[Any, ...]) -> None:
        call(*arguments)
        self._next()
