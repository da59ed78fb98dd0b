"""Lobster, section 5.6: what each of its two parts gives over DALI. headrace has neither yet."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, later

THREADS, EVICTION = 1.3, 1.15


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    yield later(
        "thread management alone, over DALI", THREADS, "threads moved between fetching and preparing", "x",
        words="1.3x on average, up to 1.4x",
    )  # fmt: skip
    yield later(
        "eviction alone, over DALI",
        EVICTION,
        "eviction by reuse distance",
        "x",
        words="15 % faster on average",
    )


EXPERIMENT = Experiment("lobster-ablation", "Lobster", "section 5.6", "threads alone, eviction alone", run)
