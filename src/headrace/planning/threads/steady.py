"""Numbers that follow what is measured without swinging: one that smooths, and one that moves with care."""

from __future__ import annotations

import math

_FOLLOWS = 0.3
"""How far a number goes towards the next measurement."""
_JUMP = 1.5
"""A measurement so many times as large, or as small, is believed when the next one says so, too."""
_LESS = 2 / 3
"""What is left of a budget in one step, at least."""


class Steady:
    """A mean of the latest measurements. One far from them is an outlier, two in a row are how things are now."""

    __slots__ = ("_far", "value")

    def __init__(self) -> None:
        self.value = -1.0
        self._far = 0.0

    def feed(self, measured: float) -> float:
        """Another measurement; what to go by now. What cannot be one is left out."""
        if not 0 <= measured < math.inf:
            return max(0.0, self.value)
        if self.value < 0:
            self.value = measured
        elif self._near(measured, self.value):
            self.value += _FOLLOWS * (measured - self.value)
            self._far = 0.0
        elif self._far and (measured > self.value) == (self._far > self.value):
            self.value = (measured + self._far) / 2 if self._near(measured, self._far) else measured
            self._far = 0.0
        else:
            self._far = measured or 1e-12
        return self.value

    @staticmethod
    def _near(one: float, other: float) -> bool:
        return one <= _JUMP * other + 1e-12 and other <= _JUMP * one + 1e-12


class Mover:
    """A budget. To move it the other way than the last time takes two looks in a row."""

    __slots__ = ("_asked", "_way", "now")

    def __init__(self) -> None:
        self.now = 0
        """0: there is none yet."""
        self._way = 0
        self._asked = 0

    def bounded(self, goal: int) -> int:
        """As far towards a goal as one step goes: a doubling, or a third less."""
        return max(min(goal, 2 * self.now), min(self.now - 1, int(-(-self.now * _LESS // 1))), 1)

    def allowed(self, goal: int) -> int:
        """The goal, if a step that way may be made at this look; else what there is."""
        way = (goal > self.now) - (goal < self.now)
        turns = way and self._way and way != self._way and way != self._asked
        self._asked = way
        return self.now if turns else goal

    def put(self, value: int) -> int:
        """Moves it there."""
        way = (value > self.now) - (value < self.now)
        if way and self.now:
            self._way = way
        self.now = value
        return value

    def move(self, goal: int) -> int:
        """Moves it there if that may be done at this look."""
        return self.put(self.allowed(goal))
