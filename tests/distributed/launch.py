"""Runs torchrun, several times one after the other: ``launch.py LAUNCHES``, as JSON a list of launches, each of which
is a list of agents ("machines") that run at the same time, each of which is a list of torchrun's arguments.

Ranks are forked off (``--run-path --start-method=fork``), so what is imported here, once, they all have: of what a
rank takes, importing torch, and the compiler that DistributedDataParallel asks for, is by far the most.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback

import torch._dynamo
from torch.distributed import run

import headrace as hr


def start(arguments: list[str]) -> int:
    """Do what ``torchrun`` does with these arguments, in a process group of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    status = 1
    try:
        run.main(arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Run all of them, those of one launch at the same time, and print their exit statuses."""
    assert hr.DataLoader and torch._dynamo
    for launch in json.loads(sys.argv[1]):
        begin = time.monotonic()
        agents = [start(arguments) for arguments in launch]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in agents]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = {"wall": time.monotonic() - begin, "CPU so far": used.ru_utime + used.ru_stime}
        print(json.dumps({"statuses": statuses, **seconds}), flush=True)


if __name__ == "__main__":
    main()
