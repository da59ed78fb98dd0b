"""What users' objects say of themselves: the states of datasets, iterators and samplers.

A state is taken as it is and given back as it was. It is taken only when somebody asks, where that can be: batches
that were prepared ahead have moved an object on, so there it is taken now and then, and what was delivered since is
gone through again.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from headrace.core.errors import StateError

_FREE = 16 * 1024
"""Bytes of a state that may be taken with every batch. A larger one is taken as much more seldom."""
_SELDOM = 1000
"""Batches after which a state is taken, however large."""


class UserState:
    """A state that plain values cannot hold (tensors, tuples, numbers as keys): the user's object, untouched.

    It is not JSON, and says so; ``torch.save`` and ``pickle`` keep it.
    """

    def __init__(self, value: Any) -> None:
        self.version = 1
        self.value = value

    def __repr__(self) -> str:
        return f"UserState({self.value!r})"


if hasattr(torch.serialization, "add_safe_globals"):  # torch before 2.4 does not know it
    # So that ``torch.load(weights_only=True)`` reads a checkpoint with such a state; what is in it, torch judges.
    torch.serialization.add_safe_globals([UserState])


def is_stateful(owner: Any) -> bool:
    """Whether an object keeps a state of its own."""
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")


def take(owner: Any) -> Any:
    """An object's state as it is now, a copy; None if it keeps none."""
    if not is_stateful(owner):
        return None
    try:
        return pickle.loads(dumps(owner.state_dict()))
    except Exception:
        return owner.state_dict()  # what cannot be copied is handed on as it is


def load(owner: Any, state: Any, what: str) -> None:
    """Give an object its state back."""
    if state is None:
        return
    if not is_stateful(owner):
        raise StateError(
            f"the state has one of the {what}, and {type(owner).__name__} has no load_state_dict() to take it"
        )
    owner.load_state_dict(state)


def dumps(state: Any) -> bytes:
    """A state on its way from a worker to its own job, or as it was at some moment."""
    try:
        return pickle.dumps(state, protocol=5)
    except Exception:
        return bytes(cloudpickle.dumps(state))


def shown(value: Any) -> Any:
    """A user's state as ``state_dict()`` shows it: as it is where it is plain, else wrapped."""
    return value if _is_plain(value) else UserState(value)


def hidden(value: Any) -> Any:
    """The user's state that ``shown`` showed."""
    if isinstance(value, UserState):
        if value.version != 1:
            raise StateError(f"a user's state has version {value.version}; this headrace reads version 1")
        return value.value
    return value


def _is_plain(value: Any) -> bool:
    """Whether JSON gives the very same value back."""
    kind = type(value)
    if kind is list:
        return all(map(_is_plain, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    if kind is float:
        return math.isfinite(value)
    return value is None or kind in (bool, int, str)


class Snapshots:
    """Takes a state with every batch if it is small, and the more seldom the larger it is."""

    def __init__(self, every: int | None) -> None:
        """``every``: batches from one to the next, as the user wants it; 0: none; None: by its size."""
        self._every = every
        self._left = 1 if every is None else every

    def after_batch(self, get: Callable[[], Any]) -> bytes:
        """Count a batch; the state after it if it is time for one, else nothing."""
        self._left -= 1
        if self._left > 0 or self._every == 0:
            return b""
        state = dumps(get())
        self._left = self._every or min(1 + len(state) // _FREE, _SELDOM)
        return state
