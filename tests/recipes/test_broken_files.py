"""Files that are cut off, damaged, or claim more than they hold: one verdict of both kernels, and no memory."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from headrace.recipes.image import claims, fallback, formats, kernels
from headrace.recipes.image.kernels import JOB, MAX_PIXELS, RowSpec, Workspace
from headrace.recipes.image.rowspec import (
    STATUS_LIBJPEG,
    STATUS_TOO_MANY_SCANS,
    STATUS_TRUNCATED,
)
from tests.recipes.test_kernels import ENCODINGS, jpeg, native, picture, saved

SPEC = RowSpec(24, 24)


def damaged(blob: bytes, chance: np.random.Generator) -> bytes:
    """Broken in one to four of the ways in which files break."""
    broken = bytearray(blob)
    for _ in range(int(chance.integers(1, 5))):
        at = int(chance.integers(2, len(broken)))
        match int(chance.integers(9)):
            case 0:
                broken = broken[:at]
            case 1:
                broken[at] ^= 1 << int(chance.integers(8))
            case 2:
                del broken[at : at + int(chance.integers(1, 200))]
            case 3:
                broken[at:at] = chance.bytes(int(chance.integers(1, 30)))
            case 4:
                broken[at : at + 2] = bytes([0xFF, int(chance.integers(0, 256))])
            case 5:
                length = int(chance.integers(1, 400))
                broken[at : at + length] = bytes(len(broken[at : at + length]))
            case 6:  # headers are a small part of a file, and the part where damage does most
                broken[int(chance.integers(min(len(broken), 650)))] = int(chance.integers(256))
            case 7:
                broken += bytes([0xFF, 0xD9]) if chance.integers(2) else chance.bytes(3000)
            case 8:
                marker = [match.start() for match in re.finditer(rb"\xff[\x01-\xfe]", bytes(broken))]
                if marker:
                    broken[marker[int(chance.integers(len(marker)))] + 1] = int(chance.integers(256))
        if len(broken) < 8:
            break
    return bytes(broken)


def corpus(count: int, seed: int) -> list[bytes]:
    chance = np.random.default_rng(seed)
    seeds = [blob for name, blob in ENCODINGS.items() if "97x75" in name or "64x48" in name]
    seeds += [jpeg(picture(50, 40), "420", orientation=turn) for turn in (3, 6)]
    return [damaged(seeds[number % len(seeds)], chance) for number in range(count)]


@native
@pytest.mark.parametrize("seed", range(2))
def test_both_kernels_give_one_verdict_on_broken_files_whatever_is_wanted_of_them(seed: int) -> None:
    chance, ws = np.random.default_rng(seed), Workspace()
    good = bad = 0
    for blob in corpus(800, seed):
        info = kernels.probe_many([blob])
        assert np.array_equal(info, fallback.probe_many([blob]))
        kind, width, height, orientation, _ = info[0].tolist()
        if kind or width * height > 200_000:
            continue
        ours, theirs = np.zeros((2, height, width, 3), np.uint8)
        status = int(kernels.decode_many(ws, [blob], None, [ours])[0])
        other = int(fallback.decode_many([blob], [theirs], None, MAX_PIXELS)[0])
        assert (status == 0) == (other == 0), (kernels.status_text(status, blob), other)
        if status == 0:
            assert np.array_equal(ours, theirs)
        job = np.zeros(1, JOB)
        job["is_jpeg"], job["width"], job["height"], job["orientation"] = 1, width, height, orientation
        w, h = int(chance.integers(1, width + 1)), int(chance.integers(1, height + 1))
        x, y = int(chance.integers(width - w + 1)), int(chance.integers(height - h + 1))
        job["box"], job["clamp"] = (x, y, w, h), (x, y, x + w, y + h)
        rows = np.zeros((2, 1, *SPEC.shape), np.uint8)
        assert (int(kernels.rows_many(ws, [blob], job, rows[0], SPEC)[0]) == 0) == (status == 0)
        assert (int(fallback.rows_many([blob], job, rows[1], SPEC)[0]) == 0) == (status == 0)
        if status == 0:
            part = np.zeros((h, w, 3), np.uint8)
            origin = np.array([[x, y]], np.int32)
            assert not kernels.decode_many(ws, [blob], None, [part], origins=origin).any()
            assert np.array_equal(part, ours[y : y + h, x : x + w])
        good, bad = good + (status == 0), bad + (status != 0)
    assert good > 100
    assert bad > 200


def verdicts(blob: bytes) -> tuple[int, int]:
    """The status of the kernels in use, and that of the Python kernels."""
    _, width, height, _, _ = kernels.probe_many([blob])[0].tolist()
    out = np.zeros((height, width, 3), np.uint8)
    mine = kernels.decode_many(Workspace(), [blob], None, [out])
    return int(mine[0]), int(fallback.decode_many([blob], [out], None, MAX_PIXELS)[0])


def test_warnings_are_forgiven_and_what_is_cut_off_is_not() -> None:
    whole = jpeg(picture(97, 75), "420")
    scan = formats.jpeg_header(whole).scan
    assert verdicts(whole + b"garbage after the end") == (0, 0)
    assert verdicts(whole[:scan] + b"garbage" + whole[scan:]) == (0, 0)
    assert verdicts(whole[:-2]) == (STATUS_TRUNCATED,) * 2
    middle = (scan + len(whole)) // 2
    assert verdicts(whole[:middle]) == (STATUS_TRUNCATED,) * 2
    # data are missing, and the end is not: as every viewer, both fill the rest
    assert verdicts(whole[:middle] + b"\xff\xd9") == (0, 0)
    # a second image begins in the middle of the first
    assert all(status >= STATUS_LIBJPEG for status in verdicts(whole[:middle] + whole))


def without(blob: bytes, marker: int) -> bytes:
    """The image without its segments of one kind."""
    at, parts = 2, [blob[:2]]
    while blob[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(blob[at + 2 : at + 4], "big")
        if blob[at + 1] != marker:
            parts.append(blob[at:end])
        at = end
    return b"".join([*parts, blob[at:]])


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("marker", [0xDB, 0xC4], ids=["quantisation", "codes"])
def test_an_image_without_tables_never_gets_those_of_the_image_before(marker: int, progressive: bool) -> None:
    """(Codes that are missing are the usual ones, where it is not progressive.)"""
    before = jpeg(picture(64, 48, 1), "420", quality=20, progressive=progressive, optimize=True)
    bare = without(jpeg(picture(64, 48, 2), "420", quality=95, progressive=progressive), marker)
    ws = Workspace()
    alone, after = np.zeros((2, 48, 64, 3), np.uint8)
    fresh = int(kernels.decode_many(Workspace(), [bare], None, [alone])[0])
    assert not kernels.decode_many(ws, [before], None, [np.zeros((48, 64, 3), np.uint8)]).any()
    assert int(kernels.decode_many(ws, [bare], None, [after])[0]) == fresh
    assert np.array_equal(alone, after)
    if marker == 0xDB:
        assert fresh >= STATUS_LIBJPEG
    assert (fresh == 0) == (verdicts(bare)[1] == 0)


def claiming(blob: bytes, width: int, height: int) -> bytes:
    """A JPEG that claims another size."""
    patched = bytearray(blob)
    at = next(m.start() for m in re.finditer(rb"\xff[\xc0-\xc2]\x00[\x0b\x11\x14]", blob))
    patched[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(patched)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_cannot_hold_what_it_claims_is_refused(progressive: bool) -> None:
    for sampling in ("420", "444", "grey"):
        small = jpeg(picture(16, 16), sampling, progressive=progressive, quality=30)
        bomb = claiming(small, 9000, 9000)
        # not even room for its pixels is made, as it has none to the kernels
        assert kernels.probe_many([bomb])[0].tolist()[:3] == [1, 0, 0]
        assert fallback.probe_many([bomb])[0].tolist()[:3] == [1, 0, 0]
        job = np.zeros(1, JOB)
        job["is_jpeg"], job["width"], job["height"], job["orientation"] = 1, 9000, 9000, 1
        job["box"], job["clamp"] = (0, 0, 90, 90), (0, 0, 9000, 9000)
        rows = np.zeros((1, *SPEC.shape), np.uint8)
        assert kernels.rows_many(Workspace(), [bomb], job, rows, SPEC).tolist() == [STATUS_TRUNCATED]
        assert fallback.rows_many([bomb], job, rows, SPEC).tolist() == [STATUS_TRUNCATED]
        with pytest.raises(ValueError, match="truncated JPEG: it is shorter than any image of its size"):
            kernels.decode_any(bomb)
    cmyk = saved(Image.fromarray(picture(16, 16)).convert("CMYK"), "JPEG", progressive=progressive)
    with pytest.raises(ValueError, match="shorter than any image"):
        kernels.decode_any(claiming(cmyk, 9000, 9000))
    with pytest.raises(ValueError, match="60000x60000 pixels is over the limit"):
        kernels.decode_any(claiming(cmyk, 60_000, 60_000))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_the_emptiest_images_hold_what_they_claim(mode: str, progressive: bool) -> None:
    """Nothing can be smaller than one colour all over, coded as well as it can be."""
    for width, height in ((4000, 3000), (4001, 2999), (1, 5000), (9, 17)):
        blob = saved(
            Image.new(mode, (width, height)), "JPEG", progressive=progressive, optimize=True, quality=1
        )
        header = formats.jpeg_header(blob)
        assert len(blob) - header.scan >= header.least
        assert verdicts(blob) == (0, 0)


def test_too_many_scans_are_refused_by_both() -> None:
    whole = jpeg(picture(40, 30), "grey", progressive=True)
    last = whole.rindex(b"\xff\xda")
    many = whole[:last] + whole[last:-2] * 600 + b"\xff\xd9"
    assert verdicts(many) == (STATUS_TOO_MANY_SCANS,) * 2


def encoded(kind: str, width: int = 300, height: int = 200) -> bytes:
    image = picture(width, height)
    if kind in ("gif", "sgi", "tga", "pcx", "qoi"):
        return saved(Image.fromarray(image), kind)
    if kind == "bigtiff":
        return saved(Image.fromarray(image), "TIFF", big_tiff=True)
    if not cv2.haveImageWriter(f"x.{kind}"):
        pytest.skip(f"this OpenCV does not write {kind}")
    real: Any = image.astype(np.float32) / 255 if kind in ("hdr", "pfm") else image
    return cv2.imencode(f".{kind}", real[:, :, 0] if kind in ("pbm", "pgm") else real)[1].tobytes()


KNOWN = [
    "png",
    "gif",
    "bmp",
    "webp",
    "tiff",
    "bigtiff",
    "ppm",
    "pgm",
    "pbm",
    "pam",
    "pfm",
    "hdr",
    "ras",
    "jp2",
]
KNOWN += ["avif"]
BY_PILLOW = ["sgi", "tga", "pcx", "qoi"]


@pytest.mark.parametrize("kind", [*KNOWN, *BY_PILLOW])
def test_every_format_is_refused_by_its_header(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    blob = encoded(kind)
    sizes = claims.claimed_sizes(memoryview(blob))
    assert (set(sizes) == {(300, 200)}) if kind in KNOWN else not sizes
    assert kernels.decode_any(blob, mode="UNCHANGED", max_pixels=60_000).shape[:2] == (200, 300)

    def decoded(*_: Any, **__: Any) -> None:
        raise AssertionError("decoded before its size was checked")

    monkeypatch.setattr(formats.cv2, "imdecode", decoded)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded)
    with pytest.raises(ValueError, match="300x200 pixels is over the limit of 59999 pixels"):
        kernels.decode_any(blob, mode="UNCHANGED", max_pixels=59_999)


@pytest.mark.parametrize("kind", KNOWN)
def test_a_header_that_does_not_say_its_size_is_refused(kind: str) -> None:
    blob = encoded(kind, 90, 70)
    for cut in (*range(12, 60), len(blob) // 2, len(blob) - 1):
        part, sizes = memoryview(blob[:cut]), {(90, 70)}
        with contextlib.suppress(ValueError):
            sizes = set(claims.claimed_sizes(part))
        assert sizes == {(90, 70)}
    with pytest.raises(ValueError, match="does not say how large it is"):
        claims.claimed_sizes(memoryview(blob[: 12 if kind in ("png", "webp", "jp2", "avif") else 6]))


def test_sizes_that_hide_behind_comments_tiles_and_frames_are_found() -> None:
    assert claims.claimed_sizes(memoryview(b"P6 #a\r 70000 #b\n80000 255\n1 1\n")) == [(70000, 80000)]
    tiff = bytearray(saved(Image.new("L", (30, 20)), "TIFF"))
    at = tiff.index(b"\x00\x01\x04\x00") if b"\x00\x01\x04\x00" in tiff else tiff.index(b"\x00\x01\x03\x00")
    for tag, value in ((322, 60_000), (323, 50_000)):  # in the place of two other tags
        tiff[at + 24 : at + 36] = tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + value.to_bytes(4, "little")
        at += 12
    assert (60_000, 50_000) in claims.claimed_sizes(memoryview(bytes(tiff)))
    gif = bytearray(encoded("gif", 30, 20))
    frame = gif.index(b"\x2c\0\0\0\0")
    gif[frame + 5 : frame + 9] = b"\x60\xea\x60\xea"
    assert (60_000, 60_000) in claims.claimed_sizes(memoryview(bytes(gif)))


def test_a_limit_of_pillows_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"MAX_IMAGE_PIXELS"):
        kernels.decode_any(encoded("sgi"))


_PEAK = """
import resource, sys
from headrace.recipes.image import formats, kernels
import cv2, PIL.Image
PIL.Image.init()
kernels.decode_any(open(sys.argv[1], "rb").read())
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for path in sys.argv[2:]:
    try:
        kernels.decode_any(open(path, "rb").read(), max_pixels=10**7 if path[-3:] != "jpg" else 180 * 10**6)
    except ValueError:
        continue
    raise SystemExit(path + " was decoded")
print(peak() - before)
"""


def test_no_memory_is_taken_for_what_is_refused(tmp_path: Any) -> None:
    bombs = {
        "tiff": saved(Image.new("1", (6000, 6000)), "TIFF", compression="tiff_lzw"),
        "ppm": b"P6\n# a picture\n20000 20000\n255\n" + bytes(100_000),
        "pbm": b"P4 12000 12000\n" + bytes(150_000),
        "png": saved(Image.new("1", (6000, 6000)), "PNG"),
        "webp": saved(Image.new("RGB", (4000, 4000)), "WEBP", lossless=True, method=0),
        "jpg": claiming(jpeg(picture(16, 16), "420", progressive=True), 9000, 9000),
    }
    paths = []
    for kind, content in {"fine.png": saved(Image.new("RGB", (8, 8)), "PNG"), **bombs}.items():
        path = tmp_path / (kind if "." in kind else f"bomb.{kind}")
        path.write_bytes(content)
        paths.append(str(path))
    command = [sys.executable, "-c", _PEAK, *paths]
    for chosen in ({}, {"HEADRACE_NATIVE": "0"}):
        environment = {**os.environ, **chosen}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        assert int(result.stdout) < 24, "megabytes"
