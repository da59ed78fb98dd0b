"""What a shared host tells about itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized

from headrace.coordinate.protocol import PROTOCOL
from headrace.coordinate.state import State
from headrace.core.forms import Form
from headrace.core.version import __version__
from headrace.host.control import (
    DatasetStatus,
    DeviceStatus,
    HostStatus,
    JobStatus,
    MemoryStatus,
    ShelfStatus,
)


def describe(
    commons: State, workers: Mapping[int, Sized], devices: list[DeviceStatus], started: float
) -> HostStatus:
    """The status of a host; ``workers``: the connections of each member's."""
    pool = commons.pool
    jobs = []
    for job, rank in commons.ranks.values():
        hits = {form.name.lower(): count for form, count in rank.hits.items()}
        entered = sum(hits.values())
        jobs.append(
            JobStatus(
                id=rank.token[:12],
                name=job.name,
                pid=rank.pid,
                rank=rank.rank,
                world_size=job.world_size,
                dataset=job.dataset.label,
                sampling=job.sampling,
                epoch=rank.epoch.number if rank.epoch is not None else 0,
                left=commons.remaining.left(job.number),
                delivered=rank.samples,
                rate=rank.rate if commons.now - rank.rated[0] < 10.0 else 0.0,
                hits=hits,
                hit_rate=1 - hits[Form.NONE.name.lower()] / entered if entered else 0.0,
                workers=len(workers.get(rank.member, ())),
                idle_s=max(0.0, commons.now - rank.heard),
            )
        )
    datasets = [
        DatasetStatus(
            dataset.label, dataset.size, sum(job.dataset is dataset for job in commons.jobs.values())
        )
        for dataset in commons.universe.datasets.values()
    ]
    shelves = [
        ShelfStatus(shelf.form.name.lower(), shelf.key[:12], len(shelf), shelf.bytes, len(shelf.jobs))
        for shelf in pool.shelves.values()
    ]
    entries = sum(len(shelf) for shelf in pool.shelves.values())
    return HostStatus(
        pid=os.getpid(),
        started=started,
        version=__version__,
        protocol=PROTOCOL,
        memory=MemoryStatus(
            pool.budget, pool.used, entries, pool.blocks - entries, commons.shared_split.encoded
        ),
        jobs=jobs,
        datasets=datasets,
        shelves=shelves,
        decodes=commons.decodes,
        evictions=pool.evictions,
        refills=commons.refills,
        devices=devices,
        eviction=pool.worths.eviction.name,
    )
