"""A training job as a script: ``python -m tests.sharing.jobs SPEC`` prints what it got as lines of JSON.

``python -m tests.sharing.jobs --nursery FD`` forks a job for every specification that comes over a socket, together
with its standard streams: importing torch takes longer than most jobs here.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import mmap
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import Any, NoReturn

import numpy as np

import headrace as hr
from tests.sharing import recipes


def say(**event: Any) -> None:
    """Print one event."""
    print(json.dumps(event), flush=True)


def pids(loader: Any) -> list[int]:
    """The loader's worker processes."""
    host = getattr(loader._epochs.session, "host", None)
    return [worker.pid for worker in getattr(host, "workers", [])]


def build(spec: dict[str, Any], **other: Any) -> hr.DataLoader[Any]:
    """The loader of a specification."""
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "num_workers": 1, "cache": "64MiB"}
    options |= {"share": True} if spec.get("share", True) else {}
    options |= spec.get("loader", {}) | other
    if spec.get("spawn"):
        options["multiprocessing_context"] = multiprocessing.get_context("spawn")
    if spec.get("collate"):
        options["collate_fn"] = recipes.first_of
    return hr.DataLoader(recipes.recipe(**spec["data"]), **options)


class Together:
    """Jobs that keep pace, whatever the machine does to one of them: none is more than a few batches ahead."""

    AHEAD = 2

    def __init__(self, path: str, place: int, jobs: int) -> None:
        """``path``: of a file that all of them have, with room for a count of each, which is zero."""
        with open(path, "r+b") as file:
            self._counts = np.frombuffer(mmap.mmap(file.fileno(), 8 * jobs), np.int64)
        self._place = place

    def go_on(self) -> None:
        """One batch more; waits for those that are behind."""
        self._counts[self._place] += 1
        while self._counts[self._place] > self._counts.min() + self.AHEAD:
            time.sleep(0.001)

    def leave(self) -> None:
        """Nobody waits for this one any more."""
        self._counts[self._place] = np.iinfo(np.int64).max


def epoch(
    spec: dict[str, Any], loader: Any, number: int, name: str = "epoch", together: Together | None = None
) -> None:
    """One epoch: every batch is checked and its targets are noted."""
    whole = recipes.everything()
    batches: list[list[int]] = []
    stamps: list[str] = []
    bad = 0
    first = number == spec.get("act_in", 0)
    for at, (values, targets) in enumerate(loader):
        batches.append(targets.tolist())
        bad += recipes.wrong(values, batches[-1], whole)
        stamps += [row[-recipes.STAMP :].numpy().tobytes().hex() for row in values]
        done = at + 1
        if first and done == spec.get("pause_at"):
            say(event="paused", workers=pids(loader))
            sys.stdin.readline()
        if first and done == spec.get("cut_at"):
            loader._epochs.session.sharing.client._channel.shut()
        if first and done == spec.get("save_at"):
            say(event="state", state=loader.state_dict(), batches=batches)
            if spec.get("leave"):
                os._exit(0)
        if first and done == spec.get("break_at"):
            say(event="broke", batches=batches)
            return
        if spec.get("slow"):
            time.sleep(spec["slow"])
        if together is not None:
            together.go_on()
    say(
        event=name,
        number=number,
        batches=batches,
        bad=bad,
        takeovers=_takeovers(loader),
        stamps=stamps if spec["data"].get("augment") else [],
    )


def import_everything() -> None:
    """Import what loaders import when they are made and run: jobs that are forked find it there."""
    assert hr.DataLoader
    for name in (
        "cloudpickle",
        "headrace.engine.worker",
        "headrace.host.embedded",
        "numpy.random",
        "secrets",
    ):
        importlib.import_module(name)


def nursery(fd: int) -> None:
    """Fork jobs until the socket is closed."""
    import_everything()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    with socket.socket(fileno=fd) as sock:
        while True:
            message, streams, _, _ = socket.recv_fds(sock, 1 << 20, 3)
            if not message:
                return
            pid = os.fork()
            if pid:
                for stream in streams:
                    os.close(stream)
                sock.send(pid.to_bytes(8, "little"))
                continue
            sock.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            order = json.loads(message)
            os.environ.clear()
            os.environ.update(order["environment"])
            finish(order["spec"])


def finish(spec: dict[str, Any]) -> NoReturn:
    """Run a forked job, and end without taking the interpreter apart: with torch in it, that would take longer than
    the job. What was registered to run at the end runs."""
    status = 1
    try:
        run(spec)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(spec: dict[str, Any]) -> None:
    """Run the job."""
    faulthandler.register(signal.SIGUSR1)
    warnings.simplefilter("always")
    if "call" in spec:
        module, name, *arguments = spec["call"]
        say(event="found", value=getattr(importlib.import_module(module), name)(*arguments))
        say(event="end")
        return
    if spec.get("wait"):
        say(event="waiting")
        sys.stdin.readline()
    together = Together(*spec["together"]) if "together" in spec else None
    with build(spec) as loader:
        if "state" in spec:
            loader.load_state_dict(spec["state"])
        validation = build(spec, shuffle=False, **spec["validation"]) if "validation" in spec else None
        for number in range(spec.get("epochs", 1)):
            if number and spec.get("endless") and select.select([sys.stdin], [], [], 0)[0]:
                break
            if validation is not None and spec.get("interleaved"):
                pairs = [[a[1].tolist(), b[1].tolist()] for a, b in zip(loader, validation, strict=True)]
                say(event="pairs", train=[a for a, _ in pairs], validation=[b for _, b in pairs])
                continue
            epoch(spec, loader, number, together=together)
            if validation is not None:
                epoch(spec, validation, number, "validation")
        if together is not None:
            together.leave()
        stats = loader.stats()
        say(
            event="stats",
            decoded=stats.decoded,
            takeovers=stats.takeovers,
            client_takeovers=_takeovers(loader),
            samples=stats.samples,
            hits=stats.hits,
            restarts=stats.restarts,
            workers=pids(loader),
        )
        if spec.get("hold"):
            say(event="holding")
            sys.stdin.readline()
        if validation is not None:
            validation.close()
    say(event="end")


def _takeovers(loader: Any) -> int:
    sharing = getattr(loader._epochs.session, "sharing", None)
    return 0 if sharing is None else int(sharing.client.takeovers)


if __name__ == "__main__":
    if sys.argv[1] == "--nursery":
        nursery(int(sys.argv[2]))
    else:
        run(json.loads(sys.argv[1]))
