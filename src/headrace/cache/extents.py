"""How a cached sample lies in memory: a fixed header, dtype and shape, then raw bytes. Never a pickle."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.layout import ALIGN, aligned

_ARRAY, _TREE = 0x48524131, 0x48525431
_HEADER = struct.Struct("<II8s6Q")  # magic, number of dimensions, dtype, shape: exactly one cache line
assert _HEADER.size == ALIGN
_PREFIX = struct.Struct("<IQ")
_DIMENSIONS = 6


def array_size(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an extent that holds one array."""
    return ALIGN + aligned(math.prod(shape) * np.dtype(dtype).itemsize)


def open_array(buffer: memoryview, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Write an array's header and return the array itself, to be filled in place."""
    kind = np.dtype(dtype)
    padded = (*shape, *(0,) * (_DIMENSIONS - len(shape)))
    _HEADER.pack_into(buffer, 0, _ARRAY, len(shape), kind.str.encode(), *padded)
    return np.frombuffer(buffer, kind, math.prod(shape), ALIGN).reshape(shape)


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {"a": len(arrays) - 1}
    if isinstance(value, np.generic):
        return {"v": value.item()}
    if value is None or isinstance(value, bool | int | float | str):
        return {"v": value}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"d": {key: _plain(item, arrays) for key, item in value.items()}}
    if type(value) in (list, tuple):
        return {"l" if isinstance(value, list) else "t": [_plain(item, arrays) for item in value]}
    raise TypeError(f"{type(value).__name__} cannot be cached")


def dump(value: Any) -> list[bytes | memoryview] | None:
    """The pieces of an extent that holds a nested value of arrays and plain values; None if it cannot."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.ndim <= _DIMENSIONS:
        value = np.ascontiguousarray(value)
        head = bytearray(ALIGN)
        padded = (*value.shape, *(0,) * (_DIMENSIONS - value.ndim))
        _HEADER.pack_into(head, 0, _ARRAY, value.ndim, value.dtype.str.encode(), *padded)
        return [bytes(head), memoryview(value.reshape(-1).view(np.uint8))]
    arrays: list[NDArray[Any]] = []
    try:
        tree = _plain(value, arrays)
    except TypeError:
        return None
    if any(array.dtype.kind not in "biufc" for array in arrays):
        return None
    described = msgspec.msgpack.encode([tree, [[array.dtype.str, array.shape] for array in arrays]])
    head = bytearray(aligned(_PREFIX.size + len(described)))
    _PREFIX.pack_into(head, 0, _TREE, len(described))
    head[_PREFIX.size : _PREFIX.size + len(described)] = described
    pieces: list[bytes | memoryview] = [bytes(head)]
    for array in arrays:
        pieces.append(memoryview(array.reshape(-1).view(np.uint8)))
        pieces.append(b"\0" * (aligned(array.nbytes) - array.nbytes))
    return pieces


def load(buffer: memoryview) -> Any:
    """The value in an extent, without a copy and read-only: a cached sample is shared. Bounds are checked."""
    if len(buffer) < _PREFIX.size:
        raise ValueError("extent is too short")
    magic = int.from_bytes(buffer[:4], "little")
    if magic == _ARRAY:
        _, ndim, kind, *shape = _HEADER.unpack_from(buffer)
        return _view(buffer, kind.rstrip(b"\0").decode(), shape[: min(ndim, _DIMENSIONS)], ALIGN)
    if magic != _TREE:
        raise ValueError("not an extent")
    _, length = _PREFIX.unpack_from(buffer)
    if _PREFIX.size + length > len(buffer):
        raise ValueError("extent is cut off")
    tree, described = msgspec.msgpack.decode(buffer[_PREFIX.size : _PREFIX.size + length])
    arrays, at = [], aligned(_PREFIX.size + length)
    for kind, shape in described:
        array = _view(buffer, kind, shape, at)
        arrays.append(array)
        at += aligned(array.nbytes)
    return _nested(tree, arrays)


def _view(buffer: memoryview, kind: str, shape: Sequence[int], at: int) -> NDArray[Any]:
    dtype = np.dtype(kind)
    count = math.prod(shape)
    if dtype.hasobject or at + count * dtype.itemsize > len(buffer):
        raise ValueError("extent is cut off")
    array = np.frombuffer(buffer, dtype, count, at).reshape(shape)
    array.flags.writeable = False
    return array


def _nested(tree: dict[str, Any], arrays: list[NDArray[Any]]) -> Any:
    ((kind, value),) = tree.items()
    if kind == "a":
        return arrays[value]
    if kind == "d":
        return {key: _nested(item, arrays) for key, item in value.items()}
    if kind == "l":
        return [_nested(item, arrays) for item in value]
    if kind == "t":
        return tuple(_nested(item, arrays) for item in value)
    return value
