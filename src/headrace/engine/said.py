"""What a rank writes into its row of the roster, for whoever decides, and for the other ranks of its job."""

from __future__ import annotations

from typing import NamedTuple

from headrace.planning.threads import PerLevel, RankNeeds


class Said(NamedTuple):
    """What a rank writes down of its needs. Most of it is as in ``RankNeeds``."""

    loop_cpus: float
    """CPUs that the training process itself keeps busy."""
    waiting: float
    sample_bytes: float
    read_seconds: float
    read_cpu: float
    prepare_cpu: float
    batch: float
    train_seconds: float
    waited: float
    own: float
    """Rows that came from its own cache, and from storage."""
    storage: float
    job: float
    """What the ranks of one job have in common."""
    slow: float
    """Seconds that the slowest of a hundred batches took to be fetched."""

    def needs(self) -> RankNeeds:
        """For the controller."""
        return RankNeeds(
            waiting=self.waiting,
            sample_bytes=self.sample_bytes,
            read_seconds=self.read_seconds,
            read_cpu=self.read_cpu,
            prepare_cpu=self.prepare_cpu,
            batch=max(1, round(self.batch)),
            train_seconds=self.train_seconds,
            waited=self.waited,
            rows=PerLevel(own=self.own, storage=self.storage),
            job=int(self.job),
        )
