"""The cases of the benchmark of many jobs as scenarios."""

from __future__ import annotations

from typing import Any

from benchmarks.sharing.cases import AUGMENTATIONS, HIT_SHARES, SPEEDS

Measured = dict[str, Any]
ALONE = "headrace@1"
FITTED = (
    ALONE,
    *(f"headrace-{policy}@1" for policy in ("uniform", "opportunistic", "dependent", "auto")),
    "headrace-auto@2",
)
"""The cases that costs are fitted to: one job alone with nothing cached, one job with a cache of a fifth, and two
that share, without which nothing is copied, kept for others or waited for."""
PACED = 6
"""Epochs of a paced job; its result has those of all jobs on average, within its window."""


def scenario_of(case: Measured, result: Measured) -> dict[str, Any] | None:
    """The document of a scenario like a measured case; None for contenders other than headrace."""
    contender, name, jobs = case["contender"], case["name"], case["jobs"]
    if not contender.startswith("headrace") or case["status"] != "measured":
        return None
    settings = result["settings"]
    cache, batch = settings["cache_bytes"], settings["batch"]
    epochs = round(case["summary"]["epochs"]["median"]) + 1
    job: dict[str, Any] = {"batch": batch, "epochs": epochs}
    job |= (
        {"loader": "alone"} if contender == "headrace" else {"sampling": contender.removeprefix("headrace-")}
    )
    measure: dict[str, Any] = {"warmup": 1, "barrier": True}
    if contender == "headrace":
        # It was measured from the start of an epoch with nothing prepared ahead.
        job["epochs"], measure = epochs - 1, {"warmup": 0}
    rate = settings["pace_from_images_s"]

    def step(images_s: float) -> float:
        return batch / images_s

    if name == "staggered":
        listed = [{**job, "count": jobs, "epochs": PACED, "step": step(rate / 4), "after": 0.25}]
        measure = {"until": "first"}
    elif name.startswith("speeds"):
        steps = [step(rate / 2 * speed / max(SPEEDS)) for speed in SPEEDS]
        listed = [{**job, "name": "fast", "epochs": PACED, "step": steps[-1]}]
        if name == "speeds":
            listed = [
                {**job, "name": f"slow {n}", "epochs": 0, "step": s} for n, s in enumerate(steps[:-1])
            ] + listed
        measure = {}
    elif name == "overlap":
        parts = ([0.0, 2 / 3], [1 / 3, 1.0])
        listed = [{**job, "name": f"part {n}", "part": part} for n, part in enumerate(parts)]
    elif name == "augmentations":
        listed = [{**job, "name": f"kind {n}", "augmentation": str(n)} for n in range(len(AUGMENTATIONS))]
    else:
        listed = [{**job, "count": jobs}]
    for share in HIT_SHARES:
        if name == f"hits-{round(100 * share)}":
            cache = round(share * settings["decoded_bytes"])
            listed = [{**job, "count": jobs, "split": [0.0, 1.0, 0.0]}]
    photos = result["photos"]
    return {
        "data": {
            "samples": photos["count"],
            "encoded": photos["mean_bytes"],
            "decoded": round(settings["decoded_bytes"] / photos["count"]) + 64,  # with the extent's header
            "mix": mix(photos["sizes"], settings["decoded_bytes"] / photos["count"]),
        },
        "nodes": [{"cpus": result["machine"]["cpus"], "cache": cache}],
        "jobs": listed,
        "measure": measure,
    }


def mix(sizes: list[str], mean: float) -> list[list[float]]:
    """The two kinds of photos, and how many there are of each: their numbers of pixels have the measured mean."""
    pixels = {3 * int(width) * int(height) for width, height in (size.split("x") for size in sizes)}
    small, large = min(pixels), max(pixels)
    share = (large - mean) / (large - small) if large > small else 1.0
    return [[share, small / mean], [1 - share, large / mean]]


def group_of(name: str) -> str:
    """What a case is counted with."""
    return name.partition("@")[0] if "@" in name else name.partition("-")[0]
