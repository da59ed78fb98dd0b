"""Collating samples straight into a slot: torch's own rules, other memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from headrace.loader.codec import SlotMemory

_SLACK = 4096
"""Bytes for what lies between the fields."""
_LARGE = 16 << 10
"""Bytes of an array that is laid into the slot as its sample comes. (Smaller ones are stacked at the end.)"""
_WAIT = 16
"""One of so many samples, the first ones, are laid at the end: meanwhile the loop lets go of an earlier batch, whose
memory can be used again."""
_NUMBERS = "?bBhHiIlLqQefdFD"
"""Types of arrays that become tensors."""


class _Field:
    """Arrays of one place in the samples, row by row in the slot."""

    def __init__(self, rows: torch.Tensor, *, arrays: bool) -> None:
        """``arrays``: samples have an array there, and no tensor."""
        self.rows = rows
        self.views: list[Any] = list(rows.numpy() if arrays else rows.unbind(0))
        self._arrays = arrays
        like = self.views[0]
        self._kind, self._dtype, self._shape = type(like), like.dtype, like.shape

    def lay(self, value: Any, row: int) -> Any:
        """The value's copy in its row; the value itself if it is not like the first one."""
        if type(value) is not self._kind or value.dtype != self._dtype or value.shape != self._shape:
            return value
        view = self.views[row]
        if self._arrays:
            if not _is_array(value):
                return value
            view[...] = value
        elif not _is_plain(value):
            return value
        else:
            view.copy_(value)
        return view

    def holds(self, batch: Sequence[Any], first: int) -> bool:
        """Whether tensors are its rows, each the one of its number, from ``first`` on."""
        start, step = self.rows.data_ptr(), self.rows.stride(0) * self.rows.element_size()
        return all(
            batch[at] is self.views[at]
            or (_is_plain(batch[at]) and batch[at].data_ptr() == start + at * step)
            for at in range(first, len(batch))
        )


@dataclass(frozen=True)
class _Inside:
    """Fields inside of a tuple, list or dict, by index or key."""

    kind: type
    parts: list[tuple[Any, _Field | _Inside]]

    def lay(self, value: Any, row: int) -> Any:
        """The same with its arrays laid; itself if it is not like the first one."""
        kind: Any = type(value)
        if kind is not self.kind:
            return value
        out = value.copy() if kind is dict else list(value)
        try:
            for at, part in self.parts:
                out[at] = part.lay(out[at], row)
        except LookupError:
            return value
        return tuple(out) if kind is tuple else out


class Gathering:
    """The samples of one batch as they come, and then the batch, as ``default_collate`` makes it.

    Large arrays are copied into the slot one by one, so that samples do not pile up beside their batch. What stands
    in a sample then is its row in the slot, so that collating finds it where it has to be; a sample unlike the others
    stays as it is, and torch's rules say what becomes of the batch.
    """

    def __init__(self, memory: SlotMemory, count: int) -> None:
        """``count``: samples, at most."""
        self._memory, self._count = memory, count
        self._taken, self._first = 0, count // _WAIT
        self._fields: _Field | _Inside | None = None
        self._laid: dict[int, _Field] = {}
        """By the address of the first row that was laid."""

    def take(self, sample: Any) -> Any:
        """The sample, with its large arrays in the slot."""
        row = self._taken
        self._taken += 1
        if row == self._first:
            self._memory.expected = self._count * _bytes_of(sample) + _SLACK
            self._fields = self._find(sample) if _ours() else None
        return sample if self._fields is None else self._fields.lay(sample, row)

    def collate(self, samples: list[Any]) -> Any:
        """The batch, with dense tensors in the slot."""
        if not _ours():
            return collate(samples, collate_fn_map=default_collate_fn_map)
        if self._taken <= self._first:  # or they came all at once
            self._memory.expected = len(samples) * _bytes_of(samples[0]) + _SLACK
        return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: self._tensors})

    def _find(self, value: Any) -> _Field | _Inside | None:
        """Where large arrays are in the first sample."""
        kind: Any = type(value)
        if kind is torch.Tensor or kind is np.ndarray:
            return self._field(value)
        if kind is tuple or kind is list or kind is dict:
            places = value.items() if kind is dict else enumerate(value)
            parts = [(at, found) for at, one in places if (found := self._find(one)) is not None]
            return _Inside(kind, parts) if parts else None
        return None

    def _field(self, value: Any) -> _Field | None:
        arrays = type(value) is np.ndarray
        if not (_is_array(value) if arrays else _is_plain(value)) or value.nbytes < _LARGE:
            return None
        dtype = torch.from_numpy(np.empty(0, value.dtype)).dtype if arrays else value.dtype
        rows = self._memory.empty((self._count, *value.shape), dtype)
        if rows is None:
            return None
        field = self._laid[rows[self._first].data_ptr()] = _Field(rows, arrays=arrays)
        return field

    def _tensors(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        out = self._stand(batch)
        if out is not None:
            return out
        if _are_alike(batch):
            out = self._memory.empty((len(batch), *batch[0].shape), batch[0].dtype)
            if out is not None:
                return torch.stack(list(batch), 0, out=out)
        return _stack(batch, collate_fn_map=collate_fn_map)

    def _stand(self, batch: Any) -> torch.Tensor | None:
        """These tensors, if they stand in the slot already, but for those that had to wait."""
        if not self._laid or len(batch) <= self._first or not _is_plain(batch[self._first]):
            return None
        field = self._laid.get(batch[self._first].data_ptr())
        if field is None or not field.holds(batch, self._first):
            return None
        if self._first:
            waited = batch[: self._first]
            if not _are_alike((*waited, field.rows[self._first])):
                return None
            torch.stack(list(waited), 0, out=field.rows[: self._first])
        return field.rows[: len(batch)]


def _ours() -> bool:
    """Whether nobody has other rules for tensors."""
    return default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn


def _is_plain(value: Any) -> bool:
    """Whether a tensor's elements are bytes in this machine's memory, and nothing else."""
    return (
        type(value) is torch.Tensor
        and value.is_cpu
        and value.layout is torch.strided
        and not value.requires_grad
        and not value.is_nested
        and not value.is_quantized
    )


def _are_alike(batch: Sequence[Any]) -> bool:
    """Whether all are plain tensors of one type and shape."""
    dtype, shape = batch[0].dtype, batch[0].shape if not batch[0].is_nested else None
    return all(_is_plain(one) and one.dtype == dtype and one.shape == shape for one in batch)


def _is_array(value: Any) -> bool:
    """Whether an array becomes a tensor without a copy. What does not is left to torch to refuse."""
    return (
        type(value) is np.ndarray
        and value.dtype.char in _NUMBERS
        and value.dtype.isnative
        and value.flags.c_contiguous
    )


def _bytes_of(sample: Any) -> int:
    """What collating a sample adds to a batch, at most: all samples of a batch are alike."""
    if type(sample) is torch.Tensor:
        return sample.nbytes if sample.layout == torch.strided and not sample.is_nested else 0
    if isinstance(sample, np.ndarray):
        return sample.nbytes
    if isinstance(sample, int | float):
        return 8
    if isinstance(sample, Mapping):
        return sum(_bytes_of(value) for value in sample.values())
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        return sum(_bytes_of(value) for value in sample)
    return 0


def _stack(batch: Any, *, collate_fn_map: Any) -> Any:
    first = batch[0]
    if type(first) is torch.Tensor and first.layout == torch.strided and not first.is_nested:
        return torch.stack(list(batch), 0)
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
