"""A progress bar on a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

_WIDTH = 30


class Bar:
    """One line that is drawn again and again, and wiped away at the end. Where there is no terminal, nothing."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._draws = self._stream.isatty()
        self._shown = ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write(f"\r{' ' * len(self._shown)}\r")

    def __call__(self, what: str, share: float) -> None:
        """Show how far it has come: ``share`` from 0 to 1, and ``what`` is being done."""
        if not self._draws:
            return
        full = round(_WIDTH * min(max(share, 0.0), 1.0))
        text = f"{self._label} [{'#' * full}{'.' * (_WIDTH - full)}] {share:4.0%}  {what}"
        text = text[: max(shutil.get_terminal_size().columns - 1, 0)]  # a line that wraps cannot be redrawn
        if text != self._shown:
            before, self._shown = self._shown, text  # at once: an interrupt may come while it is written
            self._write(f"\r{text.ljust(len(before))}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
