"""A loader's state: small, plain, JSON-able. It describes delivered batches, never prefetched ones."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from headrace.core.bits import Bits
from headrace.core.errors import StateError

VERSION = 1


class LoaderState(msgspec.Struct, forbid_unknown_fields=True):
    """Where a loader stands: so much of this epoch was delivered."""

    version: int
    sampling: str
    """"uniform", "sampler", "iterable", or "seen" where a shared host draws."""
    seed: int | None
    epoch: int
    position: int
    """Samples of the epoch's global order that were delivered (uniform); batches delivered (otherwise)."""
    size: int | None = None
    """Samples of the dataset."""
    shuffle: bool = False
    sampler: Any = None
    """The sampler's own state, if it keeps one."""
    seen: str | None = None
    """Where a shared host draws: the set of samples delivered in this epoch, a compressed bit each."""
    workers: list[tuple[int, Any]] | None = None
    """Iterable datasets: for each worker, batches delivered and the dataset's own state, if it keeps one."""

    def plain(self) -> dict[str, Any]:
        """As a dict of plain values."""
        state: dict[str, Any] = msgspec.to_builtins(self)
        return state


def pack_seen(seen: Bits) -> str:
    """A set of samples as text."""
    return base64.b64encode(zlib.compress(seen.tobytes(), 1)).decode()


def unpack_seen(text: str | None, size: int) -> Bits | None:
    """The set that ``pack_seen`` wrote; None for none."""
    if text is None:
        return None
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 8 * (size // 64 + 2))
        return Bits.frombytes(size, raw)
    except (ValueError, zlib.error) as error:
        raise StateError(f"the state's set of delivered samples cannot be read: {error}") from None


def read_state(state: Any, *, sampling: str, size: int | None, workers: int, shuffle: bool) -> LoaderState:
    """Check a state against the loader that is to go on from it."""
    try:
        loaded = msgspec.convert(state, LoaderState)
    except msgspec.ValidationError as error:
        raise StateError(f"this is not the state of a headrace loader: {error}") from None
    if loaded.version != VERSION:
        raise StateError(f"the state has version {loaded.version}; this headrace reads version {VERSION}")
    if loaded.sampling != sampling:
        raise StateError(
            f"the state is of a loader with {loaded.sampling!r} sampling, and this one has {sampling!r}; "
            "build the loader with the same kind of dataset and sampler"
        )
    if sampling in ("uniform", "seen"):
        if loaded.size != size:
            raise StateError(f"the state is of a dataset of {loaded.size} samples, and this one has {size}")
        if loaded.shuffle != shuffle:
            raise StateError(
                f"the state is of a loader with shuffle={loaded.shuffle}, and this one has {shuffle}"
            )
        if not 0 <= loaded.position <= (size or 0):
            raise StateError(f"position {loaded.position} lies outside of an epoch of {size} samples")
    if sampling == "iterable" and loaded.workers is not None and len(loaded.workers) != max(1, workers):
        raise StateError(
            f"the state is of an iterable dataset in {len(loaded.workers)} workers and this loader has {workers}; "
            "such a dataset divides its data among its workers by itself, so their number must stay"
        )
    return loaded
