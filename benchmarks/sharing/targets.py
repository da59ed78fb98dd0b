"""What headrace promises several jobs on one machine, computed from the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.common.report import Target, target
from benchmarks.common.rounds import Run, ratio, undisturbed
from benchmarks.sharing.cases import HIT_SHARES

Runs = Mapping[str, Sequence[Run | None]]
HIT_RATES = (0.68, 0.76, 0.84, 0.92)
OURS = "headrace-auto@4"


def compute(runs: Runs, missing: Mapping[str, str]) -> list[Target]:
    """All targets. Ratios are of runs of the same round; times count only from undisturbed runs."""

    def found(name: str, field: str) -> list[float]:
        return [run[field] for run in runs.get(name, ()) if run is not None]

    def over(name: str, other: str, field: str = "images_s") -> list[float]:
        ours, theirs = undisturbed(runs.get(name, ())), undisturbed(runs.get(other, ()))
        return ratio(ours, theirs, field) if len(ours) == len(theirs) else []

    def why(*names: str) -> str:
        return "; ".join(f"{name}: {missing[name]}" for name in names if name in missing)

    sockets = ("tensorsocket@4", "tensorsocket-shm@4")
    # The better of its two ways, where it ran at all.
    socket = max(sockets, key=lambda name: max(found(name, "images_s"), default=0.0))
    fast = [
        both["job_images_s"][-1] / alone["job_images_s"][-1]
        for both, alone in zip(
            undisturbed(runs.get("speeds", ())), undisturbed(runs.get("speeds-alone", ())), strict=False
        )
        if both is not None and alone is not None
    ]
    four = "four equal jobs"
    return [
        target(f"{four}: images/s over one job of headrace alone",
               over(OURS, "headrace@1"), ">=", 3.5, why(OURS, "headrace@1")),
        target(f"{four}: images/s over four of torch",
               over(OURS, "torch@4"), ">=", 4.5, why(OURS, "torch@4")),
        target(f"{four}: images/s over four of FFCV on its decoded file",
               over(OURS, "ffcv@4"), ">=", 2.5, why(OURS, "ffcv@4")),
        target(f"{four}: images/s over TensorSocket with four consumers",
               over(OURS, socket), ">=", 1.0, why(OURS, *sockets)),
        target(f"{four}: CPU-seconds per 1000 images", found(OURS, "cpu_s_per_1000"), "<=", 0.33, why(OURS)),
        target(f"{four}: decodes per sample and epoch", found(OURS, "decodes_per_sample"), "<=", 1.05, why(OURS)),
        target("four jobs a quarter of an epoch apart: decodes per sample and epoch",
               found("staggered", "decodes_per_sample"), "<=", 1.3, why("staggered")),
        target("speeds 1:2:4: rate of the fast job over its rate alone",
               fast, ">=", 0.95, why("speeds", "speeds-alone")),
        target("speeds 1:2:4: decodes over those without sharing",
               found("speeds", "decodes_per_image"), "<=", 0.6, why("speeds")),
        target("two datasets that overlap by half: decodes over the size of their union",
               found("overlap", "decodes_per_sample"), "<=", 1.05, why("overlap")),
        target("four different augmentations: decodes per sample and epoch",
               found("augmentations", "decodes_per_sample"), "<=", 1.05, why("augmentations")),
        *(
            target(f"three jobs, cache of {100 * share:.0f} %: hit rate",
                   found(f"hits-{round(100 * share)}", "hit_rate"), ">=", wanted,
                   why(f"hits-{round(100 * share)}"))
            for share, wanted in zip(HIT_SHARES, HIT_RATES, strict=True)
        ),
    ]  # fmt: skip
