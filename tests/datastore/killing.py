"""Processes that use, fetch and evict datasets of one store, and are killed at random.

    python -m tests.datastore.killing ROOT URL KILLS SEED

Prints how often what happened. It ends with an error if something is served that is not what it should be, or if
the store takes more than its quota at any time. (All processes stand still while that is looked at.)
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from headrace.datastore import DataError, NoRoom, Store, evict
from tests.datastore.archives import gzip, read_tree, some_files, tar, zipped
from tests.datastore.looks import check_still, disk

QUOTA = 1 << 20
PART = 32 << 10
WORKERS = 4
NAMES = [f"{kind}{number}" for number in range(2) for kind in ("tar", "zip", "gz", "kept", "shards")]


def content(name: str) -> dict[str, bytes]:
    """What a dataset has in its folder."""
    seed = NAMES.index(name)
    if name.startswith("gz"):
        return {name: random.Random(seed).randbytes(150_000)}
    if name.startswith("kept"):
        return {name: random.Random(seed).randbytes(250_000)}
    if name.startswith("shards"):  # (the first is that of both)
        return {f"{name}-{n}": random.Random(seed * n).randbytes(60_000) for n in range(3)}
    return some_files(25, 6000, seed)


def served() -> dict[str, bytes]:
    """What the web server has."""
    files: dict[str, bytes] = {}
    for name in NAMES:
        if name.startswith("tar"):
            files[name] = tar(content(name))
        elif name.startswith("zip"):
            files[name] = zipped(content(name))
        elif name.startswith("gz"):
            files[name] = gzip.compress(content(name)[name], mtime=0)
        else:
            files |= content(name)
    return files


def work(root: Path, url: str, seed: int) -> None:
    """Use and evict datasets, for ever."""
    dice = random.Random(seed)
    expected = {name: content(name) for name in NAMES}
    while True:
        name = dice.choice(NAMES)
        urls = [f"{url}{one}" for one in expected[name]] if name.startswith("shards") else [f"{url}{name}"]
        with Store(root, quota=QUOTA, cooldown=0, part=PART) as store:
            try:
                path = store.add(name, urls)
            except NoRoom:
                continue  # all that is here is in use
            for _ in range(dice.randrange(1, 3)):
                if read_tree(path) != expected[name]:
                    raise AssertionError(f"{name} is not what it should be: {os.listdir(path)}")
                time.sleep(dice.uniform(0, 0.02))
        if dice.random() < 0.3:
            with Store(root, quota=QUOTA, cooldown=0) as store, contextlib.suppress(DataError):
                # (It may be in use, or not be there.)
                evict(store, dice.choice(NAMES), forget=dice.random() < 0.3)


def start(root: Path, url: str, seed: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            work(root, url, seed)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    return pid


def observe(root: Path, workers: list[int]) -> int:
    """What the store takes at one moment."""
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    for pid in workers:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise SystemExit(f"process {pid} ended by itself: {status}")
    found = disk(root)
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    return found


def main(root: Path, url: str, kills: int, seed: int) -> None:
    dice, happened, most = random.Random(seed), Counter[str](), 0
    with Store(root):
        pass  # its folders are there
    workers = [start(root, url, seed * 1000 + number) for number in range(WORKERS)]
    try:
        while happened["kills"] < kills:
            time.sleep(dice.uniform(0.02, 0.25))
            most = max(most, observe(root, workers))
            happened["observations"] += 1
            assert most <= QUOTA, f"the store takes {most}"
            if dice.random() < 0.7:
                happened["kills"] += 1
                victim = workers.pop(dice.randrange(WORKERS))
                happened["while something was on its way"] += bool(os.listdir(root / "incoming"))
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                workers.append(start(root, url, seed * 1000 + WORKERS + happened["kills"]))
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # (one ended by itself)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    check_still(root, QUOTA)
    print(f"most {most} of {QUOTA}; {dict(happened)}")


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where it stands, for whoever wonders
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
