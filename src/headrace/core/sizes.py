"""Byte sizes as people write them."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral

from headrace.core.errors import OptionError

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[_letter] = 1024**_power

_PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z%]*)\s*\Z")


def parse_size(value: int | float | str | None, *, total: int, option: str = "cache", least: int = 0) -> int:
    """Bytes meant by ``value``: a number of bytes, ``"8GiB"``, ``"25%"`` or a share of ``total`` (0 < x <= 1.0).

    ``least``: fewer bytes are refused, except none at all.

    >>> parse_size("8GiB", total=0)
    8589934592
    >>> parse_size(0.25, total=1000)
    250
    >>> parse_size("25%", total=1000)
    250
    """
    if value is None:
        return 0
    number, unit = _read(value)
    if number is None:
        raise OptionError(
            f"{option}={value!r} is not a size; write bytes, '8GiB', '25%' or a share such as 0.25"
        )
    if number < 0:
        raise OptionError(f"{option}={value!r} is negative")
    if unit == "%":
        return int(number / 100 * total)
    if unit == "" and (0 < number < 1 or (number == 1 and _is_share(value))):
        return int(number * total)
    if unit == "" and number.denominator != 1:
        raise OptionError(
            f"{option}={value!r} is neither a number of bytes nor a share of the memory; write '{value}GiB' for "
            "gibibytes, or a share of at most 1.0"
        )
    size = int(number * _UNITS[unit])
    if 0 < size < least:
        meant = f", '{value}GiB' for gibibytes" if unit == "" else ""
        raise OptionError(
            f"{option}={value!r} is {size} {'byte' if size == 1 else 'bytes'}, and no sample has room in less than "
            f"{least}; write a size such as '8GiB'{meant}, or a share of the memory such as 0.25"
        )
    return size


def _is_share(value: object) -> bool:
    """Whether a one is a share, as 1.0 is, or a byte."""
    return isinstance(value, float) or (isinstance(value, str) and "." in value)


def _read(value: object) -> tuple[Fraction | None, str]:
    """The number and the unit in a value; None where it is none. Exact: a float has only 53 bits."""
    if isinstance(value, bool):
        return None, ""
    if isinstance(value, Integral):
        return Fraction(int(value)), ""
    if isinstance(value, float):
        return (Fraction(value) if math.isfinite(value) else None), ""
    match = _PATTERN.match(value) if isinstance(value, str) else None
    unit = match.group(2).lower() if match else ""
    if not match or (unit not in _UNITS and unit != "%"):
        return None, ""
    return Fraction(match.group(1)), unit


def show_size(size: float) -> str:
    """``size`` for people: ``1536`` becomes ``"1.5 KiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
