"""Lobster, section 5.6: what each of its two parts gives over DALI, by headrace's own rules on a node on paper.

One node, ImageNet-1K, 40 GB (``lobster_node``; a thirty-second of the samples and of the memory). DALI is a fixed
division, three threads that read and all others preparing, over a page cache that drops what was used least recently.
How long a read takes is set so that the GPUs then work for 57.5 % of the time, which is the paper's figure for DALI
(section 5.5). Everything else follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.lobster_node import Found, PaperNode, Setup
from benchmarks.papers.rows import Row, at_least, beside, claim

THREADS, EVICTION = 1.3, 1.15
DALI_BUSY, LOBSTER_BUSY = 0.575, 0.761
"""Share of the time for which GPUs work."""
SAMPLES, SHARE = 1_281_167, 40 / 135
READ_S = 0.96e-3
"""Of one sample, on average; see above."""


def measured(divisor: int, *, threads: bool, eviction: bool, epochs: int = 2, share: float = SHARE) -> Found:
    """A node with one, both or none of the parts. ``share``: of the data that its memory holds."""
    samples = SAMPLES // divisor
    setup = Setup(samples, int(share * samples), read=READ_S)
    return PaperNode(setup, threads=threads, eviction=eviction).run(2, epochs)


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    divisor = 128 if quick else 32
    found = {}
    for place, (threads, eviction) in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        progress.step(place, 4, f"threads {threads}, eviction {eviction}")
        found[threads, eviction] = measured(divisor, threads=threads, eviction=eviction)
    dali = found[False, False]
    busy = Setup(1, 1).train / dali.step
    yield beside(
        "share of the time for which GPUs work, DALI", DALI_BUSY, busy, "simulated", "%",
        note="this set how long a read takes",
    )  # fmt: skip
    threads_alone, eviction_alone, both = (
        dali.step / found[parts].step for parts in [(True, False), (False, True), (True, True)]
    )
    yield at_least(
        "thread management alone, over DALI", THREADS, threads_alone, "simulated", "x",
        words="1.3x on average, up to 1.4x",
        note=f"{found[True, False].readers:.0f} threads read instead of 3; {found[True, False].hits:.1%} hits",
    )  # fmt: skip
    yield at_least(
        "eviction alone, over DALI", EVICTION, eviction_alone, "simulated", "x", words="15 % faster on average",
        note=f"{found[False, True].hits:.1%} hits instead of {dali.hits:.1%}; storage has no time to fetch ahead",
    )  # fmt: skip
    yield beside(
        "both, over DALI", None, both, "simulated", "x", words="not in the text",
        note=f"{found[True, True].hits:.1%} hits, {found[True, True].reads:.1%} of uses read from storage",
    )  # fmt: skip
    yield at_least(
        "share of the time for which GPUs work, both", LOBSTER_BUSY, Setup(1, 1).train / found[True, True].step,
        "simulated", "%", words="76.1 % with Lobster",
    )  # fmt: skip
    yield claim(
        "threads alone over eviction alone", "threads contribute more", threads_alone / eviction_alone,
        threads_alone > eviction_alone, "more than 1", "simulated", "x",
    )  # fmt: skip


EXPERIMENT = Experiment("lobster-ablation", "Lobster", "section 5.6", "threads alone, eviction alone", run)
