"""What headrace promises a single job, computed from the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.common.report import Target, target
from benchmarks.common.rounds import Run, ratio, undisturbed

Runs = Mapping[str, Sequence[Run | None]]

BEGUN = "first_epoch_after_start_images_s"
SAME_FILES = ("torch-pil", "torch-opencv", "spdl", "dali")
"""Peers that read the same JPEG files."""


def compute(runs: Runs, repeats: int) -> list[Target]:
    """All targets. Ratios are of runs of the same round; times count only from undisturbed runs."""
    none: list[Run | None] = [None] * repeats
    quiet = {name: undisturbed(mine) for name, mine in runs.items()}

    def over(name: str, other: str, field: str, timed: bool = True) -> list[float]:
        pool = quiet if timed else runs
        return ratio(pool.get(name, none), pool.get(other, none), field)

    def consumer(name: str) -> list[float]:
        return [run["consumer_us_per_image"] for run in runs.get(name, none) if run is not None]

    same, jpeg = _best(quiet, SAME_FILES, repeats), _best(quiet, (*SAME_FILES, "ffcv-jpeg"), repeats)
    ours, speed = quiet.get("headrace", none), "later_images_s"
    return [
        target("nothing cached: images/s over the best peer on the same files",
               ratio(ours, same, speed), ">=", 1.15, _who(same)),
        target("nothing cached: images/s over the best JPEG peer, FFCV's own file included",
               ratio(ours, jpeg, speed), ">=", 1.15, _who(jpeg)),
        target("nothing cached: CPU per image over bare region decode and resize",
               over("headrace", "bare-region", "cpu_s_per_1000", timed=False), "<=", 1.1),
        target("nothing cached: time to the first batch over torch with OpenCV",
               over("headrace", "torch-opencv", "first_batch_s"), "<=", 1.0),
        target("nothing cached: peak memory (PSS) over torch with OpenCV",
               over("headrace", "torch-opencv", "pss_bytes", timed=False), "<=", 1.0),
        target("nothing cached: CPU of the training process, µs per image", consumer("headrace"), "<=", 20),
        target("decoded cached: images/s over bare resize of arrays in RAM",
               over("headrace-decoded", "bare-arrays", speed), ">=", 0.85),
        target("decoded cached: images/s over FFCV's decoded file",
               over("headrace-decoded", "ffcv-raw", speed), ">=", 4),
        target("decoded cached: CPU of the training process, µs per image", consumer("headrace-decoded"), "<=", 20),
        target("decoded cached: first epoch, once it has started, over bare full decode and resize",
               ratio(quiet.get("headrace-decoded", none), quiet.get("bare-full", none), BEGUN, speed), ">=", 0.9),
        target("3 to 6 megapixels, decoded cached: first epoch, once it has started, over nothing cached",
               over("headrace-large-decoded", "headrace-large", BEGUN), ">=", 0.9),
        target("3 to 6 megapixels, decoded cached: bytes of a photo over those of its full size",
               [run["cached_part"] for run in runs.get("headrace-large-decoded", none) if run is not None],
               "<=", 0.4),
    ]  # fmt: skip


def _best(runs: Runs, names: Sequence[str], repeats: int) -> list[Run | None]:
    """The fastest of the named, round by round; None for a round that lacks one of those that run at all."""
    present = [name for name in names if name in runs]
    best: list[Run | None] = []
    for number in range(repeats):
        found: list[Run] = []
        for name in present:
            run = runs[name][number]
            if run is not None:
                found.append({**run, "who": name})
        whole = bool(found) and len(found) == len(present)
        best.append(max(found, key=lambda run: float(run["later_images_s"])) if whole else None)
    return best


def _who(best: Sequence[Run | None]) -> str:
    names = list(dict.fromkeys(run["who"] for run in best if run is not None))
    return f"best: {', '.join(names)}" if names else ""
