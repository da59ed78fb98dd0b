"""Strict deep equality of batches: container types, key order, dtype, shape, layout and every value."""

import dataclasses
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data


def difference(left: Any, right: Any, where: str = "batch") -> str | None:
    """Say how ``left`` and ``right`` first differ, or return None when they are the same."""
    if type(left) is not type(right):
        return f"{where}: {type(left).__name__} is not {type(right).__name__}"
    if isinstance(left, torch.Tensor):
        return _tensor_difference(left, right, where)
    if isinstance(left, np.ndarray):
        return _array_difference(left, right, where)
    if isinstance(left, Mapping):
        if list(left) != list(right):
            return f"{where}: keys {list(left)} are not {list(right)}"
        found = _first(difference(left[key], right[key], f"{where}[{key!r}]") for key in left)
        return found or _attribute_difference(left, right, where)
    if isinstance(left, Sequence) and not isinstance(left, str | bytes | bytearray | range):
        if len(left) != len(right):
            return f"{where}: length {len(left)} is not {len(right)}"
        found = _first(
            difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(left, right, strict=True))
        )
        return found or _attribute_difference(left, right, where)
    if isinstance(left, float) and math.isnan(left) and math.isnan(right):
        return None
    if dataclasses.is_dataclass(left) or type(left).__eq__ is object.__eq__:
        return _attribute_difference(left, right, where)
    return None if left == right else f"{where}: {left!r} is not {right!r}"


def _first(found: Iterable[str | None]) -> str | None:
    return next((text for text in found if text is not None), None)


def _attribute_difference(left: Any, right: Any, where: str) -> str | None:
    """Compare what a subclass of a container, or a plain object, carries besides its items."""
    if not hasattr(left, "__dict__"):
        return None
    return difference(vars(left), vars(right), f"vars({where})")


def _tensor_difference(left: torch.Tensor, right: torch.Tensor, where: str) -> str | None:
    for name in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(left, name) != getattr(right, name):
            return f"{where}.{name}: {getattr(left, name)} is not {getattr(right, name)}"
    if left.layout != torch.strided:
        left, right = left.to_dense(), right.to_dense()
    same = left == right
    if left.dtype.is_floating_point or left.dtype.is_complex:
        same |= left.isnan() & right.isnan()
    return None if bool(same.all()) else f"{where}: {left} is not {right}"


def _array_difference(left: np.ndarray, right: np.ndarray, where: str) -> str | None:
    for name in ("dtype", "shape"):
        if getattr(left, name) != getattr(right, name):
            return f"{where}.{name}: {getattr(left, name)} is not {getattr(right, name)}"
    return None if left.tolist() == right.tolist() else f"{where}: {left} is not {right}"


def assert_same(actual: Any, expected: Any) -> None:
    """Fail with the place and kind of the first difference."""
    found = difference(actual, expected)
    assert found is None, found


def reference(dataset: Any, **options: Any) -> list[Any]:
    """Return what torch's loader yields in the calling process, the plainest meaning of the options."""
    return list(torch.utils.data.DataLoader(dataset, **options))


def assert_matches_reference(
    loader_class: Any, dataset: Any, *, num_workers: int = 0, **options: Any
) -> None:
    """Compare a whole epoch, and both lengths, with the reference."""
    expected = reference(dataset, **options)
    loader = loader_class(dataset, num_workers=num_workers, **options)
    actual = list(loader)
    assert_same(actual, expected)
    assert len(loader) == len(torch.utils.data.DataLoader(dataset, **options))


def error_from(call: Callable[[], Any], kind: type[Exception] = Exception) -> Exception:
    """Return the error that ``call`` raises, without its traceback.

    The frames of a traceback keep the iterator of a loader alive in a reference cycle, and torch's
    iterator takes seconds to stop its workers when it is the garbage collector that ends it.
    """
    try:
        call()
    except kind as error:
        link: BaseException | None = error
        while link is not None:
            traceback.clear_frames(link.__traceback__)
            link.__traceback__ = None
            link = link.__context__
        return error
    pytest.fail(f"nothing raised {kind.__name__}")
