"""Three jobs at once, one preparation: with share=True they keep fetched, decoded and augmented samples together.

Each job is a process of its own, as two terminals would start them; they find each other through a small host
process that the first one starts. Jobs 1 and 2 have the same recipe, so they share augmented samples too; job 3
crops otherwise and shares what is decoded: reduce=False keeps images as large as they are, where a cache would else
keep them as small as each recipe's crops allow. What is cached is decoded once for all of them.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
from pathlib import Path
from typing import Any

import headrace as hr
from _data import image_folder
from headrace.host import control

EPOCHS = 3


def train(number: int, root: Path, size: int, results: Any) -> None:
    """A training job. The loader is as always, but for share=True."""
    recipe = hr.Recipe(
        source=hr.folder(root),
        decode=hr.image.decode(reduce=False),
        augment=[hr.image.random_resized_crop(size), hr.image.horizontal_flip()],
    )
    with hr.DataLoader(
        recipe, batch_size=32, shuffle=True, num_workers=1, cache="64MiB", share=True
    ) as loader:
        samples = sum(len(labels) for _ in range(EPOCHS) for _, labels in loader)
        stats = loader.stats()
        results.put((number, samples, stats.hit_rate, stats.decoded))


def main() -> None:
    """Run the jobs side by side, and look at their host."""
    with (
        image_folder(192, size=(320, 240)) as root,
        tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as private,
    ):
        # Only so that this example leaves your own host alone; jobs of yours need no such setting.
        os.environ["HEADRACE_RUNTIME_DIR"] = f"{private}/run"
        context = mp.get_context("spawn")
        results = context.SimpleQueue()
        jobs = [
            context.Process(target=train, args=(number, root, size, results))
            for number, size in enumerate((64, 64, 48), start=1)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        found = sorted(results.get() for _ in jobs)
        for number, samples, hit_rate, decoded in found:
            print(
                f"job {number}: {samples} samples, {hit_rate:.0%} from the cache; its workers decoded {decoded}"
            )
        status = control.status()  # what the command `headrace status` shows
        if status is not None:
            memory, decodes = status.memory, status.decodes
            print(f"cached: {memory.entries} samples, {memory.used / memory.budget:.0%} of the budget")
            print(f"decoded: {decodes} for {sum(samples for _, samples, *_ in found)} samples delivered")
        control.stop()  # the command `headrace stop`; without jobs the host also ends by itself, after a minute


if __name__ == "__main__":
    main()
