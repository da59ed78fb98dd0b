"""The image kernels: regions equal whole decodes, rows equal OpenCV's geometry, damage is named, nothing crashes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from headrace.core.errors import OptionError
from headrace.recipes.image import fallback, formats, kernels
from headrace.recipes.image.kernels import JOB, RowSpec, Workspace
from headrace.recipes.image.rowspec import (
    STATUS_BAD_JOB,
    STATUS_LIBJPEG,
    STATUS_MISMATCH,
    STATUS_NOT_NATIVE,
    STATUS_TOO_LARGE,
    STATUS_TRUNCATED,
)

native = pytest.mark.skipif(not kernels.NATIVE, reason=f"no C kernels: {kernels.describe()}")
ORIENTATION = 0x0112


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth colours with sharp edges and some noise, so that errors of every kind show."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(np.int32)
    image[height // 3 : height // 2, width // 4 :] = (250, 10, 30)
    return np.clip(image + rng.integers(-12, 13, image.shape), 0, 255).astype(np.uint8)


def jpeg(image: NDArray[np.uint8], sampling: str = "420", *, orientation: int = 1, **options: Any) -> bytes:
    if sampling in ("440", "411"):
        factor = {"440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411}
        flags = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor[sampling]]
        return cv2.imencode(".jpg", image[:, :, ::-1], flags)[1].tobytes()
    stream = io.BytesIO()
    if sampling == "grey":
        picture = Image.fromarray(image).convert("L")
    else:
        picture = Image.fromarray(image)
        options["subsampling"] = {"444": 0, "422": 1, "420": 2}[sampling]
    if orientation != 1:
        options["exif"] = exif(orientation)
    picture.save(stream, "JPEG", quality=options.pop("quality", 90), **options)
    return stream.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


def whole(blob: bytes, channels: int = 3) -> NDArray[np.uint8]:
    _, width, height, _, _ = kernels.probe_many([blob])[0]
    out = np.empty((height, width, channels), np.uint8)
    assert kernels.decode_many(Workspace(), [blob], None, [out]).tolist() == [0]
    return out


def job_for(
    source: bytes | NDArray[np.uint8],
    box: Any,
    clamp: Any = None,
    *,
    hflip: bool = False,
    vflip: bool = False,
) -> Any:
    job = np.zeros(1, JOB)
    if isinstance(source, bytes):
        kind, width, height, orientation, _ = kernels.probe_many([source])[0]
        assert kind == 0
        job["is_jpeg"] = 1
    else:
        (height, width), orientation = source.shape[:2], 1
    job["width"], job["height"], job["orientation"] = width, height, orientation
    job["box"] = box
    x, y, w, h = box
    job["clamp"] = clamp if clamp is not None else (x, y, x + w, y + h)
    job["hflip"], job["vflip"] = hflip, vflip
    return job


def row(source: bytes | NDArray[np.uint8], job: Any, spec: RowSpec) -> NDArray[Any]:
    out = np.zeros((1, *spec.shape), spec.storage_dtype)
    status = kernels.rows_many(Workspace(), [source], job, out, spec)
    assert status.tolist() == [0], kernels.status_text(int(status[0]), source)
    return out[0]


def strip_last_scan(blob: bytes) -> bytes:
    """A progressive JPEG without its last refinement: complete, but smoothed when decoded."""
    return blob[: blob.rindex(b"\xff\xda")] + b"\xff\xd9"


ENCODINGS: dict[str, bytes] = {}
for _sampling in ("444", "422", "420", "440", "411", "grey"):
    for _name, _options in {
        "": {},
        " restarts": {"restart_marker_blocks": 3},
        " restart rows": {"restart_marker_rows": 1},
        " progressive": {"progressive": True},
    }.items():
        if _sampling in ("440", "411") and _options:
            continue
        for _w, _h in ((97, 75), (64, 48), (131, 33), (9, 9)):
            _key = f"{_sampling} {_w}x{_h}{_name}"
            ENCODINGS[_key] = jpeg(picture(_w, _h), _sampling, **_options)
            if _options.get("progressive") and _w > 90:
                ENCODINGS[_key + " unfinished"] = strip_last_scan(ENCODINGS[_key])


def crops(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Regions at and near all edges, thin ones, and random ones."""
    rng = np.random.default_rng(width * 1000 + height)
    for x in {0, 1, 7, 8, 15, 16, 17, 33, width // 2, width - 2, width - 1} & set(range(width)):
        for y in {0, 1, 8, 15, 16, 31, height - 1} & set(range(height)):
            for w, h in ((1, 1), (2, 3), (17, 16), (width, height)):
                yield x, y, min(w, width - x), min(h, height - y)
    for _ in range(60):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        yield x, y, int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1))


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_decoded_region_equals_the_same_part_of_the_whole(name: str) -> None:
    blob = ENCODINGS[name]
    for channels in (3, 1):
        full = whole(blob, channels)
        boxes = list(crops(full.shape[1], full.shape[0]))
        outs = [np.empty((h, w, channels), np.uint8) for _, _, w, h in boxes]
        origins = np.array([box[:2] for box in boxes], np.int32)
        ws = Workspace()
        status = kernels.decode_many(ws, [blob] * len(boxes), None, outs, origins=origins)
        assert not status.any()
        for (x, y, w, h), out in zip(boxes, outs, strict=True):
            assert np.array_equal(out, full[y : y + h, x : x + w]), (x, y, w, h)


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411", "grey"])
def test_whole_decodes_equal_other_decoders(sampling: str) -> None:
    image = picture(123, 77)
    blob = jpeg(image, sampling)
    ours = whole(blob)
    assert np.array_equal(ours, np.asarray(Image.open(io.BytesIO(blob)).convert("RGB")))
    expected = np.asarray(Image.open(io.BytesIO(blob)).convert("L")).astype(int)
    # of a colour image, the library hands out luma as stored, which saw no rounding to RGB
    assert np.abs(whole(blob, 1)[:, :, 0] - expected).mean() < (4 if sampling != "grey" else 1e-9)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_to_wholes_regions_and_rows(orientation: int) -> None:
    blob = jpeg(picture(61, 43), "420", orientation=orientation)
    from PIL import ImageOps

    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(blob))))
    height, width = expected.shape[:2]
    assert kernels.probe_many([blob]).tolist() == [[0, width, height, orientation, 3]]
    assert np.array_equal(whole(blob), expected)
    part = np.empty((20, 11, 3), np.uint8)
    origins = np.array([[19, 13]], np.int32)
    assert not kernels.decode_many(Workspace(), [blob], None, [part], origins=origins).any()
    assert np.array_equal(part, expected[13:33, 19:30])
    spec = RowSpec(16, 24)
    for box in ((3, 5, 30, 21), (2.25, 1.5, 37.3, 36.9)):
        for flips in ((False, False), (True, False), (False, True), (True, True)):
            clamp = (1, 1, width - 1, height - 2)
            from_jpeg = row(blob, job_for(blob, box, clamp, hflip=flips[0], vflip=flips[1]), spec)
            from_array = row(expected, job_for(expected, box, clamp, hflip=flips[0], vflip=flips[1]), spec)
            assert np.array_equal(from_jpeg, from_array)


