"""One job of a measured run, in a process of its own. Started by ``measure``, with which it speaks in lines.

In: ``go`` (open the loader; again after the warm-up: begin), ``stop`` (end after this batch), ``end`` (go away).
Out: one JSON object per line: ``loaded``, ``ready``, ``mark`` (a point of the trace), ``done``, ``failed``;
the producer says ``made`` instead of ``mark``.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from benchmarks.common.contenders import Setup
from benchmarks.common.rounds import take_stdout
from benchmarks.sharing.contenders import BY_NAME, Contender, Entry

MARKS = 16
"""Points of the trace per epoch."""


class Control:
    """The line to ``measure``."""

    def __init__(self, commands: int, out: TextIO) -> None:
        self.stop = threading.Event()
        self._commands = commands
        self._out = out
        self._words: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # Read without a buffer: workers that are forked meanwhile would inherit the buffer's lock as held.
        while text := os.read(self._commands, 4096):
            for word in text.decode().split():
                if word == "stop":
                    self.stop.set()
                else:
                    self._words.put(word)
        # Whoever measured is gone: nobody wants the rest.
        os._exit(1)

    def wait_for(self, word: str) -> None:
        """Wait for ``word``; others before it are passed over."""
        while self._words.get() != word:
            pass

    def tell(self, event: str, **fields: Any) -> None:
        """Say something."""
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()


class Run:
    """The job's loop: epochs, pace, and the trace of how far it was when."""

    def __init__(self, contender: Contender, control: Control, every: int, pace_s: float) -> None:
        self.contender, self.control = contender, control
        self.every, self.pace_s = every, pace_s
        self.images = 0
        """Delivered since the loader was opened."""

    def mark(self, epoch: int) -> None:
        """A point of the trace."""
        counts = self.contender.counts(self.images)
        self.control.tell("mark", point=[time.monotonic(), epoch, self.images, *counts])

    def epoch(self, number: int, batches: int | None = None) -> None:
        """One epoch, or its first ``batches``."""
        for at, count in enumerate(itertools.islice(self.contender.epoch(number), batches), start=1):
            self.images += count
            if self.pace_s:
                time.sleep(self.pace_s)
            if at % self.every == 0:
                self.mark(number)
            if self.control.stop.is_set():
                break


def run_job(entry: Entry, plan: dict[str, Any], setup: Setup, control: Control) -> None:
    """Open, warm up, wait for the others, run."""
    control.wait_for("go")
    contender = entry.open(setup, plan["number"], plan["options"])
    # "epochs" of 0: until told to stop.
    epochs, first = plan["epochs"] or sys.maxsize, 0
    run = Run(contender, control, max(1, plan["samples"] // setup.batch // MARKS), plan["pace_s"])
    if plan["barrier"]:
        run.epoch(0, entry.warm_batches)
        first = 1
        control.tell("ready")
        control.wait_for("go")
    run.mark(first)
    for number in range(first, first + epochs):
        run.epoch(number)
        run.mark(number + 1)
        if control.stop.is_set():
            break
    control.tell("done")
    contender.close()


def main() -> None:
    """Be a job, or the producer that runs beside the jobs."""
    plan = json.loads(sys.argv[1])
    # Libraries print, and workers close their standard input; the line to ``measure`` has descriptors of its own.
    commands = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    control = Control(commands, take_stdout())
    entry = BY_NAME[plan["contender"]]
    setup = Setup(
        Path(plan["photos"]),
        Path(plan["data"]),
        batch=plan["batch"],
        workers=plan["workers"],
        seed=plan["seed"],
    )
    try:
        if plan["number"] < 0:
            control.tell("loaded")
            entry.produce(
                setup, plan["options"], lambda count: control.tell("made", point=[time.monotonic(), count])
            )
            return
        # Importing is not starting: it is over before the first job is told to go.
        entry.load()
        control.tell("loaded")
        run_job(entry, plan, setup, control)
        control.wait_for("end")
    except BaseException as error:
        control.tell("failed", reason=f"{type(error).__name__}: {error}"[:300])
        raise
    # Threads of some libraries do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
