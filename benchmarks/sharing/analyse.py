"""What the traces of a run mean: rates, decodes and hits within its window.

A trace is a list of points ``[time, epoch, images, decoded, hits, misses]``, each counted from the job's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmarks.common.rounds import Run
from benchmarks.sharing.cases import Case

Trace = Sequence[Sequence[float]]
TIME, EPOCH, IMAGES, DECODED, HITS, MISSES = range(6)


def at(trace: Trace, moment: float, field: int) -> float:
    """A count at a moment, by linear interpolation between points."""
    points = np.array(trace)
    return float(np.interp(moment, points[:, TIME], points[:, field]))


def within(traces: Sequence[Trace], began: float, ended: float, field: int) -> float:
    """How much a count grew between two moments, over all jobs."""
    return sum(at(trace, ended, field) - at(trace, began, field) for trace in traces)


def epoch_end(trace: Trace, epochs: int) -> float:
    """When a job had finished its first ``epochs`` epochs."""
    return next(point[TIME] for point in trace if point[EPOCH] >= epochs)


def window(case: Case, raw: Run) -> tuple[float, float]:
    """The stretch of time that counts.

    - equal: from the barrier to the end of the last job;
    - paced: from the end of the fastest job's first epoch to its end;
    - flow: from the end of everybody's first epoch to the end of the first job. One producer feeds all of them
      and its batches wait in queues, so a barrier would hand out what was made before it;
    - staggered: from the end of the last job's first epoch to the end of the first.
    """
    traces = raw["traces"]
    if case.kind == "equal":
        return raw["began"], raw["ended"]
    if case.kind == "paced":
        return epoch_end(traces[-1], 1), traces[-1][-1][TIME]
    if case.kind == "flow":
        return max(epoch_end(trace, 1) for trace in traces), min(trace[-1][TIME] for trace in traces)
    return epoch_end(traces[-1], 1), traces[0][-1][TIME]


def hit_rate(traces: Sequence[Trace], began: float, ended: float) -> float:
    """Share of the samples that entered from a cache; 0 where there is none.

    Of the samples whose orders were made within the window, not of the images delivered in it: batches are prepared
    ahead, so what was delivered first had its hits counted before the window began. Hits and misses are counted at
    the same moment. Decodes are no complement: encoded samples hit and are decoded, and workers decode for others.
    """
    hits, misses = (within(traces, began, ended, field) for field in (HITS, MISSES))
    return hits / (hits + misses) if hits else 0.0


def analyse(case: Case, raw: Run, samples: int) -> dict[str, Any]:
    """The numbers of a run."""
    traces = raw["traces"]
    began, ended = window(case, raw)
    seconds = ended - began
    images, decoded = (within(traces, began, ended, field) for field in (IMAGES, DECODED))
    if "made" in raw:
        # One producer decodes what every job gets.
        decoded = at(raw["made"], ended, 1) - at(raw["made"], began, 1)
    # Epochs of one job: where jobs' datasets are parts of all, each counts by its own size.
    sizes = [samples * (part[1] - part[0]) for part in (job.options.get("part", (0, 1)) for job in case.jobs)]
    epochs = images / sum(sizes)
    found: dict[str, Any] = {
        "images": round(images),
        "seconds": seconds,
        "images_s": images / seconds,
        "job_images_s": [within([trace], began, ended, IMAGES) / seconds for trace in traces],
        "epochs": epochs,
        "cpu_s_per_1000": 1000 * (at(raw["cpu"], ended, 1) - at(raw["cpu"], began, 1)) / images,
        "decoded": round(decoded),
        "decodes_per_sample": decoded / (samples * epochs),
        "decodes_per_image": decoded / images,
        "hit_rate": hit_rate(traces, began, ended),
        "start_s": raw["start_s"],
        "others_cpu": raw["others_cpu"],
        "pss_bytes": raw["pss_bytes"],
    }
    host = raw.get("host")
    if isinstance(host, dict):
        found["host"] = {
            key: host[key] for key in ("decodes", "evictions", "refills", "memory") if key in host
        }
    return found
