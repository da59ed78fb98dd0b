"""Antialiased resampling: Pillow's pixels but for rounding, whatever the source is and wherever the crop lies."""

from __future__ import annotations

import ctypes
import io
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from headrace import image
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.recipes import Recipe
from headrace.recipes.image import fallback, kernels
from headrace.recipes.image.kernels import JOB, RowSpec, Workspace
from tests.recipes.helpers import MemorySource
from tests.recipes.helpers import rows as rows_of
from tests.recipes.test_kernels import jpeg, picture

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "cubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
Box = tuple[int, int, int, int]


def pillow(source: NDArray[np.uint8], box: Box, size: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """A crop, resized to (height, width). Across first, as all versions of Pillow do where nothing is left of the
    other direction; some begin with the direction that shrinks more, and round elsewhere."""
    channels = source.shape[2]
    part = Image.fromarray(source if channels == 3 else source[:, :, 0]).crop(box)
    wide = part.resize((size[1], part.height), FILTERS[name])
    return np.asarray(wide.resize((size[1], size[0]), FILTERS[name])).reshape(*size, channels)


def rows(
    sources: list[Any], shown: NDArray[np.uint8], box: Box, size: tuple[int, int], name: str, **more: Any
) -> NDArray[Any]:
    """The same box of each source, which all show one image."""
    jobs = np.zeros(len(sources), JOB)
    jobs["height"], jobs["width"] = shown.shape[:2]
    jobs["is_jpeg"] = [isinstance(source, bytes) for source in sources]
    jobs["orientation"] = more.pop("orientation", 1)
    jobs["box"] = (box[0], box[1], box[2] - box[0], box[3] - box[1])
    jobs["clamp"] = box
    jobs["hflip"], jobs["vflip"] = more.pop("hflip", 0), more.pop("vflip", 0)
    spec = RowSpec(*size, channels=shown.shape[2], interpolation=name, antialias=True, **more)
    out = np.zeros((len(sources), *spec.shape), spec.storage_dtype)
    assert not kernels.rows_many(Workspace(), sources, jobs, out, spec).any()
    again = np.zeros_like(out)
    assert not fallback.rows_many(sources, jobs, again, spec).any()
    if spec.dtype == "uint8":
        assert_alike(again, out)
    return out


def shown_by(data: bytes) -> NDArray[np.uint8]:
    decoded = Image.open(io.BytesIO(data))
    return np.array(decoded).reshape(decoded.height, decoded.width, -1)


def assert_alike(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal, but for pixels half way between two levels."""
    apart = np.abs(found.astype(int) - expected)
    assert apart.max() <= 2
    assert apart.sum() <= max(8, 0.05 * apart.size)  # (of few pixels many may be such)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, int], Box]:
    """A size, and a box in it."""
    width, height = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    right, bottom = draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height))
    return (height, width), (left, top, right, bottom)


@given(
    boxes(),
    st.tuples(st.integers(1, 200), st.integers(1, 200)),
    st.sampled_from(sorted(FILTERS)),
    st.sampled_from(["photo", "noise", "black and white"]),
    st.booleans(),
    st.booleans(),
)
def test_the_pixels_are_pillows(
    where: tuple[tuple[int, int], Box], size: tuple[int, int], name: str, kind: str, hflip: bool, vflip: bool
) -> None:
    (height, width), box = where
    if kind == "photo":
        source = picture(width, height)
    else:
        source = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        if kind == "black and white":
            source = (source > 127).astype(np.uint8) * 255
    found = rows([source], source, box, size, name, hflip=hflip, vflip=vflip)[0]
    expected = pillow(source, box, size, name)[:: -1 if vflip else 1, :: -1 if hflip else 1]
    assert_alike(found, expected)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("sampling", ["444", "422", "420", "grey"])
def test_of_a_jpeg_only_the_touched_part_is_decoded_and_it_is_the_same(name: str, sampling: str) -> None:
    data = jpeg(picture(331, 243), sampling)
    shown = shown_by(data)
    for box, size in (
        ((0, 0, 331, 243), (64, 64)),
        ((101, 37, 252, 199), (96, 80)),
        ((300, 200, 331, 243), (50, 70)),
    ):
        for flips in ({}, {"hflip": 1}, {"vflip": 1}):
            found = rows([data, shown], shown, box, size, name, **flips)
            expected = pillow(shown, box, size, name)
            expected = expected[:: -1 if "vflip" in flips else 1, :: -1 if "hflip" in flips else 1]
            assert_alike(found[0], expected)
            np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images(orientation: int) -> None:
    data = jpeg(picture(150, 90), "444", orientation=orientation)
    shown = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    height, width = shown.shape[:2]
    box = (11, 7, width - 20, height - 3)
    found = rows([data], shown, box, (40, 31), "cubic", orientation=orientation, vflip=1)[0]
    assert_alike(found, pillow(shown, box, (40, 31), "cubic")[::-1])


def test_three_channels_of_grey_and_grey_of_three() -> None:
    source = picture(80, 60)
    grey = np.array(Image.fromarray(source).convert("L"))[:, :, None]
    jobs = np.zeros(1, JOB)
    jobs["height"], jobs["width"], jobs["orientation"] = 60, 80, 1
    jobs["box"] = jobs["clamp"] = (5, 5, 70, 50)
    jobs["clamp"][:, 2:] = (75, 55)
    expected = pillow(grey, (5, 5, 75, 55), (32, 32), "bilinear")
    for channels, one in ((1, source), (3, grey)):
        spec = RowSpec(32, 32, channels=channels, antialias=True)
        out = np.zeros((1, *spec.shape), np.uint8)
        assert not kernels.rows_many(Workspace(), [one], jobs, out, spec).any()
        assert_alike(out[0], np.broadcast_to(expected, out[0].shape))


def test_floats_and_planes_are_of_the_same_pixels() -> None:
    source = picture(200, 100)
    plain = rows([source], source, (0, 0, 200, 100), (48, 64), "cubic")[0]
    scale, bias = (1 / 255 / 0.229, 1 / 255 / 0.224, 1 / 255 / 0.225), (-2.1, -2.0, -1.8)
    out = rows(
        [source],
        source,
        (0, 0, 200, 100),
        (48, 64),
        "cubic",
        layout="CHW",
        dtype="float32",
        scale=scale,
        bias=bias,
    )[0]
    expected = plain.astype(np.float32) * np.float32(scale) + np.float32(bias)
    np.testing.assert_allclose(out, expected.transpose(2, 0, 1), rtol=0, atol=1e-6)


@given(
    st.tuples(*[st.floats(-50, 150)] * 2, *[st.floats(0.01, 400)] * 2),
    st.integers(1, 60),
    st.sampled_from(sorted(FILTERS)),
)
def test_no_box_reads_outside_of_its_clamp(box: tuple[float, ...], side: int, name: str) -> None:
    source = np.full((100, 100, 3), 255, np.uint8)
    source[20:60, 30:70] = 40  # the clamp
    jobs = np.zeros(1, JOB)
    jobs["height"], jobs["width"], jobs["orientation"] = 100, 100, 1
    jobs["box"], jobs["clamp"] = box, (30, 20, 70, 60)
    out = np.zeros((1, side, side, 3), np.uint8)
    spec = RowSpec(side, side, interpolation=name, antialias=True)
    assert not kernels.rows_many(Workspace(), [source], jobs, out, spec).any()
    assert (out == 40).all()


@pytest.fixture(params=kernels._kernels.kernel_sets() if kernels.NATIVE else [])
def kernel_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of kernels that this machine has."""
    kernels._kernels.use_kernels(request.param)
    yield request.param
    kernels._kernels.use_kernels(kernels._kernels.kernel_sets()[-1])


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.usefixtures("kernel_set")
def test_nothing_beyond_the_last_byte_is_read(name: str) -> None:
    """The image ends where its memory does, and what follows may not be touched."""
    page, size = mmap.PAGESIZE, 3 * 100 * 100
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + pages * page), ctypes.c_size_t(page), 0) == 0
    start = pages * page - size
    source = np.frombuffer(memory, np.uint8, size, start).reshape(100, 100, 3)
    source[:] = picture(100, 100)
    for left in range(0, 100, 7):
        for right in {*range(left + 1, 90, 11), *(edge for edge in (91, 94, 97, 99, 100) if edge > left)}:
            for width in (1, 2, 3, 7, 30, 150):
                for hflip in (0, 1):
                    found = rows([source], source, (left, 60, right, 100), (3, width), name, hflip=hflip)[0]
                    expected = pillow(source, (left, 60, right, 100), (3, width), name)
                    assert_alike(found, expected[:, :: -1 if hflip else 1])


