"""How a cached sample lies in memory: a fixed header, dtype and shape, then raw bytes. Never a pickle."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.layout import ALIGN, aligned

_ARRAY, _TREE = 0x48524131, 0x48525431
_HEADER = struct.Struct("<II8s6Q")  # magic, number of dimensions, dtype, shape: exactly one cache line
assert _HEADER.size == ALIGN
_PREFIX = struct.Struct("<IQ")
_DIMENSIONS = 6
_KINDS = "biufc"
"""Of dtypes that are nothing but numbers."""
_Length = Annotated[int, msgspec.Meta(ge=0)]
_decode = msgspec.msgpack.Decoder(tuple[dict[str, Any], list[tuple[str, list[_Length]]]]).decode
_heads: dict[bytes, tuple[tuple[int, ...], np.dtype[Any]]] = {}
"""By header, the shape and dtype of arrays that were opened before: many samples have the same."""
_HEADS = 4096
"""Headers that are remembered."""
_DAMAGE = (
    *(ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError),
    *(struct.error, msgspec.MsgspecError),
)


def array_size(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an extent that holds one array."""
    return ALIGN + aligned(math.prod(shape) * np.dtype(dtype).itemsize)


def open_array(buffer: memoryview, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Write an array's header and return the array itself, to be filled in place."""
    kind = np.dtype(dtype)
    padded = (*shape, *(0,) * (_DIMENSIONS - len(shape)))
    _HEADER.pack_into(buffer, 0, _ARRAY, len(shape), kind.str.encode(), *padded)
    return np.frombuffer(buffer, kind, math.prod(shape), ALIGN).reshape(shape)


def _is_array(value: Any) -> bool:
    # A memory map is no different once copied; other subclasses (masked arrays) carry more than their bytes.
    return type(value) in (np.ndarray, np.memmap)


def _bytes(array: NDArray[Any]) -> Any:
    return array.reshape(-1).view(np.uint8)


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    # Exact types: what comes back from the cache must be what went in, not the type it derives from.
    if _is_array(value) or isinstance(value, np.generic):
        array = np.asarray(value, order="C")
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"{array.dtype} cannot be cached")
        arrays.append(array)
        return {"s" if isinstance(value, np.generic) else "a": len(arrays) - 1}
    if value is None or type(value) in (bool, int, float, str):
        return {"v": value}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"d": {key: _plain(item, arrays) for key, item in value.items()}}
    if type(value) in (list, tuple):
        return {"l" if isinstance(value, list) else "t": [_plain(item, arrays) for item in value]}
    raise TypeError(f"{type(value).__name__} cannot be cached")


def dump(value: Any) -> list[bytes | memoryview] | None:
    """The pieces of an extent that holds a nested value of arrays and plain values; None if it cannot."""
    if _is_array(value) and value.dtype.kind in _KINDS and value.ndim <= _DIMENSIONS:
        value = np.asarray(value, order="C")
        head = bytearray(ALIGN)
        padded = (*value.shape, *(0,) * (_DIMENSIONS - value.ndim))
        _HEADER.pack_into(head, 0, _ARRAY, value.ndim, value.dtype.str.encode(), *padded)
        return [bytes(head), memoryview(_bytes(value))]
    arrays: list[NDArray[Any]] = []
    try:
        tree = _plain(value, arrays)
        described = msgspec.msgpack.encode([tree, [[array.dtype.str, array.shape] for array in arrays]])
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError):
        return None
    head = bytearray(aligned(_PREFIX.size + len(described)))
    _PREFIX.pack_into(head, 0, _TREE, len(described))
    head[_PREFIX.size : _PREFIX.size + len(described)] = described
    pieces: list[bytes | memoryview] = [bytes(head)]
    for array in arrays:
        pieces.append(memoryview(_bytes(array)))
        pieces.append(b"\0" * (aligned(array.nbytes) - array.nbytes))
    return pieces


def load(buffer: memoryview) -> Any:
    """The value in an extent, without a copy and read-only: a cached sample is shared. Bounds are checked.

    Whatever is wrong with the bytes, the error is a ``ValueError``.
    """
    try:
        return _load(buffer.toreadonly())
    except _DAMAGE as error:
        raise ValueError(f"extent is damaged: {error}") from error


def _load(buffer: memoryview) -> Any:
    head = bytes(buffer[:ALIGN])
    known = _heads.get(head)
    if known is not None:
        return np.ndarray(known[0], known[1], buffer, ALIGN)  # (checks bounds)
    magic = int.from_bytes(head[:4], "little")
    if magic == _ARRAY:
        _, ndim, kind, *shape = _HEADER.unpack(head)
        if ndim > _DIMENSIONS:
            raise ValueError(f"{ndim} dimensions")
        array = _view(buffer, kind.rstrip(b"\0").decode(), shape[:ndim], ALIGN)
        if len(_heads) >= _HEADS:
            _heads.clear()
        _heads[head] = array.shape, array.dtype
        return array
    if magic != _TREE:
        raise ValueError("it has no header")
    _, length = _PREFIX.unpack_from(buffer)
    if _PREFIX.size + length > len(buffer):
        raise ValueError("it is cut off")
    tree, described = _decode(buffer[_PREFIX.size : _PREFIX.size + length])
    arrays, at = [], aligned(_PREFIX.size + length)
    for kind, shape in described:
        array = _view(buffer, kind, shape, at)
        arrays.append(array)
        at += aligned(array.nbytes)
    return _nested(tree, arrays)


def _view(buffer: memoryview, kind: str, shape: Sequence[int], at: int) -> NDArray[Any]:
    dtype = np.dtype(kind)
    count = math.prod(shape)
    if dtype.kind not in _KINDS:
        raise ValueError(f"{kind} of shape {shape}")
    if at + count * dtype.itemsize > len(buffer):
        raise ValueError("it is cut off")
    array: NDArray[Any] = np.frombuffer(buffer, dtype, count, at).reshape(shape)
    return array


def _nested(tree: dict[str, Any], arrays: list[NDArray[Any]]) -> Any:
    ((kind, value),) = tree.items()
    if kind in ("a", "s"):
        if value < 0:
            raise ValueError(f"array {value}")
        array = arrays[value]
        return array if kind == "a" else array[()]
    if kind == "d":
        return {key: _nested(item, arrays) for key, item in value.items()}
    if kind == "l":
        return [_nested(item, arrays) for item in value]
    if kind == "t":
        return tuple(_nested(item, arrays) for item in value)
    return value
