"""One run: starts the ranks, watches their threads, and works out what their time stamps say.

Takes its orders as JSON on the command line and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.rounds import last_words, take_stdout
from benchmarks.common.tree import adopt_orphans
from benchmarks.ranks.barrier import Barrier
from benchmarks.ranks.contenders import BY_NAME
from benchmarks.ranks.figures import lockstep, rate
from benchmarks.ranks.rank import run_rank
from benchmarks.ranks.storage import Switch
from benchmarks.ranks.threads import Watch

SETTLED = 20
"""Batches after a change within which a loader has to have found its way."""


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks; the figures.

    ``wanted``: ``contender``, ``pictures``, ``scenario``, ``ranks``, ``batch``, ``warm`` and ``steps`` (which count),
    ``step_s``; and where asked for ``workers``, ``size``, ``heavy``, ``changes`` (by step: how many times slower
    storage is from then on, and whether the heavy files are read) and ``variables`` (of the environment).
    """
    BY_NAME[wanted["contender"]].load()  # (imports what the ranks need)
    ranks, warm, steps = wanted["ranks"], wanted["warm"], wanted["steps"]
    with tempfile.TemporaryDirectory() as place:
        shared: dict[str, Any] = {
            "pictures": wanted["pictures"],
            "samples": (warm + steps) * ranks * wanted["batch"],
            **{name: wanted[name] for name in ("batch", "ranks", "scenario")},
            **{name: wanted[name] for name in ("workers", "size", "heavy", "seed") if name in wanted},
            "switch": Switch.make(Path(place) / "switch").path if wanted.get("changes") else None,
        }
        barrier = Barrier.make(ranks)
        orders = [
            {
                "contender": wanted["contender"],
                "setup": {**shared, "rank": rank},
                "barrier": barrier.descriptors,
                "warm": warm,
                "step_s": wanted["step_s"],
                "changes": wanted.get("changes", {}),
                "out": f"{place}/rank-{rank}.json",
            }
            for rank in range(ranks)
        ]
        variables = {**BY_NAME[wanted["contender"]].variables, **wanted.get("variables", {})}
        os.environ.update({**variables, "HEADRACE_RUNTIME_DIR": place})
        pids = {start(order, launcher(rank, ranks)): order["out"] for rank, order in enumerate(orders)}
        barrier.close()
        with Watch(pids) as watch:
            wait(pids)
        found = [json.loads(Path(order["out"]).read_text()) for order in orders]
    return {**examine(found, wanted), "seen_first": watch.first, "seen_all": watch.all, "looks": watch.looks}


def launcher(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun would say to a rank."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    port = 20_000 + os.getpid() % 40_000
    return {
        **{name: str(value) for name, value in place.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(order: dict[str, Any], variables: dict[str, str]) -> int:
    """A rank; returns its process. It is forked, as to import torch takes eight ranks longer than a short run."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(order["out"] + ".log", os.O_WRONLY | os.O_CREAT), 2)
        os.environ.update(variables)
        run_rank(order)
        # Threads of some libraries do not end by themselves.
        os._exit(0)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


def wait(pids: dict[int, str]) -> None:
    """Until all ranks are done, given where each writes. Where one fails, the others would wait for it for ever."""
    left, failed = dict(pids), ""
    while left:
        pid, status = os.wait()
        out = left.pop(pid, None)
        if out is None or not status:  # (it is none of the ranks, or all is well)
            continue
        if not failed:
            log = Path(out + ".log").read_text()
            failed = last_words(log) or f"a rank ended with status {os.waitstatus_to_exitcode(status)}"
        for other in left:
            os.kill(other, signal.SIGKILL)
    if failed:
        raise RuntimeError(failed)


def examine(found: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run."""
    images, warm = wanted["ranks"] * wanted["batch"], wanted["warm"]
    stamps = [[one[name] for one in found] for name in ("asked", "came", "went")]
    result = lockstep(*stamps, warm=warm, step_s=wanted["step_s"], images=images)
    before, after = found[0]["cpu"]
    result["cpu_s_per_1000"] = 1000 * (after - before) / (result["steps"] * images)
    said = [one["told"]["preparing"] for one in found if "preparing" in one["told"]]
    if said:
        result["preparing"] = max(said)
    if wanted.get("changes"):
        went, last = stamps[2], warm + wanted["steps"] - 1
        begins = [warm, *map(int, wanted["changes"])]
        ends = [*begins[1:], last]
        result["phases"] = [
            rate(went, images, begin + SETTLED, end) for begin, end in zip(begins, ends, strict=True)
        ]
    return {**result, "told": found[0]["told"], "versions": found[0]["versions"]}


def main() -> None:
    """Run."""
    adopt_orphans()
    out = take_stdout()
    print(json.dumps(run(json.loads(sys.argv[1]))), file=out, flush=True)


if __name__ == "__main__":
    main()