def exact(image: NDArray[np.uint8], out_h: int, out_w: int) -> NDArray[np.float64]:
    """Bilinear with half-pixel centres and repeated edges, in floating point."""

    def taps(size: int, out: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        at = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
        return at.astype(int), np.minimum(at.astype(int) + 1, size - 1), at - at.astype(int)

    left, right, across = taps(image.shape[1], out_w)
    upper, lower, down = taps(image.shape[0], out_h)
    rows = image[:, left] * (1 - across)[None, :, None] + image[:, right] * across[None, :, None]
    return np.asarray(rows[upper] * (1 - down)[:, None, None] + rows[lower] * down[:, None, None])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rows_are_exact_bilinear_and_close_to_opencv(data: st.DataObject) -> None:
    width, height = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 90))
    channels = data.draw(st.sampled_from([1, 3]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    image = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    w, h = data.draw(st.integers(1, width - x)), data.draw(st.integers(1, height - y))
    spec = RowSpec(data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70)), channels)
    flips = {"hflip": data.draw(st.booleans()), "vflip": data.draw(st.booleans())}
    ours = row(image, job_for(image, (x, y, w, h), **flips), spec)
    ours = ours[:, ::-1] if flips["hflip"] else ours
    ours = ours[::-1] if flips["vflip"] else ours
    crop = np.ascontiguousarray(image[y : y + h, x : x + w])
    if kernels.NATIVE:
        assert np.abs(ours - exact(crop, spec.out_h, spec.out_w)).max() < 0.52
    if channels == 3:  # OpenCV itself is up to 1.6 levels off, and some versions far more for one channel
        difference = np.abs(ours.astype(int) - cv2.resize(crop, (spec.out_w, spec.out_h)))
        assert difference.max() <= 2
        assert (difference > 1).mean() < 0.02


