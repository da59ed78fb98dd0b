"""By which transport rows of each helper come: by NIXL where both ends have it and it gets rows through, else over
the wire."""

from __future__ import annotations

import threading
import time
import warnings

from headrace.channel.wire import Wire
from headrace.cluster.messages import Helper, Land
from headrace.cluster.nixl_rows import NixlReceiving, NoNixl, try_nixl
from headrace.cluster.rows import BESIDE, Receiving, WireReceiving

_MISTRUST = 60.0
"""Seconds for which rows of a helper's come over the wire after NIXL did not get any through."""


class Transports:
    """What an agent knows of them. Helpers go by a key of the agent's. Threads share it."""

    def __init__(self) -> None:
        self._trying = threading.Lock()
        self._missing: str | None = None
        """Why there is no NIXL here, empty if there is; None: it was not tried."""
        self._mistrusted: dict[str, float] = {}
        """By helper: until when nothing is to be written by it."""

    def receiving(self, key: str, helper: Helper, connection: Wire) -> Receiving:
        """How a helper's rows are received over a connection that is new."""
        if helper.nixl and self._mistrusted.get(key, 0.0) <= time.monotonic():
            with self._trying:
                if self._missing is None:
                    self._missing = ""
                    if missing := try_nixl():
                        self._do_without(missing)
            if not self._missing:
                return NixlReceiving(connection)
        return WireReceiving(connection)

    def room(self, receiving: Receiving | None, number: int, nbytes: int) -> tuple[int, Land | None]:
        """Where a helper is to put rows; see ``Receiving``."""
        if receiving is None:
            return BESIDE, None
        try:
            return receiving.room(number, nbytes)
        except NoNixl as error:
            self._do_without(str(error))
            return BESIDE, None

    def _do_without(self, why: str) -> None:
        """There is no NIXL here: say so once."""
        if not self._missing:
            self._missing = why
            warnings.warn(f"rows from other nodes come over TLS: {why}", RuntimeWarning, stacklevel=2)

    def ended(self, key: str, receiving: Receiving | None) -> bool:
        """A helper's connection is over. Whether its rows are to come in another way now, since none came in this."""
        another = isinstance(receiving, NixlReceiving) and receiving.tried and not receiving.proved
        if another:
            now = time.monotonic()
            self._mistrusted = {one: until for one, until in self._mistrusted.items() if until > now}
            self._mistrusted[key] = now + _MISTRUST
        return another
