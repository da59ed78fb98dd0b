"""What headrace promises a single job, computed from the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common.report import Target, target
from benchmarks.common.rounds import Run, ratio

Runs = Mapping[str, Sequence[Run | None]]

SAME_FILES = ("torch-pil", "torch-opencv", "spdl", "dali")
"""Peers that read the same JPEG files."""


def compute(runs: Runs, repeats: int) -> list[Target]:
    """All targets; ratios are of runs of the same round."""
    none: list[Run | None] = [None] * repeats

    def of(name: str) -> Sequence[Run | None]:
        return runs.get(name, none)

    uncached, decoded = of("headrace"), of("headrace-decoded")
    same, all_jpeg = _best(runs, SAME_FILES, repeats), _best(runs, (*SAME_FILES, "ffcv-jpeg"), repeats)
    speed, cpu = "later_images_s", "cpu_s_per_1000"
    return [
        target("nothing cached: images/s over the best peer on the same files",
               ratio(uncached, same, speed), ">=", 1.15, _who(same)),
        target("nothing cached: images/s over the best JPEG peer, FFCV's own file included",
               ratio(uncached, all_jpeg, speed), ">=", 1.15, _who(all_jpeg)),
        target("nothing cached: CPU per image over bare region decode and resize",
               ratio(uncached, of("bare-region"), cpu), "<=", 1.1),
        target("nothing cached: time to the first batch over torch with OpenCV",
               ratio(uncached, of("torch-opencv"), "first_batch_s"), "<=", 1.0),
        target("nothing cached: peak memory (PSS) over torch with OpenCV",
               ratio(uncached, of("torch-opencv"), "pss_bytes"), "<=", 1.0),
        target("nothing cached: CPU of the training process, µs per image",
               _values(uncached, "consumer_us_per_image"), "<=", 20),
        target("decoded cached: images/s over bare resize of arrays in RAM",
               ratio(decoded, of("bare-arrays"), speed), ">=", 0.85),
        target("decoded cached: images/s over FFCV's decoded file",
               ratio(decoded, of("ffcv-raw"), speed), ">=", 4),
        target("decoded cached: CPU of the training process, µs per image",
               _values(decoded, "consumer_us_per_image"), "<=", 20),
    ]  # fmt: skip


def _best(runs: Runs, names: Sequence[str], repeats: int) -> list[Run | None]:
    """The fastest of the named, round by round."""
    best: list[Run | None] = []
    for number in range(repeats):
        found: list[dict[str, Any]] = [
            {**run, "who": name}
            for name in names
            if (run := runs.get(name, [None] * repeats)[number]) is not None
        ]
        best.append(max(found, key=lambda run: float(run["later_images_s"]), default=None))
    return best


def _who(best: Sequence[Run | None]) -> str:
    names = list(dict.fromkeys(run["who"] for run in best if run is not None))
    return f"best: {', '.join(names)}" if names else ""


def _values(runs: Sequence[Run | None], field: str) -> list[float]:
    return [run[field] for run in runs if run is not None]
