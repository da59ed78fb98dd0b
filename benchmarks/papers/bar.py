"""How far the experiments are: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from headrace.core import bar


class Bar:
    """Counts experiments, and within each its steps."""

    def __init__(self, total: int, out: TextIO | None = None) -> None:
        """``total``: experiments in all."""
        self._out = sys.stderr if out is None else out
        self._bar = bar.Bar("papers", self._out)
        self._total, self._done = max(1, total), -1
        self._title = ""

    def begin(self, title: str) -> None:
        """The next experiment."""
        self._done += 1
        self._title = title
        self.step(0, 1, "")

    def step(self, done: int, steps: int, what: str) -> None:
        """So many steps of this experiment are done; ``what`` comes now."""
        share = (self._done + done / max(1, steps)) / self._total
        text = f"{self._title}: {what}" if what else self._title
        if self._out.isatty():
            self._bar(text, share)
        else:
            print(f"{share:4.0%}  {text}", file=self._out, flush=True)

    def clear(self) -> None:
        """Leave the line empty."""
        self._bar.close()
