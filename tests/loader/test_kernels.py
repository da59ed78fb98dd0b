"""Kernels of GPUs: they do what torch's own operations do in their place. Without a GPU, Triton's interpreter runs
them: ``make test-slow`` sees to that."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader import cutting_kernel, finishing_kernel, painting_kernel
from headrace.loader.cuts import Pictures, cuts_of, plain_cut
from headrace.loader.finishing import Drawn, Finisher, divide, plain_finish
from headrace.loader.painting import plain_paint, strokes_of
from headrace.loader.triton_here import triton
from headrace.recipes.image.rowspec import JOB, RowSpec
from tests.loader.test_finishing import TAILS

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and triton is not None
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and not _INTERPRETED,
    reason="no CUDA device (make test-slow runs it without)",
)
DEVICE = torch.device("cpu" if _INTERPRETED else "cuda")


@pytest.mark.parametrize("tail", TAILS)
def test_finishing(tail: str) -> None:
    rows, height, width = 5, 12, 17
    made = hr.Recipe(hr.synthetic.source(rows), decode=hr.image.decode(), augment=TAILS[tail])
    _, steps = divide(made)
    assert steps is not None
    finisher = Finisher(steps, DEVICE)
    dice = np.random.default_rng(0)
    pixels = torch.from_numpy(dice.integers(0, 256, (rows, height, width, 3), np.uint8)).to(DEVICE)
    boxes = None
    if steps.erasing:
        words = np.arange(rows)
        boxes = finisher.boxes(height, width, 3, Drawn(7, 0, words, steps.columns.draw(7, 0, words)))
    scale, bias = (torch.from_numpy(one).to(DEVICE) for one in steps.normalise.factors(3))
    dtype = {"float32": torch.float32, "float16": torch.float16}.get(steps.normalise.dtype, torch.bfloat16)
    for planar in (False, True):
        given: Any = (pixels, scale, bias, dtype, boxes, planar)
        ours, theirs = finishing_kernel.finish(*given), plain_finish(*given)
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        near = {torch.bfloat16: 1 / 128, torch.float16: 1 / 1024}.get(dtype, 1e-5)
        assert torch.allclose(ours.double(), theirs.double(), rtol=near, atol=near / 8)


@pytest.mark.parametrize("smooth", [False, True])
def test_cutting(smooth: bool) -> None:
    dice = np.random.default_rng(1)
    spec, jobs, images = RowSpec(48, 40, antialias=smooth), np.zeros(16, JOB), []
    for number, job in enumerate(jobs):
        height, width = dice.integers(40, 100 if smooth else 500, 2)
        planes = torch.from_numpy(dice.integers(0, 256, (3, height, width), np.uint8)).to(DEVICE)
        lies = planes.permute(1, 2, 0)
        images.append(lies.contiguous() if number % 2 else lies)
        job["width"], job["height"], job["clamp"] = width, height, (0, 0, width, height)
        job["box"] = 0.3, 0.7, width - 2.1, height - 3.3
        job["hflip"], job["vflip"] = dice.integers(0, 2, 2)
    cuts = cuts_of(jobs, spec)
    assert set(cuts.scales.tolist()) >= ({1} if smooth else {1, 2, 4})
    ours, theirs = (torch.zeros(20, *spec.shape, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    rows = dice.permutation(20)[:16].tolist()
    cutting_kernel.cut(Pictures.of(images), cuts, ours, rows)
    plain_cut(Pictures.of(images), cuts, theirs, rows)
    # (a GPU multiplies and adds in one, so that a place may be rounded to the next number)
    apart = (ours.int() - theirs.int()).abs()
    assert int(apart.max()) <= (1 if smooth or not _INTERPRETED else 0) and float(apart.float().mean()) < 0.01
    assert not ours[[row for row in range(20) if row not in rows]].any()


@pytest.mark.parametrize(
    "step",
    [
        hr.image.color_jitter(0.5),
        hr.image.color_jitter(contrast=0.7),
        hr.image.color_jitter(saturation=0.9),
        hr.image.color_jitter(hue=0.4),
        hr.image.color_jitter(0.4, 0.4, 0.4, 0.1),
        hr.image.grayscale(0.5),
    ],
    ids=repr,
)
def test_painting(step: Any) -> None:
    dice = np.random.default_rng(2)
    pixels = torch.from_numpy(dice.integers(0, 256, (9, 33, 41, 3), np.uint8)).to(DEVICE)
    strokes = strokes_of(step, dice.random((9, step.draws)))
    apart = (painting_kernel.paint(pixels, strokes).int() - plain_paint(pixels, strokes).int()).abs()
    # (a GPU multiplies and adds in one, and one level more may be several after the next step)
    assert int(apart.max()) <= (0 if _INTERPRETED else 4) and float(apart.float().mean()) < 0.01
