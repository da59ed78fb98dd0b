"""How much of the shared cache there is, and how it is split."""

from __future__ import annotations

from collections import Counter

from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.core.forms import CACHEABLE, Form


class Budgets:
    """Sets the pool's budget by what jobs ask for, and its parts by what was measured."""

    def __init__(self, state: State) -> None:
        self._state = state

    def set(self) -> None:
        """Set them by the jobs that are there."""
        budget = max((job.budget for job in self._state.jobs.values()), default=0)
        split = self._split()
        limits = self._state.shared_split.parts(budget)
        if split is not None:
            whole = sum(split)
            limits = {
                (form,): int(budget * part / whole) for form, part in zip(CACHEABLE, split, strict=True)
            }
        if self._state.jobs:  # the last one's cache stays for whoever comes next
            self._state.pool.set_budget(budget, limits)

    def _split(self) -> tuple[float, float, float] | None:
        """How the cache is to be split, if somebody asked for it."""
        asked = (
            job.split for job in self._state.jobs.values() if job.split is not None and sum(job.split) > 0
        )
        return next(asked, None)

    def look(self) -> None:
        """About once a second, see whether another split would pay more."""
        if self._state.shared_split.is_due(self._state.now) and self._look() and self._split() is None:
            self.set()

    def _look(self) -> bool:
        """Look at what was measured; whether the cache is to be split in another way."""
        known = [shelf for shelf in self._state.pool.shelves.values() if shelf.jobs and shelf.known]
        by_form = {form: [shelf for shelf in known if shelf.form == form] for form in CACHEABLE}
        mean = {
            form: sum(shelf.expected for shelf in shelves) / max(1, len(shelves))
            for form, shelves in by_form.items()
        }
        return self._state.shared_split.look(
            self._state.now,
            samples=self._samples(),
            budget=self._state.pool.budget,
            decoded=mean[Form.DECODED],
            augmented=mean[Form.AUGMENTED],
            jobs=max((len(shelf.jobs) for shelf in by_form[Form.AUGMENTED]), default=1),
            instances=self._instances(by_form[Form.AUGMENTED]),
        )

    def _instances(self, shelves: list[Shelf]) -> float:
        """Augmented samples that are cached or about to be; at least as many as a job has under way."""
        under_way: Counter[int] = Counter()
        for ticket in self._state.tickets.values():
            if not ticket.fill:
                under_way[ticket.job] += len(ticket.ids)
        there = sum(len(shelf) + len(shelf.owner) for shelf in shelves)
        return max([there, *under_way.values()])

    def _samples(self) -> int:
        """Samples of the datasets that jobs draw from; each counts once, in however many it is."""
        datasets = list({id(job.dataset): job.dataset for job in self._state.jobs.values()}.values())
        if len(datasets) < 2:
            return sum(dataset.size for dataset in datasets)
        union = datasets[0].bits(self._state.universe.size)
        for dataset in datasets[1:]:
            union = union | dataset.bits(self._state.universe.size)
        return union.count()