@pytest.mark.parametrize("name", FILTERS)
def test_every_set_of_kernels_gives_the_same(name: str) -> None:
    """To the bit: taps of many counts, flipped, as bytes and as planes of floats that are too large for caches."""
    if not kernels.NATIVE:
        pytest.skip(f"no C kernels: {kernels.describe()}")
    source = picture(640, 411)
    sources = [source, jpeg(source, "420")]
    boxes: list[Box] = [(0, 0, 640, 411), (17, 3, 240, 227), (100, 100, 333, 180), (600, 300, 640, 411)]
    sets = kernels._kernels.kernel_sets()
    results: dict[str, list[NDArray[Any]]] = {}
    try:
        for kernel_set in sets:
            kernels._kernels.use_kernels(kernel_set)
            results[kernel_set] = [
                rows(sources, source, box, size, name, hflip=hflip, **more)
                for box in boxes
                for hflip in (0, 1)
                for size, more in (((224, 224), {"layout": "CHW", "dtype": "float32"}), ((31, 57), {}))
            ]
    finally:
        kernels._kernels.use_kernels(sets[-1])
    for kernel_set in sets[1:]:
        for found, expected in zip(results[kernel_set], results[sets[0]], strict=True):
            np.testing.assert_array_equal(found, expected, kernel_set)


