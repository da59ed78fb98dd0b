"""How far the experiments are: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
import time
from typing import IO

_WIDTH = 30


class Bar:
    """Counts experiments, and within each its steps."""

    def __init__(self, total: int, out: IO[str] | None = None) -> None:
        """``total``: experiments in all."""
        self._out = sys.stderr if out is None else out
        self._total, self._done = max(1, total), -1
        self._title = ""
        self._begun = time.monotonic()

    def begin(self, title: str) -> None:
        """The next experiment."""
        self._done += 1
        self._title = title
        self.step(0, 1, "")

    def step(self, done: int, steps: int, what: str) -> None:
        """So many steps of this experiment are done; ``what`` comes now."""
        share = (self._done + done / max(1, steps)) / self._total
        text = f"{self._title}: {what}" if what else self._title
        if not self._out.isatty():
            print(f"{share:4.0%}  {text}", file=self._out, flush=True)
            return
        filled = int(_WIDTH * share)
        gone = time.monotonic() - self._begun
        self._out.write(
            f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%} {gone:4.0f} s  {text[:70]}\x1b[K"
        )
        self._out.flush()

    def clear(self) -> None:
        """Leave the line empty."""
        if self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()
