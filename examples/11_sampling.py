"""Who draws which sample when: the same two jobs with each of the sampling policies.

With every policy each job gets each sample once an epoch. "uniform" is the job's own order, a pure function of
(seed, epoch). The others are drawn by the host, so that one preparation serves both jobs: "dependent" lets them draw
the same samples at about the same time, "opportunistic" and "auto" prefer what is cached.

Two loaders are two jobs, also in one process; usually they are in different ones (10_share.py).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import headrace as hr
from _data import image_folder
from headrace.host import control

COUNT, BATCH, EPOCHS = 192, 16, 3


def job(sampling: str, root: Path, seed: int) -> hr.DataLoader[tuple[object, object]]:
    """A job's loader, with a cache for a quarter of the decoded images."""
    paths = sorted(root.rglob("*.jpg"))
    recipe = hr.Recipe(
        source=hr.files(
            paths, targets=range(len(paths))
        ),  # a sample's number as its target, to show the order
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(64)],
    )
    return hr.DataLoader(
        recipe,
        batch_size=BATCH,
        shuffle=True,
        seed=seed,
        num_workers=1,
        cache=COUNT * 320 * 240 * 3 // 4,
        share=True,
        sampling=sampling,
    )


def run(sampling: str, root: Path) -> None:
    """Two jobs step by step beside each other, and what they were given."""
    exact = True
    with job(sampling, root, seed=1) as one, job(sampling, root, seed=2) as two:
        for _ in range(EPOCHS):
            orders: tuple[list[int], list[int]] = [], []
            for (_, first), (_, second) in zip(one, two, strict=True):
                orders[0].extend(first.tolist())
                orders[1].extend(second.tolist())
            exact &= all(sorted(order) == list(range(COUNT)) for order in orders)
        decoded = one.stats().decoded + two.stats().decoded
    print(
        f"{sampling}: each sample once an epoch: {exact}; decoded: {decoded} for {2 * EPOCHS * COUNT} delivered"
    )


def main() -> None:
    """All policies in turn, each with a host of its own."""
    with (
        image_folder(COUNT, size=(320, 240)) as root,
        tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as private,
    ):
        os.environ["HEADRACE_RUNTIME_DIR"] = f"{private}/run"  # leaves your own host alone
        for sampling in ("uniform", "opportunistic", "dependent", "auto"):
            run(sampling, root)
            control.stop()


if __name__ == "__main__":
    main()
