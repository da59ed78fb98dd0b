"""The process' own generators (torch's, numpy's, Python's), where a dataset that is read in it draws from them."""

from __future__ import annotations

import base64
import contextlib
import random
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.core.errors import StateError
from headrace.loader.state import pack_generator, unpack_generator

_WORDS = 624
"""Of a Mersenne twister."""

States = dict[str, Any]


def states() -> States:
    """As they are now."""
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}


def restore(before: States) -> None:
    """Put all of them back."""
    torch.set_rng_state(before["torch"])
    np.random.set_state(before["numpy"])
    random.setstate(before["random"])


@contextlib.contextmanager
def own_randomness(user_code: bool) -> Iterator[None]:
    """User code that runs in the job's own process must not disturb the job's random numbers."""
    if not user_code:
        yield
        return
    saved = states()
    try:
        yield
    finally:
        restore(saved)


def moved(before: States, after: States) -> list[str]:
    """The names of those that were drawn from."""
    found = [] if torch.equal(before["torch"], after["torch"]) else ["torch"]
    (kind, words, *rest), (_, others, *more) = before["numpy"], after["numpy"]
    if kind == "MT19937" and (rest != more or not np.array_equal(words, others)):
        found.append("numpy")
    return found + (["random"] if before["random"] != after["random"] else [])


def pack(all_states: States, names: Iterable[str]) -> dict[str, Any]:
    """Some of them as plain values."""
    found: dict[str, Any] = {}
    for name in names:
        state = all_states[name]
        if name == "torch":
            found[name] = pack_generator(state)
        elif name == "numpy":
            _, words, *rest = state
            found[name] = [_packed(words), *rest]
        else:
            version, words, gauss = state
            found[name] = [_packed(words[:-1]), version, words[-1], gauss]
    return found


def put_back(packed: dict[str, Any]) -> None:
    """Go on from what ``pack`` gave."""
    try:
        for name, state in packed.items():
            if name == "torch":
                torch.set_rng_state(unpack_generator(state))
            elif name == "numpy":
                words, at, has_gauss, gauss = state
                np.random.set_state(("MT19937", _unpacked(words), int(at), int(has_gauss), float(gauss)))
            elif name == "random":
                words, version, at, gauss = state
                random.setstate((int(version), (*_unpacked(words).tolist(), int(at)), gauss))
    except (ValueError, TypeError, RuntimeError, zlib.error) as error:
        raise StateError(f"the state of {name}'s global generator cannot be read: {error}") from None


def _packed(words: Any) -> str:
    return base64.b64encode(zlib.compress(np.asarray(words, np.uint32).tobytes(), 1)).decode()


def _unpacked(text: str) -> Any:
    raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 4 * _WORDS)
    return np.frombuffer(raw, np.uint32)