@pytest.mark.parametrize("caches", [False, True])
def test_in_a_recipe(caches: bool) -> None:
    """As torchvision's Resize and CenterCrop on Pillow's images, whether the decoded form is cached or not."""
    data = [jpeg(picture(320 + 7 * n, 250), "420") for n in range(4)]
    steps = [image.resize(96, interpolation="cubic", antialias=True), image.center_crop(80)]
    recipe = Recipe(MemorySource(data), image.decode(), steps)
    (found,) = rows_of(recipe, range(4), caches=caches)
    for blob, row in zip(data, found, strict=True):
        shown = shown_by(blob)
        height, width = 96, int(96 * shown.shape[1] / shown.shape[0])
        whole = pillow(shown, (0, 0, shown.shape[1], shown.shape[0]), (height, width), "cubic")
        left, top = round((width - 80) / 2), 8
        assert_alike(row, whole[top : top + 80, left : left + 80])


@pytest.mark.parametrize("name", ["nearest", "area"])
def test_filters_that_do_not_widen_are_refused(name: str) -> None:
    for make in (image.resize, image.random_resized_crop):
        with pytest.raises(OptionError, match="antialiasing is for bilinear, cubic and lanczos"):
            make(32, interpolation=name, antialias=True)
    with pytest.raises(OptionError, match="antialiasing is for"):
        RowSpec(8, 8, interpolation=name, antialias=True)


def test_antialiasing_is_part_of_the_fingerprint() -> None:
    sources = MemorySource([b"x"])
    plain, smooth = (
        Recipe(sources, image.decode(reduce=False), [image.random_resized_crop(8, antialias=flag)])
        for flag in (False, True)
    )
    assert plain.fingerprint(Form.AUGMENTED) != smooth.fingerprint(Form.AUGMENTED)
    assert plain.fingerprint(Form.DECODED) == smooth.fingerprint(Form.DECODED)
