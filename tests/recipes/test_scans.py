"""Huffman codes that are read here are those that libjpeg reads: the same pixels, and the same verdict on damage."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from headrace.recipes.image import kernels
from headrace.recipes.image.kernels import JOB, RowSpec, Workspace

_kernels = pytest.importorskip("headrace.recipes.image._kernels", reason="the C kernels are not built")
if not kernels.NATIVE:
    pytest.skip("the C kernels are switched off", allow_module_level=True)

ROUNDS = int(os.environ.get("HEADRACE_FUZZ_ROUNDS", "0"))
SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")


def picture(rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Flat areas, edges and noise."""
    few = rng.integers(0, 256, (-(-height // 16), -(-width // 16), 3))
    large = np.repeat(np.repeat(few, 16, axis=0), 16, axis=1)[:height, :width]
    noisy = large + rng.normal(0, rng.choice([0, 3, 40]), large.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def jpeg(pixels: NDArray[np.uint8], mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


@contextmanager
def by(own: bool) -> Iterator[None]:
    _kernels.use_scans(own)
    try:
        yield
    finally:
        _kernels.use_scans(True)


def part(data: bytes, own: bool, x: int, y: int, width: int, height: int) -> tuple[int, bytes]:
    """Status and pixels of a part of an image."""
    out = np.zeros((height, width, 3), np.uint8)
    origins = np.array([[x, y]], np.int32)
    with by(own):
        status = kernels.decode_many(Workspace(), [data], None, [out], origins=origins)
    return int(status[0]), out.tobytes() if status[0] == 0 else b""


def assert_alike(rng: np.random.Generator, data: bytes, width: int, height: int) -> int:
    """Both read the whole and a part alike; the status of the whole."""
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
    assert part(data, True, x, y, w, h) == part(data, False, x, y, w, h)
    found = part(data, True, 0, 0, width, height)
    assert found == part(data, False, 0, 0, width, height)
    return found[0]


@pytest.mark.parametrize("restarts", [0, 1, 7])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, "grey"])
def test_the_same_pixels(sampling: str, restarts: int) -> None:
    rng = np.random.default_rng([restarts, len(sampling), ord(sampling[2])])
    for number in range(25):
        width, height = (int(side) for side in rng.integers(1, 150, 2))
        options: dict[str, Any] = {"quality": int(rng.integers(1, 101)), "optimize": number % 2 == 0}
        if restarts:
            options["restart_marker_blocks"] = restarts
        mode = "L" if sampling == "grey" else "RGB"
        if mode == "RGB":
            options["subsampling"] = sampling
        data = jpeg(picture(rng, width, height), mode, **options)
        assert assert_alike(rng, data, width, height) == 0


def test_scaled_down_as_well() -> None:
    rng = np.random.default_rng(5)
    data = jpeg(picture(rng, 333, 251), quality=90)
    job = np.zeros(1, JOB)
    job["is_jpeg"], job["width"], job["height"], job["orientation"] = 1, 333, 251, 1
    job["box"], job["clamp"] = [[33, 21, 270, 200]], [[33, 21, 303, 221]]
    for side in (200, 120, 60, 20):
        spec = RowSpec(side, side)
        rows = []
        for own in (True, False):
            rows.append(np.zeros((1, *spec.shape), np.uint8))
            with by(own):
                kernels.rows_many(Workspace(), [data], job, rows[-1], spec)
        assert rows[0].any()
        assert (rows[0] == rows[1]).all()


@pytest.mark.fuzz
@pytest.mark.parametrize("damage", ["bytes", "cut", "markers", "tables"])
def test_the_same_verdict_on_damaged_files(damage: str) -> None:
    rng = np.random.default_rng(None if ROUNDS else len(damage))
    statuses = set()
    for number in range(5 * ROUNDS or 120):
        width, height = (int(side) for side in rng.integers(8, 70, 2))
        options: dict[str, Any] = {"restart_marker_blocks": 3} if number % 3 == 0 else {}
        subsampling = SAMPLINGS[number % 3]
        whole = jpeg(picture(rng, width, height), quality=95, subsampling=subsampling, **options)
        data, scan = bytearray(whole), whole.index(b"\xff\xda") + 14
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(scan, len(data) - 2))
            if damage == "bytes":
                data[at] = int(rng.integers(0, 256))
            elif damage == "cut":
                del data[at : at + int(rng.integers(1, 30))]
                data += b"\xff\xd9"
            elif damage == "markers":
                data[at : at + 2] = bytes([0xFF, int(rng.choice([0xD0, 0xD3, 0xD9, 0xFF, 0x01, 0xC4]))])
            else:
                data[int(rng.integers(whole.index(b"\xff\xc4") + 5, scan - 14))] ^= 1 << int(rng.integers(8))
        statuses.add(assert_alike(rng, bytes(data), width, height))
    assert 0 in statuses or damage == "tables"


def test_tables_of_the_last_image_are_not_those_of_the_next() -> None:
    rng = np.random.default_rng(0)
    workspace = Workspace()
    images = [jpeg(picture(rng, 60, 40), quality=quality, optimize=True) for quality in (5, 95, 50, 5, 100)]
    found = {}
    for own in (True, False):
        outs = [np.zeros((40, 60, 3), np.uint8) for _ in images]
        with by(own):
            assert not kernels.decode_many(workspace, images, None, outs).any()
        found[own] = [out.tobytes() for out in outs]
    assert found[True] == found[False]


def test_they_are_read_here() -> None:
    """Otherwise the tests above would compare libjpeg with itself."""
    whole = jpeg(picture(np.random.default_rng(1), 64, 64), subsampling="4:2:0", quality=95)
    workspace, out = Workspace(), np.zeros((64, 64, 3), np.uint8)
    for own, damaged, count in ((True, False, 16), (False, False, 0), (True, True, 0)):
        data = bytearray(whole)
        if damaged:
            data[-100:-98] = b"\xff\xd5"
        with by(own):
            kernels.decode_many(workspace, [bytes(data)], None, [out])
        assert _kernels.own_mcus(workspace.native) == count
