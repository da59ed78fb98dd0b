"""Collated batches on their way from a worker to its own job.

Tensors and arrays lie in the slot as raw bytes; only what connects them is pickled. The job's own workers made
it, so this is no wire between strangers.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch

from headrace.cache.arena import Arena
from headrace.coordinate.messages import OrderDone
from headrace.core.layout import ALIGN, aligned
from headrace.core.sparse import PAGE
from headrace.engine.board import Board, Claim
from headrace.engine.link import LARGEST
from headrace.loader.wrap import tensor_over

_SMALL = 64
"""Arrays of fewer bytes travel with the pickle."""
_GROWTH = 1.25
"""A range that was too small grows by more than it lacked, so that batches of varying size soon fit."""


class SlotMemory:
    """The memory of one slot, for a worker to collate into. It is found as soon as it is needed, and not before."""

    def __init__(self, arena: Arena, board: Board, claim: Claim | None) -> None:
        self._arena, self._board, self._claim = arena, board, claim
        self.offset = self.nbytes = 0
        self._buffer = memoryview(b"")
        self._base = self._at = 0
        self.expected = 0
        """Bytes that the batch will take, as far as known."""

    def _find(self, nbytes: int) -> None:
        """Take a range of at least so many bytes."""
        found = self._board.take(nbytes, self._claim)
        self.offset, self.nbytes = found or (self._board.extend(nbytes, self._claim), nbytes)
        self._arena.reserve(self.offset, nbytes)
        self._buffer = memoryview(self._arena.map(self.offset, self.nbytes))
        self._base = _address(self._buffer)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """An uninitialised tensor in the slot, or None if it does not fit."""
        count = 1
        for length in shape:
            count *= length
        nbytes = count * dtype.itemsize
        if nbytes and not self.nbytes:
            self._find(aligned(max(nbytes, self.expected), PAGE))
        if nbytes == 0 or self._at + nbytes > self.nbytes:
            return None
        tensor = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=self._at).view(shape)
        self._at += aligned(nbytes)
        return tensor

    def place(self, address: int, nbytes: int) -> int | None:
        """Where in the slot this memory lies, if it does."""
        if self._base <= address and address + nbytes <= self._base + self.nbytes:
            return address - self._base
        return None

    def store(self, pieces: list[tuple[int, memoryview]], end: int) -> None:
        """Write pieces at their places; a range that is too small is exchanged for a larger one."""
        if end > self.nbytes:
            offset, nbytes, buffer, used = self.offset, self.nbytes, self._buffer, self._at
            self._find(aligned(int(end * (_GROWTH if nbytes else 1)), PAGE))
            if nbytes:
                self._buffer[:used] = buffer[:used]
                self._board.put_down(offset, nbytes)
        for at, data in pieces:
            self._buffer[at : at + len(data)] = data

    def report(self, done: OrderDone) -> None:
        """Say where the batch lies, and whose the range is even if there is none."""
        if self.nbytes:
            done.slot_offset, done.slot_bytes = self.offset, self.nbytes

    @property
    def used(self) -> int:
        """Bytes that ``empty`` gave out."""
        return self._at


def _bytes(array: Any) -> memoryview:
    return memoryview(array)


def _address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, memory: SlotMemory) -> None:
        super().__init__(file, protocol=5)
        self._memory = memory
        self.pieces: list[tuple[int, memoryview]] = []
        self.end = memory.used
        self._seen: dict[int, tuple[Any, Any]] = {}

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind is not torch.Tensor and kind is not np.ndarray:
            return None
        known = self._seen.get(id(value))
        if known is None:
            token = self._tensor(value) if kind is torch.Tensor else self._array(value)
            if token is None:
                return None
            # The value is kept, so that its id stays its own while this batch is written.
            self._seen[id(value)] = known = (value, token)
        return known[1]

    def _tensor(self, value: torch.Tensor) -> Any:
        plain = (
            value.device.type == "cpu"
            and value.layout == torch.strided
            and not value.requires_grad
            and not value.is_nested
            and not value.is_quantized
            and not value.is_conj()
            and not value.is_neg()
        )
        if not plain:
            return None
        stride = None
        flat = value
        if not value.is_contiguous():
            flat, stride = _dense(value)
        nbytes = flat.numel() * flat.element_size()
        at = self._memory.place(flat.data_ptr(), nbytes) if nbytes else 0
        if at is None:
            at = self._add(_bytes(flat.reshape(-1).view(torch.uint8).numpy()))
        return ("t", value.dtype, tuple(value.shape), stride, at)

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.hasobject or value.nbytes < _SMALL:
            return None
        value = np.ascontiguousarray(value)
        return ("n", value.dtype, value.shape, self._add(_bytes(value.reshape(-1).view(np.uint8))))

    def _add(self, data: memoryview) -> int:
        at = aligned(self.end, ALIGN)
        self.pieces.append((at, data))
        self.end = at + len(data)
        return at


def _dense(value: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """The elements of a tensor in memory order, and the strides to see them by (None: plainly contiguous).

    A permuted tensor (channels_last, a transpose) keeps its strides; any other becomes contiguous.
    """
    order = sorted(range(value.dim()), key=lambda d: (-value.stride()[d], d))
    permuted = value.permute(order)
    if permuted.is_contiguous():
        return permuted, tuple(value.stride())
    return value.contiguous(), None


def encode(batch: Any, memory: SlotMemory) -> bytes:
    """Write a batch's arrays into the slot and return what is needed to put it together again."""
    file = io.BytesIO()
    writer = _Writer(file, memory)
    writer.dump(batch)
    skeleton = file.getvalue()
    if len(skeleton) <= LARGEST // 2:
        memory.store(writer.pieces, writer.end)
        return b"\0" + skeleton
    # Too much for a message (long strings, many objects): it goes into the slot as well.
    at = aligned(writer.end)
    memory.store([*writer.pieces, (at, memoryview(skeleton))], at + len(skeleton))
    return b"\1" + pickle.dumps((at, len(skeleton)))


class _Reader(pickle.Unpickler):
    def __init__(self, file: Any, lease: Any) -> None:
        super().__init__(file)
        self._lease = lease
        self._seen: dict[Any, Any] = {}

    def persistent_load(self, token: Any) -> Any:
        value = self._seen.get(token)
        if value is None:
            value = self._seen[token] = self._build(token)
        return value

    def _build(self, token: Any) -> Any:
        kind, dtype, shape, *rest = token
        if kind == "n":
            count = int(np.prod(shape))
            return np.frombuffer(self._lease, dtype, count, rest[0]).reshape(shape)
        stride, at = rest
        count = 1
        for length in shape:
            count *= length
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = tensor_over(self._lease, dtype, count, at)
        return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def decode(data: bytes, lease: Any) -> Any:
    """The batch that ``encode`` wrote; its tensors lie in the lease and keep it."""
    if data[:1] == b"\0":
        return _Reader(io.BytesIO(memoryview(data)[1:]), lease).load()
    at, length = pickle.loads(memoryview(data)[1:])
    return _Reader(io.BytesIO(bytes(memoryview(lease)[at : at + length])), lease).load()
