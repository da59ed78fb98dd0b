"""A budget of bytes: how much of it each form may have, and how much it has."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.forms import CACHEABLE, Form

Part = tuple[Form, ...]
"""Forms that have a part of the budget together."""


class Parts:
    """Counts bytes by form against a budget, which may be split into parts."""

    def __init__(self) -> None:
        self.budget = 0
        self.used = dict.fromkeys(CACHEABLE, 0)
        self._limits: dict[Part, int] | None = None
        self._parts: dict[Form, Part] = {}
        """Of each form: those with which it has a limit in common."""
        self._peak = dict.fromkeys(CACHEABLE, 0)

    def set(self, budget: int, limits: Mapping[Part, int] | None) -> bool:
        """Bytes in all, and by parts where the budget is split; each form is in one of them. Whether that is new."""
        if (budget, limits) == (self.budget, self._limits):
            return False
        self.budget = budget
        self._limits = None if limits is None else dict(limits)
        self._parts = {form: part for part in limits or () for form in part}
        return True

    @property
    def limited(self) -> bool:
        """Whether the budget is split."""
        return self._limits is not None

    def part_of(self, form: Form) -> Part:
        """The forms that one shares its part with; there are parts."""
        return self._parts[form]

    def allows(self, form: Form) -> bool:
        """Whether anything of a form may be there."""
        return self.budget > 0 and (self._limits is None or self._limits[self._parts[form]] > 0)

    def ever_holds(self, part: Part, nbytes: int) -> bool:
        """Whether a part could hold so much if nothing else were there."""
        return self._limits is None or nbytes <= self._limits[part]

    def room(self, form: Form, most: int) -> int:
        """Bytes that the part of a form leaves of ``most``."""
        if self._limits is None:
            return most
        part = self._parts[form]
        return max(0, min(most, self._limits[part] - self._used_by(part)))

    def within(self, form: Form, nbytes: int) -> bool:
        """Whether a form may have so much more."""
        if self._limits is None:
            return True
        part = self._parts[form]
        return self._used_by(part) + nbytes <= self._limits[part]

    def overdrawn(self, form: Form) -> bool:
        """Whether the part of a form holds more than its limit."""
        if self._limits is None:
            return False
        part = self._parts[form]
        return self._used_by(part) > self._limits[part]

    def _used_by(self, part: Part) -> int:
        return sum(self.used[form] for form in part)

    def charge(self, form: Form, nbytes: int) -> None:
        """A form has so much more."""
        used = self.used[form] = self.used[form] + nbytes
        if used > self._peak[form]:
            self._peak[form] = used

    def awaited(self, form: Form, beside: Form) -> int:
        """Bytes that a form has lately needed and does not have now, where it shares a part with another one."""
        if self._limits is not None and form not in self._parts[beside]:
            return 0
        return max(0, self._peak[form] - self.used[form])

    def forget_peaks(self) -> None:
        """Forget how much was needed, little by little."""
        self._peak = {form: max(self.used[form], int(0.95 * peak)) for form, peak in self._peak.items()}
