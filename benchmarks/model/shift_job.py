"""A job that shares a cache, until its standard input ends. Says of every batch when it came, epoch by epoch."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common.rounds import take_stdout
from benchmarks.model.job import photos

import headrace as hr


def main() -> None:
    """Run."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    out = take_stdout()
    Path(wanted["group"]).write_text(str(os.getpid()))
    split = wanted["split"]
    loader = hr.DataLoader(
        photos(wanted["photos"], wanted["count"]),
        batch_size=64,
        shuffle=True,
        cache=wanted["cache"],
        split=None if split == "auto" else split,
        share=True,
        persistent_workers=True,
    )
    while not select.select([sys.stdin], [], [], 0)[0]:
        batches = []
        for batch, _targets in loader:
            batches.append((time.monotonic(), len(batch)))
            if select.select([sys.stdin], [], [], 0)[0]:
                break
        else:
            print(json.dumps({"batches": batches}), file=out, flush=True)
    loader.close()


if __name__ == "__main__":
    main()
