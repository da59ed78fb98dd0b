"""Steps put together into stages: as few passes over the pixels as the steps allow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.core.layout import Field
from headrace.recipes.calls import Call
from headrace.recipes.image.geometry import Geometry
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.resample import PLAIN, Finish, Resample
from headrace.recipes.image.rows import Layout, Normalise, RandomErasing
from headrace.recipes.image.stages import Erase, Paint, Transpose
from headrace.recipes.image.ways import resampler
from headrace.recipes.op import UNKNOWN, Op, Size
from headrace.recipes.row_groups import RowGroup, RowValues
from headrace.recipes.values import as_image


class Stage(Protocol):
    """Some steps at work on all rows of an order."""

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """The rows' values after these steps, in ``into`` if it is given and the stage can."""
        ...


@dataclass(frozen=True)
class State:
    """What is known of the values between two steps.

    ``kind``: ``image`` (uint8, height x width x channels), ``rows`` (written as they will be delivered), or
    ``any`` (what user code returned).
    """

    kind: str
    size: Size = UNKNOWN
    finish: Finish = PLAIN
    order: str | None = None
    """NCHW or NHWC, once a ``layout`` step has said so."""
    known: Field | None = None
    """For kind ``any``: what the values are, if that is declared."""

    @property
    def field(self) -> Field | None:
        """How such values lie in a batch, as far as that is known before any is seen."""
        height, width, channels = self.size
        if self.kind == "any":
            return self.known
        if height is None or width is None or channels is None:
            return None
        return self.field_of((height, width, channels))

    def field_of(self, size: tuple[int, int, int]) -> Field:
        """How images of a size lie in a batch."""
        last = not self.finish.planar and self.order != "NHWC"
        return Field(self.finish.shape(*size), self.finish.dtype, channels_last=last)

    def presented(self, row: NDArray[Any]) -> NDArray[Any]:
        """A row as it is shown: channels first, unless a layout step says otherwise."""
        return row if self.finish.planar or self.order == "NHWC" else row.transpose(2, 0, 1)


class UserCode:
    """Callables, row by row, each seeded by (seed, epoch, sample)."""

    def __init__(self, calls: list[tuple[int, Call]], before: State) -> None:
        self._calls = calls
        self._present = before.presented if before.order is not None else None

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """Whatever the callables return."""
        values = list(held.values)
        work = group.work
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        for row, word in enumerate(group.words.tolist()):
            if group.failed(row):
                values[row] = None
                continue
            try:
                value = values[row] if self._present is None else self._present(values[row])
                if isinstance(value, np.ndarray) and not value.flags.writeable:
                    value = value.copy()  # the cache's own; user code may write to what it gets
                for position, call in self._calls:
                    call.seed(random.key(work.seed, work.epoch, position, word))
                    value = call(value)
                values[row] = value
            except Exception as error:
                group.fault(row, error)
                values[row] = None
        work.count_user(time.perf_counter() - begun, time.thread_time() - begun_cpu)
        return RowValues(values)


class ToImages:
    """What user code returned, as images for the steps that follow."""

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """Arrays of uint8."""
        values = list(held.values)
        for row, value in enumerate(values):
            if group.failed(row):
                continue
            try:
                values[row] = as_image(value)
            except Exception as error:
                group.fault(row, error)
        return RowValues(values)


class Chain:
    """Stages in their order, and what comes out of the last."""

    def __init__(self, stages: list[Stage], state: State, writer: int | None) -> None:
        self.stages = stages
        self.state = state
        self._writer = writer

    @property
    def reads_jpeg(self) -> bool:
        """Whether the first stage takes JPEG bytes as they are."""
        return bool(self.stages) and isinstance(self.stages[0], Resample)

    @property
    def user_code(self) -> bool:
        """Whether any stage runs user code."""
        return any(isinstance(stage, UserCode) for stage in self.stages)

    @property
    def reads_only(self) -> bool:
        """Whether the first stage leaves its input as it is, so that this may be the cache's own memory."""
        return bool(self.stages) and not isinstance(self.stages[0], UserCode)

    @property
    def writes(self) -> bool:
        """Whether rows end up in the array that ``run`` is given."""
        return self._writer is not None

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """All stages; ``into`` goes to the last that writes rows."""
        for at, stage in enumerate(self.stages):
            held = stage.run(held, group, into if at == self._writer else None)
        return held


