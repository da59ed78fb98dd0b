"""What a simulation finds, as it is handed on: rates, hits, waits, stragglers, and how busy machines were."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.simulate.tally import Tally, Use


@dataclass(frozen=True)
class Moment:
    """How things stood at one moment."""

    time: float
    ranks: list[list[Tally]]
    """Of each job."""
    nodes: list[Use]


class Point(msgspec.Struct):
    """The course of a run at one moment: counts since its start."""

    time: float
    images: list[int]
    """Of each job."""
    rows: float
    hits: float
    decodes: float


class JobResult(msgspec.Struct):
    """What became of one job, within the stretch of time that counts."""

    name: str
    ranks: int
    loader: str
    sampling: str
    images: float
    images_s: float
    epochs: float
    wait: float
    """Share of the time for which its ranks waited for data, on average."""
    straggler: float
    """Share of the time for which its ranks waited for the slowest of them, on average."""
    hit_rate: float
    hits: dict[str, float]
    """By the form in which samples entered, shares of all."""
    decodes_per_sample: float
    """That its own workers did, per sample of its dataset and epoch."""
    ahead: float
    """Batches kept ahead at the end, on average."""
    wait_p50: float = 0.0
    """Seconds for which a rank waited for a batch: half of all waits were no longer, and 99 % of them."""
    wait_p99: float = 0.0
    helped: float = 0.0
    """Share of its rows that were prepared on other machines."""
    delay_p50: float = 0.0
    """Seconds for which the rows of an order were on their way from there: of half of them, and of 99 %."""
    delay_p99: float = 0.0


class NodeResult(msgspec.Struct):
    """How busy one machine was: shares of what it could have done."""

    number: int
    cpu: float
    host: float
    """Share of the time for which the shared host was at work, had it a processor for itself."""
    network: float
    storage: float
    """Where each machine has its own; else see ``Result.storage``."""
    cache_bytes: int
    cached: dict[str, int]
    """Samples by form, at the end."""
    evictions: float
    late: float
    """Share of the steps of jobs on several ranks in which the last data came from here."""
    memory_hits: float
    """Of the samples that workers asked the machine for: the share that was in its page cache then."""
    stored: float
    """Samples that it read from storage."""
    taken_over: float
    """Samples that it took over from other machines."""
    peer_hits: float = 0.0
    """Of the samples that workers asked the machine for: the share that was in another machine's memory then."""


class Result(msgspec.Struct):
    """All of it. Counts and times are of the stretch of time that counts."""

    complete: bool
    """False: it was ended early, and this is what was found so far."""
    seconds: float
    """Of virtual time; ``began`` is when the stretch began."""
    began: float
    images: float
    images_s: float
    hit_rate: float
    decodes_per_sample: float
    """Per sample of the whole dataset and epoch of a job."""
    decodes_per_image: float
    cpu_s_per_1000: float
    storage: float
    """How busy the storage was that all machines share, as a share of what it could give."""
    filled: float
    """Samples that idle workers prepared."""
    paid: dict[str, float]
    """How often each of the scenario's ``costs`` was paid, by its name."""
    jobs: list[JobResult]
    nodes: list[NodeResult]
    course: list[Point]
