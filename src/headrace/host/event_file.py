"""A file in which all that happens at the shared host is written down; see ``event_log``."""

from __future__ import annotations

import contextlib
from typing import BinaryIO

from headrace.coordinate.commons import Commons
from headrace.coordinate.event_log import Recorder
from headrace.coordinate.events import Answer, Event
from headrace.host.connections import log


class EventFile:
    """Hands events on to the commons and writes them down. Jobs do not depend on it: if that fails, there is no more
    of it."""

    def __init__(self, path: str, commons: Commons, span: int) -> None:
        self._commons = commons
        self._file: BinaryIO | None = open(path, "wb")  # noqa: SIM115
        self._recorder: Recorder | None = Recorder(commons, span=span, write=self._write)

    def handle(self, event: Event, now: float) -> list[Answer]:
        """As ``Commons.handle``."""
        return (self._commons if self._recorder is None else self._recorder).handle(event, now)

    def _write(self, frame: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(frame)
        except OSError as error:
            log(f"events are not written down any more: {error}")
            self.close()
            self._recorder = None

    def close(self) -> None:
        """The host ends."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