class Builder:
    """Turns steps into a chain. ``decode`` and ``dct_scaling`` are for stages that read JPEG bytes."""

    def __init__(self, state: State, *, decode: Decode | None, dct_scaling: bool) -> None:
        self._state = state
        self._options: dict[str, Any] = {"dct_scaling": dct_scaling}
        if decode is not None:
            self._options |= {"max_pixels": decode.max_pixels, "as_stored": not decode.upright}
        self._stages: list[Stage] = []
        self._geometry: list[tuple[int, Geometry]] = []
        self._paint: list[tuple[int, Pixels]] = []
        self._calls: list[tuple[int, Call]] = []
        self._finish: Finish | None = None

    def build(self, steps: Sequence[tuple[int, Op]], *, last: bool) -> Chain:
        """The chain of ``steps``; ``last``: nothing follows, so that images have to be written as rows."""
        for position, step in steps:
            self._add(position, step)
        self._close_calls()
        if self._state.kind == "image" and last and self._finish is None:
            self._finish = PLAIN
        self._close(keep=True)
        writers = [at for at, stage in enumerate(self._stages) if isinstance(stage, Resample | Transpose)]
        after = self._stages[writers[-1] + 1 :] if writers else []
        writes = last and writers and all(isinstance(stage, Erase) for stage in after)
        return Chain(self._stages, self._state, writers[-1] if writes else None)

    def _add(self, position: int, step: Op) -> None:
        if isinstance(step, Call):
            self._close(keep=True)
            self._calls.append((position, step))
            return
        self._close_calls()
        if self._state.kind == "any":
            self._stages.append(ToImages())
            known = self._state.known
            self._state = State("image", Size(*known.shape) if known and len(known.shape) == 3 else UNKNOWN)
        if isinstance(step, Geometry):
            self._add_geometry(position, step)
        elif isinstance(step, Pixels):
            self._close()
            self._paint.append((position, step))
            self._state = replace(self._state, size=step.shape(self._state.size))
        elif isinstance(step, Normalise):
            self._close_paint()
            self._finish = replace(self._finish or PLAIN, normalise=step)
        elif isinstance(step, Layout):
            self._add_layout(step)
        elif isinstance(step, RandomErasing):
            self._close(keep=True)
            # Rows that no stage before has written belong to the cache.
            owned = any(isinstance(stage, Resample | Transpose) for stage in self._stages)
            owned = owned and self._state.kind == "rows"
            self._stages.append(Erase(position, step, self._state.finish, owned=owned))

    def _add_geometry(self, position: int, step: Geometry) -> None:
        self._close_paint()
        resampled = any(other.resamples for _, other in self._geometry)
        padded = any(other.pads for _, other in self._geometry)
        if (step.resamples and (resampled or padded)) or (step.pads and padded):
            self._close()
        self._geometry.append((position, step))
        self._state = replace(self._state, size=step.shape(self._state.size))

    def _add_layout(self, step: Layout) -> None:
        if self._state.kind == "rows":
            if step.planar != self._state.finish.planar:
                self._stages.append(Transpose(step.planar))
                finish = replace(self._state.finish, planar=step.planar)
                self._state = replace(self._state, finish=finish)
        else:
            self._close_paint()
            self._finish = replace(self._finish or PLAIN, planar=step.planar)
        self._state = replace(self._state, order=step.order)

    def _close_paint(self) -> None:
        if self._paint:
            self._stages.append(Paint(self._paint))
            self._paint = []

    def _close_calls(self) -> None:
        if self._calls:
            self._stages.append(UserCode(self._calls, self._state))
            self._calls = []
            self._state = State("any")

    def _close(self, *, keep: bool = False) -> None:
        """End the pass that is being put together. ``keep``: what comes out may outlive the order."""
        self._close_paint()
        if self._finish is None and not self._geometry:
            return
        finish = self._finish or PLAIN
        stage = resampler(self._geometry, self._state.size, finish, fresh=keep, **self._options)
        self._stages.append(stage)
        if self._finish is not None:
            self._state = replace(self._state, kind="rows", finish=finish)
        self._geometry, self._finish = [], None
