"""A recipe's samples through the user's own collate function, in the worker."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone
from headrace.core import random as rnd
from headrace.engine.board import Board, Claim
from headrace.engine.preparing import Faults
from headrace.engine.worker import RemoteError
from headrace.loader.codec import SlotMemory, encode
from headrace.loader.objects import seed_all

_COLLATING = -3
"""The position of collating among the steps, for the key of its random numbers."""


@dataclass
class RecipeCollator:
    """Collates the samples of an order, which are those of a batch.

    What the function draws from Python's, numpy's and torch's own generators goes by the samples of the batch, so it
    is the same for any number of workers, after a resume too, and another in each rank. The threads of a process
    share these generators, so one of them collates at a time.
    """

    collate_fn: Callable[[Any], Any]
    on_error: str = "raise"
    batched: bool = True
    """The function gets a list of samples; else a single one, as with torch's loader without batches."""
    present: Callable[[Any], Any] | None = None
    """Makes of a sample what the function expects, where that is not what recipes give."""
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return type(self), (self.collate_fn, self.on_error, self.batched, self.present)

    @property
    def name(self) -> str:
        """What messages call the function."""
        function = self.collate_fn
        return getattr(function, "__qualname__", None) or type(function).__qualname__

    def __call__(
        self,
        arena: Arena,
        board: Board,
        order: Order,
        claim: Claim | None,
        samples: list[Any],
        faults: Faults,
    ) -> OrderDone:
        """See ``Collator``."""
        done = OrderDone(order.id, [])
        good = [sample for row, sample in enumerate(samples) if row not in faults]
        if faults and (self.on_error == "raise" or not good):
            return done
        if faults and self.on_error == "substitute":
            good = [s if r not in faults else good[r % len(good)] for r, s in enumerate(samples)]
        memory = SlotMemory(arena, board, claim)
        try:
            if self.present is not None:
                good = [self.present(sample) for sample in good]
            with self._turn:
                seed_all(_word(order))
                batch = self.collate_fn(good if self.batched else good[0])
            done.result = encode(batch, memory)
        except Exception as error:
            done.error = RemoteError(error, "in collate").dumps()
        memory.report(done)
        return done


def _word(order: Order) -> int:
    """What random numbers of a batch go by: its samples, and how often each came before in the epoch."""
    digest = hashlib.blake2b(order.words or order.indices, digest_size=8).digest()
    return rnd.key(order.seed, order.epoch, _COLLATING, int.from_bytes(digest, "little"))
