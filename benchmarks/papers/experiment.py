"""What an experiment is: one file, one signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.papers.bar import Bar
from benchmarks.papers.rows import Row

Run = Callable[[bool, Bar], Iterator[Row]]
"""``run(quick, progress)`` gives rows as they are found, so that an interrupted run keeps what it had."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper."""

    name: str
    """As ``--only`` knows it."""
    paper: str
    where: str
    """The table, figure or section."""
    about: str
    """What is compared, in a few words."""
    run: Run

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.paper}, {self.where}"
