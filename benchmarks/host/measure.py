"""One measured run of some jobs over small images, sharing or each with a cache of its own.

    python -m benchmarks.host.measure '{"jobs": 4, "batch": 64, "share": true, ...}'

Prints JSON: images/s and batches/s over all jobs in the first epoch and in later ones, CPU seconds per 1000 images of
everything, and CPU milliseconds of the shared host for each batch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.common.rounds import take_stdout
from benchmarks.common.tree import adopt_orphans, tree_cpu
from benchmarks.host.direct import Jobs, cpu_of


class Measured(Jobs):
    """The run."""

    module = "benchmarks.host.job"

    def run(self) -> dict[str, Any]:
        """Start, fill the caches, settle, measure."""
        self.hear()
        self.go()
        first = self.hear()
        pid = self.host_pid() if self.wanted["share"] else 0
        # (A host that has just started has read its code: that is a tenth of a second, and no batch's.)
        begun, ended = min(job["begun"] for job in first), max(job["ended"] for job in first)
        images = sum(job["images"] for job in first)
        self.go()
        self.hear()
        host, cpu = cpu_of(pid) if pid else 0.0, tree_cpu(os.getpid())
        self.go()
        later = self.hear()
        host, cpu = (cpu_of(pid) if pid else 0.0) - host, tree_cpu(os.getpid()) - cpu
        batches = sum(job["batches"] for job in later)
        delivered = sum(job["images"] for job in later)
        return {
            "jobs": len(later),
            "first_images_s": sum(
                (job["images"] - self.wanted["batch"]) / (job["ended"] - job["first"]) for job in first
            ),
            "first_with_start_images_s": images / (ended - begun),
            "images_s": sum(job["images"] / (job["ended"] - job["begun"]) for job in later),
            "batches_s": sum(job["batches"] / (job["ended"] - job["begun"]) for job in later),
            "cpu_s_per_1000": 1000 * cpu / delivered,
            "host_ms": 1e3 * host / batches,
            "decodes_per_sample": sum(job["decoded"] for job in later) / self.wanted["samples"],
        }


def main() -> None:
    """Measure, print."""
    out = take_stdout()
    adopt_orphans()
    measured = Measured(json.loads(sys.argv[1]))
    try:
        found = measured.run()
    finally:
        measured.close()
    with out:
        json.dump(found, out)


if __name__ == "__main__":
    main()
