"""A loader's state. It describes delivered batches, never prefetched ones.

All that is headrace's own in it is plain, small and JSON-able. What a dataset, an iterator or a sampler of the user's
says of itself is kept as it is (``stateful.shown``).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from headrace.core.bits import Bits
from headrace.core.errors import StateError
from headrace.loader.stateful import hidden, shown

VERSION = 2

_USERS = ("dataset", "iterator", "sampler")
"""Fields that hold states of the user's objects."""


class Mark(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far one reader of a dataset is: a worker, or the job itself where there is none.

    A reader goes on by loading the dataset's state, asking for its iterator, loading the iterator's state, and going
    once more through what came after those states.
    """

    delivered: int = 0
    """Batches of this epoch."""
    since: int = 0
    """Iterable datasets: batches that were delivered after the states below, or in all if there are none."""
    replay: list[tuple[int, Any]] = []
    """Map-style datasets: those batches, as steps and keys."""
    over: bool = False
    """The iterator had come to its end."""
    ended: bool = False
    """The states are of an epoch that ended; the next one is to begin."""
    dataset: Any = None
    iterator: Any = None
    generators: dict[str, Any] = {}
    """The process' own generators when the reading of the epoch begins, as far as the dataset draws from them."""

    @classmethod
    def left(cls, dataset: Any, iterator: Any) -> Mark:
        """Where a reader is after an epoch that ended, by its states then, if it has any."""
        return cls(ended=dataset is not None or iterator is not None, dataset=dataset, iterator=iterator)

    def plain(self) -> dict[str, Any]:
        """As a dict."""
        state = _plain(self)
        if self.replay:
            state["replay"] = [[step, shown(keys)] for step, keys in self.replay]
        return state


class SamplerMark(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far a sampler of the user's is."""

    sampler: Any = None
    iterator: Any = None
    since: int = 0
    """Batches that were delivered after those states, or in all if there are none."""
    over: bool = False
    """The states are of an epoch that ended; the next one is to begin."""
    epoch: int | None = None
    """A sampler without states that is told the epoch: the one whose order it gave."""
    generators: list[str] = []
    """A sampler without states: those of its generators, as the epoch began."""
    torch: str | None = None
    """The same of torch's global generator, if the sampler draws from it."""
    times: str | None = None
    """A sampler with states, over a recipe: how often it has named each sample that was delivered."""
    ranks: int | None = None
    """A sampler without states that divides its order among ranks: their number,"""
    batch_size: int = 0
    """and the samples of a batch, where that is known (``divided.py``)."""
    passed: int = 0
    """Samples of the order of all ranks that other ranks were given before those batches, or in other batches."""

    def plain(self) -> dict[str, Any]:
        """As a dict."""
        return _plain(self)


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
    early: list[int] = []
    """Batches that were delivered before others that were drawn earlier: what ``position`` is after each."""
    generator: str | None = None
    """State of the loader's generator, from which the seed of the next epoch is drawn."""
    sampler: SamplerMark | None = None
    """Where the user's sampler is."""
    seen: str | None = None
    """Where a shared host draws: the set of samples delivered in this epoch, a compressed bit each."""
    dataset: Any = None
    """State of the dataset in the job's own process, if it keeps one."""
    workers: list[Mark] | None = None
    """Where each worker is, for datasets whose place lives there; the job itself counts as one."""
    last: int = -1
    """The worker that delivered the last batch."""

    def plain(self) -> dict[str, Any]:
        """As a dict of plain values, but for what users' objects say of themselves where that is not plain."""
        always = {name: getattr(self, name) for name in self.__struct_fields__[:7]}
        state = {**always, **_plain(self)}
        if self.sampler is not None:
            state["sampler"] = self.sampler.plain()
        if self.workers is not None:
            state["workers"] = [mark.plain() for mark in self.workers]
        return state


def _plain(struct: msgspec.Struct) -> dict[str, Any]:
    """What is not as it is by default."""
    fields = msgspec.structs.fields(type(struct))
    state = {}
    for field in fields:
        value = getattr(struct, field.name)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if field.name in _USERS:
            if value is not None:
                state[field.name] = shown(value)
        elif value != default:
            state[field.name] = list(value) if isinstance(value, list) else value
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


def pack_generator(state: torch.Tensor) -> str:
    """The state of a generator as text."""
    return base64.b64encode(zlib.compress(state.numpy().tobytes(), 1)).decode()


def unpack_generator(text: str) -> torch.Tensor:
    """The state that ``pack_generator`` wrote."""
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 1 << 16)
    except (ValueError, zlib.error) as error:
        raise StateError(f"the state of a generator cannot be read: {error}") from None
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def set_generator(generator: torch.Generator, text: str) -> None:
    """Put a generator where ``text`` says."""
    try:
        generator.set_state(unpack_generator(text))
    except RuntimeError as error:
        raise StateError(f"the state of a generator does not fit: {error}") from None


class _First(msgspec.Struct, forbid_unknown_fields=True):
    """The states of version 1."""

    version: int
    sampling: str
    seed: int | None
    epoch: int
    position: int
    size: int | None = None
    shuffle: bool = False
    sampler: Any = None
    seen: str | None = None
    workers: list[tuple[int, Any]] | None = None

    def upgrade(self) -> LoaderState:
        """The same in today's words."""
        state = LoaderState(
            VERSION,
            self.sampling,
            self.seed,
            self.epoch,
            self.position,
            self.size,
            self.shuffle,
            seen=self.seen,
        )
        if self.sampling == "sampler" and self.position:
            given = self.sampler is not None
            state.sampler = SamplerMark(sampler=self.sampler, since=0 if given else self.position)
        if self.workers:
            state.workers = [
                Mark(delivered=count, since=count if own is None else 0, dataset=own)
                for count, own in self.workers
            ]
            # Whose turn it was followed from what each had delivered.
            counts = [count for count, _ in self.workers]
            ahead = [worker for worker, count in enumerate(counts) if count == max(counts)]
            state.last = ahead[-1] if max(counts) else -1
        return state


def _convert(state: Any) -> LoaderState:
    version = state.get("version") if isinstance(state, dict) else None
    if isinstance(version, int) and version not in (1, VERSION):
        raise StateError(f"the state has version {version}; this headrace reads versions 1 to {VERSION}")
    try:
        if version == 1:
            return msgspec.convert(state, _First).upgrade()
        loaded = msgspec.convert(state, LoaderState)
    except msgspec.ValidationError as error:
        raise StateError(f"this is not the state of a headrace loader: {error}") from None
    owners: Iterable[Any] = [loaded.sampler] if loaded.sampler is not None else []
    for owner in (*owners, *(loaded.workers or ())):
        for name in _USERS:
            if hasattr(owner, name):
                setattr(owner, name, hidden(getattr(owner, name)))
    for mark in loaded.workers or ():
        mark.replay = [(step, hidden(keys)) for step, keys in mark.replay]
    loaded.dataset = hidden(loaded.dataset)
    return loaded


def read_state(
    state: Any, *, sampling: str, size: int | None, workers: int, shuffle: bool, step: int
) -> LoaderState:
    """Check a state against the loader that is to go on from it. ``step``: samples of a batch, over all ranks."""
    loaded = _convert(state)
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
        if any((at - loaded.position) % step and at != size for at in loaded.early):
            raise StateError(
                "the state was saved with in_order=False, when later batches had come before earlier ones; "
                "to go on from it, batch size and number of ranks must stay"
            )
    if loaded.workers is not None and len(loaded.workers) != max(1, workers):
        raise StateError(
            f"the state is of a dataset in {len(loaded.workers)} workers and this loader has {workers}; "
            "such a dataset divides its data among its workers by itself, or keeps a state in each, so their "
            "number must stay"
        )
    return loaded
