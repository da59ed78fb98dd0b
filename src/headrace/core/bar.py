"""A progress bar on a terminal, drawn by rich, which is imported only where there is one."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from headrace.core.interrupts import held

if TYPE_CHECKING:
    from rich.progress import Progress

_WIDTH = 30
_NUMBERS = _WIDTH + 15
"""Of the bar, the share, the time that is left, and what lies between."""


class Bar:
    """One line that is drawn again and again, and wiped away at the end. Where there is no terminal, nothing.

    It is drawn when it is called, and by no thread of its own, which would be in the way of what is measured, and of
    forks.
    """

    def __init__(self, label: str, stream: TextIO | None = None, *, every: float = 0.0) -> None:
        """``every``: seconds between two pictures, at least."""
        self._label, self._every = label, every
        self._stream = sys.stderr if stream is None else stream
        self._draws = self._stream.isatty()
        self._progress: Progress | None = None
        self._last = -float("inf")

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, what: str, share: float) -> None:
        """Show how far it has come: ``share`` from 0 to 1, and ``what`` is being done."""
        now = time.monotonic()
        if not self._draws or now - self._last < self._every:
            return
        self._last = now
        with held():  # half a picture would stay on the screen
            progress = self._progress or _make(self._label, self._stream)
            room = max(0, progress.console.width - len(self._label) - _NUMBERS)
            progress.update(progress.task_ids[0], completed=share, what=what[:room])
            if self._progress is None:
                self._progress = progress
                progress.start()
            else:
                progress.refresh()

    def close(self) -> None:
        """Wipe it away."""
        with held():  # a terminal without a cursor would be left
            progress, self._progress = self._progress, None
            if progress is not None:
                progress.stop()


def _make(label: str, stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(_WIDTH),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task(label, total=1.0, what="")
    return progress
