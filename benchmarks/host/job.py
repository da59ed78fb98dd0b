"""One training job of ``measure``: the first epoch, another to settle, then as many as go into some seconds.

Takes its orders as JSON on the command line, and lines on its standard input as signs to go on; answers with lines of
JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.common.rounds import take_stdout
from benchmarks.host.images import SIDE

import headrace as hr


def main() -> None:
    """Run."""
    out = take_stdout()
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    commands = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(**fields: Any) -> None:
        print(json.dumps(fields), file=out, flush=True)
        if not os.read(commands, 4096):  # whoever measured is gone
            os._exit(1)

    recipe = hr.Recipe(
        source=hr.folder(wanted["images"]),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(SIDE, scale=(0.5, 1.0)), hr.image.horizontal_flip()],
    )
    options: dict[str, Any] = {"cache": wanted["cache"], "seed": wanted["number"]}
    if wanted["share"]:
        options |= {"share": True, "seed": None}
    else:
        options["split"] = (0, 1, 0)
    say(opened=True)
    with hr.DataLoader(recipe, batch_size=wanted["batch"], shuffle=True, **options) as loader:
        begun, images, batches = time.monotonic(), 0, 0
        for batch, _ in loader:
            images, batches = images + len(batch), batches + 1
            if batches == 1:
                first = time.monotonic()
        say(begun=begun, first=first, ended=time.monotonic(), images=images, batches=batches)
        for _ in range(wanted["settle"]):
            for _batch in loader:
                pass
        say(settled=True)
        begun, images, batches = time.monotonic(), 0, 0
        until = begun + wanted["seconds"]
        while time.monotonic() < until:
            for batch, _ in loader:
                images, batches = images + len(batch), batches + 1
                if time.monotonic() >= until:
                    break
        ended = time.monotonic()
        stats = loader.stats()
        say(begun=begun, ended=ended, images=images, batches=batches, decoded=stats.decoded)
    say(closed=True)
    os._exit(0)


if __name__ == "__main__":
    main()
