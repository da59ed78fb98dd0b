"""Draws as a simulated job takes them: from the shared host, or out of an order of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.coordinator import LATER
from headrace.coordinate.protocol import Ask, Begin, Drawn, Over, Reply, Update
from headrace.core.forms import Form
from headrace.sampling import Geometry, epoch_order

Ids = NDArray[np.int64]
_AUGMENTED = int(Form.AUGMENTED)


@dataclass(eq=False)
class Draw:
    """One batch: its samples and, where the shared host looked them up, how each of them enters."""

    epoch: int
    step: int
    indices: Ids
    last: bool
    ticket: int = -1
    forms: NDArray[np.uint8] | None = None
    keep: NDArray[np.uint8] | None = None
    grants: Ids | None = None
    """Rows of (row, form, offset, capacity)."""
    waits: int = 1 << 62
    copies: int = 0

    @classmethod
    def read(cls, reply: Drawn, own: Draw | None) -> Draw:
        """What the host replied; ``own``: what was asked for, where the job draws for itself."""
        forms = np.frombuffer(reply.forms, np.uint8)
        ready = forms[: reply.waits] == _AUGMENTED
        return cls(
            reply.epoch,
            reply.step if own is None else own.step,
            np.frombuffer(reply.indices, np.int64),
            reply.last if own is None else own.last,
            reply.ticket,
            forms,
            np.frombuffer(reply.keep, np.uint8),
            _grants(reply.grants),
            reply.waits,
            len(ready) if ready.all() else int(np.argmin(ready)),
        )

    def update(self, update: Update) -> None:
        """How the rows that waited enter."""
        assert self.forms is not None and self.keep is not None and self.grants is not None
        first = self.waits
        self.forms = np.concatenate([self.forms[:first], np.frombuffer(update.forms, np.uint8)])
        self.keep = np.concatenate([self.keep[:first], np.frombuffer(update.keep, np.uint8)])
        # (grants of the first rows were in the draw itself, and most are used up by now)
        self.grants = np.concatenate([self.grants[self.grants[:, 0] < first], _grants(update.grants)])
        self.waits = len(self.indices)


def _grants(data: bytes) -> Ids:
    return np.frombuffer(data, np.int64).reshape(-1, 4)


class Orders:
    """The uniform orders of a job's epochs, which all its ranks go by. Kept while somebody may need them."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._known: dict[int, NDArray[np.uint32]] = {}

    def of(self, epoch: int) -> NDArray[np.uint32]:
        """The order of an epoch. Epochs long past are forgotten: ranks keep step."""
        if epoch not in self._known:
            self._known[epoch] = epoch_order(self._samples, self._seed, epoch).astype(np.uint32)
            for old in [known for known in self._known if known < epoch - 2]:
                del self._known[old]
        return self._known[epoch]


class OwnDraws:
    """The batches of one epoch of a rank in the uniform order."""

    seed = 0

    def __init__(self, orders: Orders, geometry: Geometry, epoch: int) -> None:
        self._orders, self._geometry, self._epoch = orders, geometry, epoch
        self._order: NDArray[np.uint32] | None = None
        self._step = 0

    def draw(self) -> Draw | None:
        """The next batch, or None at the end."""
        if self._order is None:
            self._order = self._orders.of(self._epoch)
        steps = self._geometry.steps(len(self._order))
        if self._step >= steps:
            return None
        start, stop = self._geometry.cut(len(self._order), self._step)
        part = self._geometry.part(self._order[start:stop].astype(np.int64), self._geometry.rank)
        self._step += 1
        return Draw(self._epoch, self._step - 1, np.ascontiguousarray(part), self._step == steps)


class Line:
    """A rank's line to the shared host: one draw is asked for at a time, as the real client does."""

    def __init__(self, send: Callable[[Begin | Ask], None]) -> None:
        self._send = send
        self.epoch = -1
        self.company = 0
        self.over = False
        self.drawn: deque[Draw] = deque()
        self.asked: deque[Draw | None] = deque()
        self.updates: list[Draw] = []
        """Draws whose waiting rows need not wait any more."""
        self._waiting: dict[int, Draw] = {}

    def begin(self, epoch: int, explicit: bool) -> None:
        """Begin an epoch."""
        self.epoch, self.over = epoch, False
        self._send(Begin(epoch, explicit=explicit))

    def ask(self, own: Draw | None) -> None:
        """Ask for a draw."""
        self.asked.append(own)
        self._send(Ask(b"" if own is None else own.indices.tobytes()))

    def hear(self, reply: Reply) -> None:
        """Take in what the host said."""
        if isinstance(reply, Drawn):
            draw = Draw.read(reply, self.asked.popleft())
            self.company = reply.company
            self.drawn.append(draw)
            if draw.waits < len(draw.indices):
                self._waiting[draw.ticket] = draw
        elif isinstance(reply, Update):
            draw = self._waiting.pop(reply.ticket)
            draw.update(reply)
            self.updates.append(draw)
        elif isinstance(reply, Over):
            self.over = True
            self.asked.clear()
        else:
            raise AssertionError(f"the simulated host said {reply!r}")


class HostDraws:
    """The batches of one epoch as the shared host draws them; or the rank's own, looked up there."""

    seed = 0

    def __init__(self, line: Line, epoch: int, own: OwnDraws | None) -> None:
        self._line, self._epoch, self._own = line, epoch, own
        self._begun = self._ended = False

    def draw(self) -> Any:
        """The next batch, None at the end, or LATER if it is on its way."""
        line = self._line
        if not self._begun:
            self._begun = True
            line.begin(self._epoch, self._own is not None)
        if not (self._ended or line.over or line.asked or line.drawn):
            own = None
            if self._own is not None:
                own = self._own.draw()
                self._ended = own is None
            if not self._ended:
                line.ask(own)
        if line.drawn:
            return line.drawn.popleft()
        if line.over or (self._ended and not line.asked):
            return None
        return LATER
