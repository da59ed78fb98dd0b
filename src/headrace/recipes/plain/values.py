"""Values of any type as plain data: what a target or an argument may be, with its exact type.

What JSON has no word for is a dict of one of the kinds below; a dict itself is written as pairs. Types count exactly,
as they do in fingerprints: what derives from a known one is refused, and so is what has no state that can be written.
"""

from __future__ import annotations

import base64
import binascii
import math
import pathlib
import re
import reprlib
import struct
from typing import Any

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.fingerprint import mapped

_DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
_PATH = type(pathlib.Path())
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    try:
        return _SHORT.repr(value)
    except Exception:  # (a number of thousands of digits, among others)
        return f"a {type(value).__name__}"


def write_value(value: Any, where: str) -> Any:
    """A value as plain data. ``OptionError`` for one of another type."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return write_float(value)
    if kind is list:
        return [write_value(item, where) for item in value]
    if kind is tuple:
        return {"tuple": [write_value(item, where) for item in value]}
    if kind is dict:
        return {"dict": [[write_value(part, where) for part in pair] for pair in value.items()]}
    if kind is bytes:
        return {"bytes": _text(value)}
    if kind is _PATH:
        return {"path": [str(part) for part in value.__reduce__()[1]]}
    if kind is np.ndarray:
        return write_array(value, where)
    if isinstance(value, np.generic) and _DTYPE.fullmatch(value.dtype.str):
        return {"number": _text(value.tobytes()), "dtype": value.dtype.str}
    raise OptionError(
        f"{where}: {shown(value)} is of type {kind.__module__}.{kind.__qualname__}, which plain data cannot hold; "
        "use numbers, strings, lists, tuples, dicts or numpy arrays"
    )


def write_float(value: float) -> Any:
    """A float; those that JSON cannot name by their bits."""
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def write_array(value: np.ndarray[Any, Any], where: str) -> dict[str, Any]:
    """An array by its bytes."""
    if not _DTYPE.fullmatch(value.dtype.str):
        raise OptionError(f"{where}: an array of {value.dtype} is not plain data; use one of numbers")
    if mapped(value) is not None:
        raise OptionError(
            f"{where}: the array is mapped from a file, by which it counts, and plain data cannot hold it; read it "
            "as a whole, with np.array(...)"
        )
    data = np.ascontiguousarray(value).tobytes()
    return {"array": _text(data), "dtype": value.dtype.str, "shape": list(value.shape)}


def read_value(data: Any, where: str) -> Any:
    """What ``write_value`` was given. ``OptionError`` for anything that it does not write."""
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return [read_value(item, where) for item in data]
    if type(data) is dict:
        match data:
            case {"tuple": list(items)} if len(data) == 1:
                return tuple(read_value(item, where) for item in items)
            case {"dict": list(pairs)} if len(data) == 1:
                return _read_pairs(pairs, where)
            case {"float": str(text)} if len(data) == 1:
                return read_float(text, where)
            case {"bytes": str(text)} if len(data) == 1:
                return _read_bytes(text, where)
            case {"path": [*parts]} if len(data) == 1 and all(type(part) is str for part in parts):
                return _PATH(*parts)
            case {"number": str(text), "dtype": dtype} if len(data) == 2:
                return _read_numbers(text, dtype, [], where)[()]
            case {"array": _}:
                return read_array(data, where)
    raise OptionError(f"{where}: {shown(data)} is no value that headrace writes; the data is damaged")


def read_float(text: Any, where: str) -> float:
    """A float that was written by its bits."""
    if type(text) is str and re.fullmatch("[0-9a-f]{16}", text):
        value: float = struct.unpack(">d", bytes.fromhex(text))[0]
        return value
    raise OptionError(f"{where}: {shown(text)} are no bits of a float; the data is damaged")


def read_array(data: Any, where: str) -> np.ndarray[Any, Any]:
    """An array that was written by its bytes, in memory of its own."""
    match data:
        case {"array": str(text), "dtype": dtype, "shape": list(shape)} if len(data) == 3:
            return _read_numbers(text, dtype, shape, where)
    raise OptionError(f"{where}: {shown(data)} is no array that headrace writes; the data is damaged")


def _read_pairs(pairs: list[Any], where: str) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for pair in pairs:
        if type(pair) is not list or len(pair) != 2:
            raise OptionError(f"{where}: {shown(pair)} is no key and value of a dict; the data is damaged")
        key, value = (read_value(part, where) for part in pair)
        try:
            out[key] = value
        except TypeError:
            raise OptionError(f"{where}: {shown(key)} cannot be the key of a dict") from None
    return out


def _read_numbers(text: str, dtype: Any, shape: list[Any], where: str) -> np.ndarray[Any, Any]:
    try:
        if type(dtype) is not str or not _DTYPE.fullmatch(dtype):
            raise ValueError(f"no dtype: {shown(dtype)}")
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"no shape: {shown(shape)}")
        flat = np.frombuffer(_read_bytes(text, where), np.dtype(dtype))
        if flat.size != math.prod(shape):
            raise ValueError(f"{flat.size} numbers for the shape {shown(shape)}")
        return flat.reshape(shape).copy()
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{where}: an array that is damaged ({error})") from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _read_bytes(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise OptionError(f"{where}: {shown(text)} is no base64 ({error}); the data is damaged") from None
