"""The runs: n equal jobs of every contender, and what jobs are like when they are not equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.sharing.contenders import BY_NAME, ENTRIES

SHARE = 0.2
"""The shared cache, as a share of the dataset's decoded size."""
HIT_SHARES = (0.2, 0.4, 0.6, 0.8)
AUGMENTATIONS: tuple[dict[str, Any], ...] = (
    {"scale": (0.08, 1.0), "flip": 0.5},
    {"scale": (0.25, 1.0), "flip": 0.5},
    {"scale": (0.08, 1.0), "flip": 0.0},
    {"scale": (0.5, 1.0), "flip": 0.25},
)
SPEEDS = (1, 2, 4)


@dataclass(frozen=True)
class Scale:
    """How large the runs of one invocation are."""

    samples: int
    decoded_bytes: int
    """Of all photos."""
    peer_images: int
    """Delivered by all jobs together, about, in the measured epochs of a contender whose epochs are alike."""
    epochs: int
    """Measured, of those whose epochs are not."""
    paced_epochs: int
    """Of the fastest job, where consumers are paced."""

    def cache(self, share: float = SHARE) -> int:
        """The bytes for ``share`` of the decoded photos."""
        return round(share * self.decoded_bytes)


@dataclass(frozen=True)
class Job:
    """One job of a case."""

    epochs: int
    """0: until the others are done."""
    options: dict[str, Any] = field(default_factory=dict)
    pace_s: float = 0.0
    """For which the consumer sleeps after each batch."""


@dataclass(frozen=True)
class Case:
    """What a run is made of; ``kind`` says how its traces are read."""

    name: str
    kind: str
    contender: str
    jobs: tuple[Job, ...]
    barrier: bool = True
    """Whether all warm up and then begin together."""
    stagger: int = 0
    """Images that a job delivers before the next one starts."""


def equal(contender: str, n: int, scale: Scale) -> Case:
    """``n`` jobs that do the same."""
    entry = BY_NAME[contender]
    epochs = scale.epochs if entry.caches else max(1, round(scale.peer_images / scale.samples / n))
    options = {"cache": scale.cache()} if entry.shares else {}
    if entry.producer:
        return Case(f"{contender}@{n}", "flow", contender, (Job(epochs + 1),) * n, barrier=False)
    return Case(f"{contender}@{n}", "equal", contender, (Job(epochs, options),) * n)


def equals(names: Sequence[str], numbers: Sequence[int], scale: Scale) -> list[Case]:
    """All contenders named, for each number of jobs."""
    return [equal(entry.name, n, scale) for n in numbers for entry in ENTRIES if entry.name in names]


def scenarios(scale: Scale, rate: float, batch: int) -> list[Case]:
    """Jobs that differ. ``rate``: images/s of one job alone with nothing cached, which sets the paces."""
    auto, cache = "headrace-auto", {"cache": scale.cache()}

    def pace(images_s: float) -> float:
        return batch / images_s

    # The fastest of the paced jobs asks for half of what the machine could prepare for it alone.
    paces = [pace(rate / 2 * speed / max(SPEEDS)) for speed in SPEEDS]
    fast = Job(scale.paced_epochs, cache, paces[-1])
    third = 1 / 3
    return [
        Case(
            "staggered", "staggered", auto, (Job(scale.paced_epochs, cache, pace(rate / 4)),) * 4,
            barrier=False, stagger=scale.samples // 4,
        ),
        Case(
            "speeds", "paced", auto, (*(Job(0, cache, slow) for slow in paces[:-1]), fast), barrier=False,
        ),
        Case("speeds-alone", "paced", auto, (fast,), barrier=False),
        Case(
            "overlap", "equal", auto,
            tuple(Job(scale.epochs, {**cache, "part": part}) for part in ((0, 2 * third), (third, 1))),
        ),
        Case(
            "augmentations", "equal", auto,
            tuple(Job(scale.epochs, {**cache, **augmentation}) for augmentation in AUGMENTATIONS),
        ),
        *(
            Case(
                f"hits-{round(100 * share)}", "equal", auto,
                (Job(scale.epochs, {"cache": scale.cache(share), "split": (0, 1, 0)}),) * 3,
            )
            for share in HIT_SHARES
        ),
    ]  # fmt: skip


def plan(
    case: Case, *, samples: int, workers: int, seed: int, limit_s: float, **places: Any
) -> dict[str, Any]:
    """The case as ``measure`` takes it."""
    jobs = [
        {
            "epochs": job.epochs,
            "options": job.options,
            "pace_s": job.pace_s,
            "samples": samples,
            "seed": seed * 1000 + number,
        }
        for number, job in enumerate(case.jobs)
    ]
    return {
        "contender": case.contender,
        "jobs": jobs,
        "barrier": case.barrier,
        "stagger": case.stagger,
        "workers": workers,
        "limit_s": limit_s,
        **places,
    }