def test_rows_of_photos_are_within_one_level_of_opencv() -> None:
    image = picture(500, 375)
    for x, y, w, h in ((0, 0, 500, 375), (31, 17, 300, 260), (200, 100, 100, 120), (3, 300, 480, 70)):
        ours = row(image, job_for(image, (x, y, w, h)), RowSpec(224, 224))
        theirs = cv2.resize(image[y : y + h, x : x + w], (224, 224))
        assert np.abs(ours.astype(int) - theirs).max() <= 1


@native
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_both_kernels_agree_to_the_bit_on_fractional_boxes(data: st.DataObject) -> None:
    is_jpeg = data.draw(st.booleans())
    width, height = data.draw(st.integers(8, 200)), data.draw(st.integers(8, 150))
    image = picture(width, height, data.draw(st.integers(0, 5)))
    orientation = data.draw(st.integers(1, 8))
    source: Any = jpeg(image, data.draw(st.sampled_from(["444", "420", "grey"])), orientation=orientation)
    if not is_jpeg:
        source = image
    elif orientation > 4:
        width, height = height, width
    reals = st.floats(-5, 200, allow_nan=False)
    box = (data.draw(reals), data.draw(reals), data.draw(st.floats(0.5, 210)), data.draw(st.floats(0.5, 160)))
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    clamp = (x0, y0, data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height)))
    job = job_for(source, box, clamp, hflip=data.draw(st.booleans()), vflip=data.draw(st.booleans()))
    spec = RowSpec(
        data.draw(st.integers(1, 40)),
        data.draw(st.integers(1, 40)),
        # the library's own grey and ours may round apart, so grey is asked of arrays only
        3 if is_jpeg else data.draw(st.sampled_from([1, 3])),
        layout=data.draw(st.sampled_from(["HWC", "CHW"])),
        dtype=data.draw(st.sampled_from(["uint8", "float32", "float16", "bfloat16"])),
        scale=(1 / 58.4, 0.5, 3.0),
        bias=(-2.1, 1e-4, 100.0),
        interpolation=data.draw(st.sampled_from(["bilinear", "nearest"])),
        dct_scaling=data.draw(st.booleans()),
    )
    expected = np.zeros((1, *spec.shape), spec.storage_dtype)
    assert fallback.rows_many([source], job, expected, spec).tolist() == [0]
    ours = row(source, job, spec)
    if tuple(box) == (clamp[0], clamp[1], clamp[2] - clamp[0], clamp[3] - clamp[1]):
        return  # a whole box: the fallback asks OpenCV, compared elsewhere
    assert np.array_equal(ours, expected[0])


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 7, 8])
def test_dct_scaling_is_used_from_a_whole_factor_on(factor: int) -> None:
    blob = jpeg(picture(336, 256), "420")
    full = whole(blob)
    spec, plain = RowSpec(30, 40), RowSpec(30, 40, dct_scaling=False)
    for less in (0, 1):
        box = (8, 8, 40 * factor - less, 30 * factor - less)
        job = job_for(blob, box, (0, 0, 336, 256))
        scaled = row(blob, job, spec)
        assert np.array_equal(row(blob, job, plain), row(full, job_for(full, box, (0, 0, 336, 256)), spec))
        scale = max(s for s in (1, 2, 4, 8) if s == 1 or min(box[2] / 40, box[3] / 30) >= s)
        small = formats.decode_jpeg(blob, formats.jpeg_header(blob), 3, scale=scale)
        assert small.shape == (256 // scale, 336 // scale, 3)
        small_job = job_for(small, tuple(v / scale for v in box), (0, 0, 336 // scale, 256 // scale))
        assert np.array_equal(scaled, row(small, small_job, spec))


def test_no_pixel_outside_of_the_clamp_is_read() -> None:
    image = np.full((40, 50, 3), 255, np.uint8)
    image[10:30, 12:37] = 7
    for box in ((12, 10, 25, 20), (5.5, 2.5, 40, 35), (-100, -100, 300, 300), (1000, 1000, 4, 4)):
        for name in ("bilinear", "nearest", "area", "cubic", "lanczos"):
            spec = RowSpec(9, 11, interpolation=name)  # type: ignore[arg-type]
            assert (row(image, job_for(image, box, (12, 10, 37, 30)), spec) == 7).all(), (box, name)


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [5, 16, 33])
def test_layouts_and_dtypes_are_the_pixels_scaled(layout: Any, channels: int, width: int) -> None:
    image = picture(80, 60)
    job = job_for(image, (3.5, 2, 50, 41), (0, 0, 80, 60), hflip=True)
    pixels = row(image, job, RowSpec(12, width, channels))
    arranged = pixels.transpose(2, 0, 1) if layout == "CHW" else pixels
    assert np.array_equal(row(image, job, RowSpec(12, width, channels, layout)), arranged)
    scale, bias = (0.017, 0.0171, 0.0175), (-2.1, -2.0, -1.8)
    shape = (-1, 1, 1) if layout == "CHW" else (1, 1, -1)
    values = arranged.astype(np.float32) * np.float32(scale[:channels]).reshape(shape)
    values = values + np.float32(bias[:channels]).reshape(shape)

    def typed(dtype: str) -> NDArray[Any]:
        return row(image, job, RowSpec(12, width, channels, layout, dtype, scale, bias))

    assert np.array_equal(typed("float32"), values)
    assert np.array_equal(typed("float16"), values.astype(np.float16))
    torch = pytest.importorskip("torch")
    expected = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(typed("bfloat16"), expected)


def test_float16_rounds_and_overflows_as_numpy_does() -> None:
    image = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    job = job_for(image, (0, 0, 16, 16))
    for scale in (1e-7, 3e-8, 1.00048828125 / 2048, 0.1, 300.0, -257.3):
        with np.errstate(over="ignore"):
            expected = (image.astype(np.float32) * np.float32(scale)).astype(np.float16)
        assert np.array_equal(row(image, job, RowSpec(16, 16, 1, dtype="float16", scale=(scale,))), expected)


def test_channels_are_repeated_or_weighed() -> None:
    image = picture(40, 30)
    grey = image[:, :, :1].copy()
    box = (0, 0, 40, 30)
    assert np.array_equal(row(grey, job_for(grey, box), RowSpec(30, 40)), np.repeat(grey, 3, axis=2))
    expected = np.asarray(Image.fromarray(image).convert("L"))[:, :, None]
    assert np.array_equal(row(image, job_for(image, box), RowSpec(30, 40, 1)), expected)


def test_slower_interpolations_are_opencvs() -> None:
    image = picture(90, 70)
    blob = jpeg(image, "444", quality=95)
    for name, flag in (("area", cv2.INTER_AREA), ("cubic", cv2.INTER_CUBIC), ("lanczos", cv2.INTER_LANCZOS4)):
        spec = RowSpec(20, 30, interpolation=name, dct_scaling=False)  # type: ignore[arg-type]
        expected = cv2.resize(image[5:65, 10:80], (30, 20), interpolation=flag)
        assert np.array_equal(row(image, job_for(image, (10, 5, 70, 60)), spec), expected)
        expected = cv2.resize(whole(blob)[5:65, 10:80], (30, 20), interpolation=flag)
        assert np.array_equal(row(blob, job_for(blob, (10, 5, 70, 60)), spec), expected)


def statuses(blob: bytes, before: bytes | None = None) -> tuple[int, int, int]:
    """Of decoding all, a corner, and a row from the top. ``before``: what it was when it was measured."""
    _, width, height, orientation, _ = kernels.probe_many([before or blob])[0]
    ws = Workspace()
    out, corner = np.empty((height, width, 3), np.uint8), np.empty((4, 4, 3), np.uint8)
    job = np.zeros(1, JOB)
    job["is_jpeg"], job["width"], job["height"], job["orientation"] = 1, width, height, orientation
    job["box"], job["clamp"] = (0, 0, 20, 10), (0, 0, 20, 10)
    rows = np.empty((1, 8, 8, 3), np.uint8)
    return (
        int(kernels.decode_many(ws, [blob], None, [out])[0]),
        int(kernels.decode_many(ws, [blob], None, [corner], origins=np.zeros((1, 2), np.int32))[0]),
        int(kernels.rows_many(ws, [blob], job, rows, RowSpec(8, 8))[0]),
    )


@pytest.mark.parametrize("progressive", [False, True])
def test_truncation_is_judged_alike_whatever_is_wanted(progressive: bool) -> None:
    blob = jpeg(picture(200, 150), "420", progressive=progressive)
    start = blob.index(b"\xff\xda") + 20
    for size in [
        start,
        start + 50,
        len(blob) // 2,
        len(blob) - 3000,
        len(blob) - 100,
        len(blob) - 3,
        len(blob) - 2,
    ]:
        assert statuses(blob[:size], blob) == (STATUS_TRUNCATED,) * 3, size
        assert "truncated" in kernels.status_text(STATUS_TRUNCATED, blob[:size])
        with pytest.raises(ValueError, match="truncated JPEG"):
            kernels.decode_any(blob[:size])
    for garbage in (b"", b"\0", b"more" * 100, b"\x12" * 5000):
        assert statuses(blob + garbage) == (0, 0, 0)


def test_the_end_of_a_thumbnail_is_no_end_of_the_image() -> None:
    tags = b"Exif\0\0II*\0\x08\0\0\0\0\0" + b"\xff\xd8\xff\xd9" * 200
    blob = jpeg(picture(200, 150), "420", exif=tags)
    assert statuses(blob) == (0, 0, 0)
    cut = blob[: blob.index(b"\xff\xda", len(tags)) + 600]
    assert statuses(cut) == (STATUS_TRUNCATED,) * 3


def test_damage_inside_is_no_truncation() -> None:
    blob = bytearray(jpeg(picture(200, 150), "420", restart_marker_blocks=4))
    middle = len(blob) // 2
    blob[middle : middle + 8] = b"\x55" * 8
    assert statuses(bytes(blob)) == (0, 0, 0)


def test_broken_headers_are_explained() -> None:
    blob = bytearray(jpeg(picture(40, 30), "420"))
    at = blob.index(b"\xff\xc4") + 5
    blob[at : at + 16] = b"\xff" * 16  # more Huffman codes than there can be
    status = statuses(bytes(blob))
    assert min(status) >= STATUS_LIBJPEG
    assert kernels.status_text(status[0], bytes(blob)).startswith("broken JPEG: ")
    if kernels.NATIVE:
        assert "Huffman" in kernels.status_text(status[0], bytes(blob))


def test_limits_and_mismatches_are_refused() -> None:
    blob = jpeg(picture(100, 80), "420")
    ws, out = Workspace(), np.empty((80, 100, 3), np.uint8)
    assert kernels.decode_many(ws, [blob], None, [out], max_pixels=7999).tolist() == [STATUS_TOO_LARGE]
    assert kernels.decode_many(ws, [blob], None, [out], max_pixels=8000).tolist() == [0]
    assert "100x80" in kernels.status_text(STATUS_TOO_LARGE, blob)
    assert kernels.decode_many(ws, [blob], None, [out[:79]]).tolist() == [STATUS_MISMATCH]
    png = cv2.imencode(".png", out)[1].tobytes()
    assert kernels.decode_many(ws, [png, blob], None, [out, out]).tolist() == [STATUS_NOT_NATIVE, 0]
    rows = np.empty((1, 8, 8, 3), np.uint8)

    def status(spec: RowSpec, **changes: Any) -> int:
        job = job_for(blob, (0, 0, 100, 80))
        for name, value in changes.items():
            job[name] = value
        return int(kernels.rows_many(ws, [blob], job, rows, spec)[0])

    spec = RowSpec(8, 8)
    assert status(RowSpec(8, 8, max_pixels=100)) == STATUS_TOO_LARGE
    assert status(spec, width=99, clamp=(0, 0, 99, 80)) == STATUS_MISMATCH
    assert status(spec, orientation=2) == STATUS_MISMATCH
    for changes in (
        {"box": (0, 0, 0, 5)},
        {"box": (0, 0, np.nan, 5)},
        {"box": (0, np.inf, 5, 5)},
        {"clamp": (0, 0, 101, 80)},
        {"clamp": (-1, 0, 10, 10)},
        {"clamp": (5, 5, 5, 9)},
    ):
        assert status(spec, **changes) == STATUS_BAD_JOB
    assert status(spec) == 0
    array = np.zeros((80, 100, 3), np.uint8)
    job = job_for(array, (0, 0, 100, 80))
    assert kernels.rows_many(ws, [array[:40]], job, rows, spec).tolist() == [STATUS_MISMATCH]


def test_wrong_arguments_raise() -> None:
    image, ws = picture(20, 10), Workspace()
    job, spec = job_for(image, (0, 0, 20, 10)), RowSpec(4, 4)
    with pytest.raises(ValueError, match="needed"):
        kernels.rows_many(ws, [image], job, np.empty((1, 4, 5, 3), np.uint8), spec)
    with pytest.raises(ValueError, match="dtype JOB"):
        kernels.rows_many(ws, [image], np.zeros(1, np.int32), np.empty((1, 4, 4, 3), np.uint8), spec)
    for wrong in (
        {"out_h": 0},
        {"channels": 4},
        {"dtype": "int8"},
        {"layout": "WHC"},
        {"interpolation": "spline"},
        {"scale": (1, 2)},
    ):
        with pytest.raises(OptionError):
            RowSpec(**{"out_h": 4, "out_w": 4, **wrong})  # type: ignore[arg-type]


@native
def test_native_refuses_arrays_it_cannot_read() -> None:
    image, ws = picture(20, 10), Workspace()
    job, out, spec = job_for(image, (0, 0, 20, 10)), np.empty((1, 4, 4, 3), np.uint8), RowSpec(4, 4)
    wrong: Any
    for wrong in (
        image[:, ::2],
        image.astype(np.float32),
        image[:, :, 0].copy(),
        np.zeros((10, 20, 2), np.uint8),
    ):
        with pytest.raises(ValueError):
            kernels.rows_many(ws, [wrong], job, out, spec)
    frozen = np.empty((1, 4, 4, 3), np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="read-write"):
        kernels.rows_many(ws, [image], job, frozen, spec)
    image.flags.writeable = False  # sources may be read-only
    assert not kernels.rows_many(ws, [image], job, out, spec).any()


@native
def test_every_set_of_kernels_gives_the_same_bits() -> None:
    from headrace.recipes.image import _kernels

    _kernels.check_kernels()
    image = picture(300, 200)
    jobs = np.concatenate(
        [
            job_for(image, box, (0, 0, 300, 200), hflip=flip)
            for flip in (False, True)
            for box in (
                (10.3, 5.5, 150, 120),
                (0, 0, 300, 200),
                (5, 5, 40.5, 30),
                (-3, -3, 400, 300),
                (100, 50, 3, 2),
            )
        ]
    )
    for spec in (
        RowSpec(50, 61),
        RowSpec(31, 64, 1, "CHW", "float32"),
        RowSpec(64, 64, 3, "CHW", "bfloat16"),
    ):
        results = []
        for name in _kernels.kernel_sets():
            _kernels.use_kernels(name)
            out = np.zeros((len(jobs), *spec.shape), spec.storage_dtype)
            assert not kernels.rows_many(Workspace(), [image] * len(jobs), jobs, out, spec).any()
            results.append(out)
        assert all(np.array_equal(results[0], other) for other in results[1:])
    with pytest.raises(ValueError):
        _kernels.use_kernels("abacus")


def test_threads_with_a_workspace_each_agree() -> None:
    blobs = [jpeg(picture(160, 120, seed), "420") for seed in range(12)]
    jobs = np.concatenate([job_for(blob, (10, 5, 120, 100)) for blob in blobs])
    spec = RowSpec(48, 48)
    results = [np.zeros((12, *spec.shape), np.uint8) for _ in range(4)]

    def work(out: NDArray[np.uint8]) -> None:
        ws = Workspace()
        for _ in range(5):
            out[:] = 0
            kernels.rows_many(ws, blobs, jobs, out, spec)

    threads = [threading.Thread(target=work, args=(out,)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0].any()
    assert all(np.array_equal(results[0], other) for other in results[1:])


@native
def test_one_workspace_in_two_threads_is_refused_not_corrupted() -> None:
    blobs = [jpeg(picture(400, 300), "420")] * 30
    outs = [np.empty((300, 400, 3), np.uint8) for _ in blobs]
    ws, refusals, started = Workspace(), 0, threading.Event()

    def work() -> None:
        started.set()
        kernels.decode_many(ws, blobs, None, outs)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    while thread.is_alive():
        try:
            kernels.decode_many(ws, blobs[:1], None, [np.empty((300, 400, 3), np.uint8)])
        except RuntimeError as error:
            refusals += "one per thread" in str(error)
    thread.join()
    assert refusals
    assert all(np.array_equal(out, outs[0]) for out in outs)


def mutations(blob: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(blob)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(len(damaged)))
        action = rng.integers(5)
        if action == 0:
            damaged[at] = int(rng.integers(256))
        elif action == 1:
            damaged[at : at + int(rng.integers(1, 40))] = b""
        elif action == 2:
            damaged[at:at] = rng.bytes(int(rng.integers(1, 20)))
        elif action == 3:
            damaged[at : at + 2] = bytes([0xFF, int(rng.integers(0xC0, 0x100))])
        else:
            # damage in the headers does the most
            damaged[int(rng.integers(min(len(damaged), 700)))] ^= 1 << int(rng.integers(8))
        if len(damaged) < 4:
            break
    return bytes(damaged) if rng.integers(6) else bytes(damaged[: int(rng.integers(len(damaged) + 1))])


def test_damaged_images_never_crash_and_always_get_a_status() -> None:
    rng = np.random.default_rng(7)
    seeds = [blob for name, blob in ENCODINGS.items() if "97x75" in name]
    seeds += [jpeg(picture(50, 40), "420", orientation=o) for o in (3, 6)]
    ws, spec, decoded = Workspace(), RowSpec(24, 24), 0
    damaged = [mutations(seeds[i % len(seeds)], rng) for i in range(4000)]
    infos = kernels.probe_many(damaged)
    assert np.array_equal(infos, fallback.probe_many(damaged))
    for blob, (kind, width, height, orientation, _) in zip(damaged, infos.tolist(), strict=True):
        if kind or width * height > 1_000_000:
            continue
        out = np.zeros((height, width, 3), np.uint8)
        full = int(kernels.decode_many(ws, [blob], None, [out])[0])
        job = np.zeros(1, JOB)
        job["is_jpeg"], job["width"], job["height"], job["orientation"] = 1, width, height, orientation
        w, h = max(1, width // 2), max(1, height // 2)
        x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
        job["box"], job["clamp"] = (x, y, w, h), (x, y, x + w, y + h)
        rows = np.zeros((1, 24, 24, 3), np.uint8)
        part = int(kernels.rows_many(ws, [blob], job, rows, spec)[0])
        decoded += full == 0
        for status in (full, part):
            assert status in (0, STATUS_TRUNCATED, STATUS_MISMATCH, 7) or status >= STATUS_LIBJPEG
            assert kernels.status_text(status, blob)
        assert (full == 0) == (part == 0)
    assert 500 < decoded < 3900  # the damage is neither harmless nor total


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it finds
def test_damaged_images_of_any_format_raise_valueerror_or_decode() -> None:
    rng = np.random.default_rng(3)
    image = picture(40, 30)
    seeds = [
        cv2.imencode(ext, image)[1].tobytes() for ext in (".png", ".webp", ".bmp", ".tiff", ".jpg", ".gif")
    ]
    for i in range(600):
        blob = mutations(seeds[i % len(seeds)], rng)
        try:
            decoded = kernels.decode_any(blob, max_pixels=1_000_000)
        except ValueError:
            continue
        assert decoded.ndim == 3
        assert decoded.shape[2] == 3


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def test_any_format_decodes_to_the_expected_pixels() -> None:
    rgb = picture(30, 20)
    alpha = np.dstack([rgb, np.full((20, 30), 99, np.uint8)])
    grey = rgb[:, :, 0]
    deep = (np.arange(600, dtype=np.uint16) * 109).reshape(20, 30)
    palette = Image.fromarray(rgb).quantize(16)
    for blob, expected in (
        (saved(Image.fromarray(rgb), "PNG"), rgb),
        (saved(Image.fromarray(alpha), "PNG"), rgb),
        (saved(Image.fromarray(grey), "PNG"), np.repeat(grey[:, :, None], 3, axis=2)),
        (saved(palette, "PNG"), np.asarray(palette.convert("RGB"))),
        (
            saved(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]),
            np.asarray(palette.convert("RGB")),
        ),
        (saved(Image.fromarray(rgb), "BMP"), rgb),
        (saved(Image.fromarray(rgb), "TIFF"), rgb),
        (saved(Image.fromarray(rgb), "WEBP", lossless=True), rgb),
        (saved(Image.fromarray(deep), "PNG"), np.repeat((deep >> 8).astype(np.uint8)[:, :, None], 3, axis=2)),
    ):
        assert kernels.probe_many([blob])[0].tolist() == [1, 0, 0, 1, 0]
        assert np.array_equal(kernels.decode_any(blob), expected)
    png = saved(Image.fromarray(alpha), "PNG")
    assert np.array_equal(kernels.decode_any(png, mode="RGBA"), alpha)
    assert np.array_equal(kernels.decode_any(png, mode="UNCHANGED"), alpha)
    assert np.array_equal(
        kernels.decode_any(saved(Image.fromarray(rgb), "PNG"), mode="RGBA")[:, :, 3], np.full((20, 30), 255)
    )
    assert np.array_equal(
        kernels.decode_any(saved(Image.fromarray(deep), "PNG"), mode="UNCHANGED"), deep[:, :, None]
    )
    luma = np.asarray(Image.fromarray(rgb).convert("L")).astype(int)
    ours = kernels.decode_any(saved(Image.fromarray(rgb), "PNG"), mode="GRAY")
    assert ours.shape == (20, 30, 1)
    assert np.abs(ours[:, :, 0] - luma).max() <= 1


def test_cmyk_jpeg_has_its_colours() -> None:
    image = Image.fromarray(picture(40, 30)).convert("CMYK")
    blob = saved(image, "JPEG", quality=98)
    assert kernels.probe_many([blob])[0].tolist() == [1, 0, 0, 1, 0]
    expected = np.asarray(Image.open(io.BytesIO(blob)).convert("RGB"))
    assert np.abs(kernels.decode_any(blob).astype(int) - expected).max() <= 2


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_in_every_format_that_has_it(format: str, orientation: int) -> None:
    image = picture(30, 20)
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    blob = saved(Image.fromarray(image), format, exif=exif(orientation), **options)
    stored = np.asarray(Image.open(io.BytesIO(blob))) if format == "JPEG" else image
    assert np.array_equal(kernels.decode_any(blob), formats.oriented(stored, orientation))


def test_refusals_say_why() -> None:
    png = saved(Image.new("RGB", (3000, 2000)), "PNG")
    with pytest.raises(ValueError, match=r"3000x2000 pixels is over the limit of 1000 .*max_pixels="):
        kernels.decode_any(png, max_pixels=1000)
    with pytest.raises(ValueError, match="over the limit"):
        kernels.decode_any(jpeg(picture(40, 30)), max_pixels=1000)
    with pytest.raises(ValueError, match="truncated PNG"):
        kernels.decode_any(png[:-20])
    with pytest.raises(ValueError, match="empty"):
        kernels.decode_any(b"")
    with pytest.raises(ValueError, match=r"not an image.*b'<html>"):
        kernels.decode_any(b"<html>404</html>")
    with pytest.raises(ValueError, match="mode="):
        kernels.decode_any(png, mode="HSV")  # type: ignore[arg-type]


def test_exif_is_read_in_both_byte_orders_and_within_bounds() -> None:
    plain = jpeg(picture(20, 10))

    def with_app1(payload: bytes) -> int:
        segment = b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload
        blob = plain[:2] + segment + plain[2:]
        probed = kernels.probe_many([blob])
        assert np.array_equal(probed, fallback.probe_many([blob]))
        return int(probed[0, 3])

    little = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"
    assert with_app1(little) == 6
    assert with_app1(big) == 8
    assert with_app1(little.replace(b"\x06\0\0\0\0", b"\x09\0\0\0\0")) == 1
    for size in range(len(little) - 5):
        assert with_app1(little[:size]) in (1, 6)
    assert with_app1(little[:10] + b"\xff\xff\xff\xff" + little[14:]) == 1
    assert with_app1(little[:14] + b"\xff\xff" + little[16:]) == 6


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_environment_chooses_the_kernels() -> None:
    code = "from headrace.recipes.image import kernels; print(kernels.NATIVE, kernels.describe())"
    result = run_python(code, HEADRACE_NATIVE="0")
    assert result.stdout.startswith("False Python kernels"), result.stderr
    if kernels.NATIVE:
        result = run_python(code, HEADRACE_LIBJPEG="/nowhere/libjpeg.so")
        assert result.returncode
        assert "HEADRACE_LIBJPEG=/nowhere/libjpeg.so cannot be used" in result.stderr
        result = run_python(code, HEADRACE_LIBJPEG=kernels.LIBJPEG)
        assert result.stdout.startswith("True C kernels"), result.stderr


def test_the_python_kernels_do_the_same() -> None:
    """The whole API once more in Python, against the kernels in use here."""
    blobs = [
        jpeg(picture(120, 90, i), s, orientation=o)
        for i, (s, o) in enumerate([("420", 1), ("444", 6), ("grey", 3)])
    ]
    infos = kernels.probe_many(blobs)
    assert np.array_equal(fallback.probe_many(blobs), infos)
    outs = [np.empty((h, w, 3), np.uint8) for _, w, h, _, _ in infos.tolist()]
    assert not fallback.decode_many(blobs, outs, None, kernels.MAX_PIXELS).any()
    assert all(np.array_equal(out, whole(blob)) for out, blob in zip(outs, blobs, strict=True))
    parts = [np.empty((20, 30, 3), np.uint8) for _ in blobs]
    assert not fallback.decode_many(blobs, parts, np.full((3, 2), 5, np.int32), kernels.MAX_PIXELS).any()
    assert all(np.array_equal(part, out[5:25, 5:35]) for part, out in zip(parts, outs, strict=True))
    cut = blobs[0][:-500]
    assert fallback.decode_many([cut], outs[:1], None, kernels.MAX_PIXELS).tolist() == [STATUS_TRUNCATED]
    assert fallback.decode_many(blobs[:1], outs[:1], None, 10).tolist() == [STATUS_TOO_LARGE]
    assert fallback.decode_many([b"no"], outs[:1], None, 10).tolist() == [STATUS_NOT_NATIVE]
    assert fallback.decode_many(blobs[:1], [outs[0][:-1]], None, kernels.MAX_PIXELS).tolist() == [
        STATUS_MISMATCH
    ]
    simplejpeg_whole = simplejpeg.decode_jpeg(blobs[0], fastdct=False, fastupsample=False)
    assert np.array_equal(outs[0], simplejpeg_whole)
