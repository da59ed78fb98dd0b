"""Images that are decoded on a device: the same rows as where workers decode them, and the same words for bad ones.

This machine takes the place of the device, and images are decoded in full by headrace's own kernels: so rows are the
same to the bit where workers decode in full, too. What decodes on a GPU is looked at on one.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headrace as hr
from headrace.coordinate.coordinator import Coordinator, Slot
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order
from headrace.coordinate.row_work import RowWork
from headrace.core.forms import CACHEABLE, Form
from headrace.host import control
from headrace.loader import choose_session, left_rows, nvjpeg
from headrace.loader.cuts import Pictures, cuts_of, plain_cut
from headrace.loader.device_decoders import DECODERS, can_decode, find_decoder
from headrace.recipes.image import kernels, left
from headrace.recipes.image.rowspec import JOB, RowSpec
from headrace.sampling import Draw
from tests.loader import pictures
from tests.loader.device_jobs import Own, stand_in
from tests.loader.helpers import descendants

image = hr.image
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 64


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Own:
    """This machine takes the place of a device."""
    found = Own()
    stand_in(found, monkeypatch.setattr)
    return found


def jpeg(pixels: Any, **options: Any) -> bytes:
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "JPEG", **options)
    return memory.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of all kinds: most can be left to a device, and some cannot."""
    root, dice = tmp_path_factory.mktemp("photos"), np.random.default_rng(3)
    paths = []
    for number in range(64):
        height, width = dice.integers(40, 300, 2)
        rows, columns = np.mgrid[0:height, 0:width]
        waves = [np.sin(rows / a + columns / b + c) for a, b, c in dice.uniform(5, 60, (3, 3))]
        pixels = (127 + 100 * np.stack(waves, 2) + dice.normal(0, 4, (height, width, 3))).clip(0, 255)
        pixels = pixels.astype(np.uint8)
        path = root / f"{number:02}.{'png' if number % 16 == 5 else 'jpg'}"
        paths.append(str(path))
        if number % 16 == 5:
            Image.fromarray(pixels).save(path)
            continue
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 16 == 7 else 1
        shown = pixels[..., 0] if number % 16 == 9 else pixels
        # (one is far too large for its row)
        options = {"quality": 100} if number % 16 == 11 else {"quality": 60, "progressive": number % 16 == 13}
        path.write_bytes(jpeg(shown, exif=exif, subsampling=number % 3, **options))
    return paths


def recipe(photos: list[str], *, reduce: bool = False, tail: Any = None, **more: Any) -> hr.Recipe:
    tail = [image.normalise(MEAN, STD)] if tail is None else tail
    steps = [image.random_resized_crop(SIZE), image.horizontal_flip(), *tail]
    return hr.Recipe(
        hr.files(photos, range(len(photos))), decode=image.decode(reduce=reduce), augment=steps, **more
    )


def batches(made: hr.Recipe, epochs: int = 2, **more: Any) -> list[Any]:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 11, "num_workers": 1, **more}
    with hr.DataLoader(made, **options) as loader:
        return [[leaf.clone() for leaf in pictures.flat(batch)] for _ in range(epochs) for batch in loader]


def same(ours: list[Any], theirs: list[Any], near: float = 0.0) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.allclose(a.double(), b.double(), rtol=0, atol=near)


THERE: dict[str, Any] = {"device": "cuda", "gpu_decode": 0.6}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_workers": 0},
        {"num_workers": 2},
        {"batch_size": None},
        {"gpu_decode": 1.0},
        {"gpu_decode": True},
        {"cache": "4MiB"},
        {"cache": "1MiB", "split": (1, 0, 0)},
    ],
    ids=str,
)
def test_rows_are_those_of_workers(photos: list[str], own: Own, more: dict[str, Any]) -> None:
    made = recipe(photos)
    plain = {name: value for name, value in more.items() if name != "gpu_decode"}
    same(batches(made, **{**THERE, **more}), batches(made, **plain), 1e-6)
    most = 128 if more.get("gpu_decode") else 80
    assert own.count <= most
    if "cache" not in more and more.get("gpu_decode") is not True:
        assert own.count > 0.5 * most * 11 / 16, "as many as were to be, but for those that cannot"


@pytest.mark.parametrize(
    "tail", [[], [image.to_float("bfloat16"), image.random_erasing(1.0)]], ids=["bytes", "erased"]
)
def test_whatever_follows(photos: list[str], own: Own, tail: list[Any]) -> None:
    made = recipe(photos, tail=tail)
    same(batches(made, **THERE), batches(made), 1e-2 if tail else 0)
    assert own.count


def test_rows_that_are_smoothed(photos: list[str], own: Own) -> None:
    steps = [image.random_resized_crop(SIZE, antialias=True), image.horizontal_flip()]
    made = hr.Recipe(hr.files(photos, range(64)), decode=image.decode(), augment=steps)
    same(batches(made, **THERE), batches(made), 1)
    assert own.count


def test_images_that_workers_would_read_at_a_fraction_of_their_size(photos: list[str], own: Own) -> None:
    steps = [image.resize((SIZE, SIZE)), image.to_float()]
    made = hr.Recipe(hr.files(photos), decode=image.decode(), augment=steps)
    ours, theirs = batches(made, device="cuda", gpu_decode=1.0), batches(made)
    apart = torch.cat([(a[0] - b[0]).abs().mean((1, 2, 3)) for a, b in zip(ours, theirs, strict=True)])
    assert own.count and float(apart.max()) < 3 / 255, (
        "squares of pixels are averaged, as libjpeg nearly does"
    )


@pytest.mark.parametrize("every", [1, 3])
def test_what_the_device_cannot_decode_is_decoded_here(photos: list[str], own: Own, every: int) -> None:
    own.refuse = lambda number: number % every == 0
    made = recipe(photos)
    same(batches(made, **THERE), batches(made), 1e-6)
    with hr.DataLoader(made, batch_size=16, num_workers=1, **THERE) as loader:
        list(loader)
        there = loader.stats().device
        assert there is not None and there.refused > 0 and (there.decoded > 0) == (every > 1)
        assert ("images decoded there" in str(loader.stats())) == (every > 1)


@pytest.fixture
def damaged(photos: list[str], tmp_path: Path) -> list[str]:
    """Some images are cut off, and one is none: what a device says of them differs from what is said here."""
    paths = list(photos)
    for number in (2, 17, 33, 34):
        blob = Path(photos[number]).read_bytes()
        paths[number] = str(tmp_path / f"{number}.jpg")
        middle = len(blob) // 2
        Path(paths[number]).write_bytes(blob[:middle] + b"\xff\xd8\xff\xc4\x00\x01" + blob[middle + 6 :])
    paths[40] = str(tmp_path / "none.jpg")
    Path(paths[40]).write_bytes(b"no picture")
    return paths


@pytest.mark.parametrize("rule", ["skip", "substitute"])
def test_bad_samples(damaged: list[str], own: Own, rule: str) -> None:
    options: dict[str, Any] = {"on_error": rule, "error_budget": 20}
    found: list[Any] = []
    made = recipe(damaged)
    for more in ({}, {"device": "cuda", "gpu_decode": 1.0}):
        with hr.DataLoader(
            made, batch_size=8, shuffle=True, seed=5, num_workers=1, **options, **more
        ) as loader:
            given = [[leaf.clone() for leaf in batch] for _ in range(2) for batch in loader]
            found.append((given, [(bad.index, bad.reason) for bad in loader.bad_samples]))
    assert found[0][1] and sorted(found[0][1]) == sorted(found[1][1]), "the same words"
    same(found[1][0], found[0][0], 1e-6)


def test_a_bad_sample_is_an_error_in_its_turn(damaged: list[str], own: Own) -> None:
    made = recipe(damaged)

    def run(**more: Any) -> list[Any]:
        seen: list[Any] = []
        with hr.DataLoader(made, batch_size=4, num_workers=1, **more) as loader:
            iterator = iter(loader)
            for _ in range(len(loader)):
                try:
                    seen.append(next(iterator)[1].tolist())
                except hr.SampleError as error:
                    seen.append(str(error))
        return seen

    ours, theirs = run(device="cuda", gpu_decode=1.0), run()
    assert [str(one).splitlines()[0] for one in ours] == [str(one).splitlines()[0] for one in theirs]
    assert any(isinstance(one, str) for one in ours)


def test_what_fails_on_the_device_is_raised_in_the_loop(photos: list[str], own: Own) -> None:
    own.error = RuntimeError("out of memory")
    with hr.DataLoader(recipe(photos), batch_size=16, num_workers=1, **THERE) as loader:
        with pytest.raises(RuntimeError, match="out of memory"):
            list(loader)
        own.error = None
        assert len(list(loader)) == 4, "and the next epoch goes on"
    assert not [one for one in threading.enumerate() if one.name == "headrace-decode"]


def test_a_device_that_takes_too_long(photos: list[str], own: Own) -> None:
    made, slow = recipe(photos), threading.Event()
    options: dict[str, Any] = {"batch_size": 16, "num_workers": 1, "seed": 2}
    own.refuse = lambda number: slow.wait(20) and False
    found = []
    with hr.DataLoader(made, timeout=0.3, **options, **THERE) as loader:
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match="timed out"):
            for _ in range(4):
                next(iterator)
        slow.set()
        while len(found) < 4:
            try:
                found.append([leaf.clone() for leaf in next(iterator)])
            except RuntimeError:  # (it may take a moment)
                continue
    same(found, batches(made, 1, **{**options, "shuffle": False}), 1e-6)


def test_states_and_epochs_that_are_left_early(photos: list[str], own: Own) -> None:
    made = recipe(photos)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 2, "num_workers": 1}
    whole = batches(made, **options)
    with hr.DataLoader(made, **options, **THERE) as loader:
        iterator = iter(loader)
        first = [[leaf.clone() for leaf in next(iterator)] for _ in range(3)]
        state = loader.state_dict()
        del iterator
    with hr.DataLoader(made, **options, **THERE) as loader:
        loader.load_state_dict(state)
        rest = [[leaf.clone() for leaf in batch] for _ in range(2) for batch in loader]
    same([*first, *rest], whole, 1e-6)


def test_a_worker_that_is_killed(photos: list[str], own: Own) -> None:
    made = recipe(photos)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2, "num_workers": 2}
    whole, found = batches(made, **options), []
    with hr.DataLoader(made, **options, **THERE) as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                found.append([leaf.clone() for leaf in batch])
                if number == 3:
                    os.kill(descendants()[0], signal.SIGKILL)
    same(found, whole, 1e-6)


@pytest.mark.parametrize("more", [{"gpu_decode": 0.6}, {"gpu_cache": "4MiB"}], ids=str)
def test_beside_a_shared_cache(
    photos: list[str], own: Own, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / "run"))
    made = recipe(photos)
    options: dict[str, Any] = {"share": True, "sampling": "uniform", "cache": "2MiB"}
    try:
        theirs = batches(made, 3, **options)
        same(batches(made, 3, device="cuda", **more, **options), theirs, 1e-6)
    finally:
        control.stop(30.0)


def test_recipes_that_a_device_cannot_decode_for(photos: list[str], own: Own) -> None:
    photos = photos[:12]
    blur = [image.gaussian_blur(3), image.to_float()]
    for made in (
        recipe(photos, tail=blur),
        hr.Recipe(
            hr.files(photos),
            decode=image.decode(),
            augment=[image.resize((SIZE, SIZE), interpolation="cubic")],
        ),
        hr.Recipe(hr.files(photos), decode=image.decode("L"), augment=[image.resize((SIZE, SIZE))]),
        recipe(photos, tail=[], collate=torch.utils.data.default_collate),
    ):
        with pytest.warns(UserWarning, match="gpu_decode="):
            ours = batches(made, 1, num_workers=0, **THERE)
        same(ours, batches(made, 1, num_workers=0), 1e-6)
    assert not own.count


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"gpu_decode": True}, "say which with device="),
        ({"gpu_decode": 1.5, "device": "auto"}, "from 0 to 1"),
        ({"gpu_decode": "yes", "device": "auto"}, "from 0 to 1"),
        ({"gpu_cache": "1GiB"}, "gpu_cache= needs a GPU"),
        ({"gpu_cache": "much", "device": "auto"}, "gpu_cache='much' is not a size"),
    ],
)
def test_options(photos: list[str], more: dict[str, Any], what: str) -> None:
    with pytest.raises(hr.OptionError, match=what):
        hr.DataLoader(recipe(photos), **more)


def test_a_dataset_is_none_of_it() -> None:
    with pytest.raises(hr.OptionError, match="needs a recipe"):
        hr.DataLoader([1, 2, 3], device="auto", gpu_decode=True)


def test_without_a_gpu_it_says_nothing(photos: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    same(batches(recipe(photos), 1, device="auto", gpu_decode=True), batches(recipe(photos), 1))


class Vision:
    """torchvision's part of it: a list is decoded as a whole or not at all."""

    class ImageReadMode:
        RGB = "RGB"

    def __init__(self) -> None:
        self.own, self.calls = Own(), 0

    def decode_jpeg(self, blobs: list[torch.Tensor], mode: Any, device: Any) -> list[torch.Tensor]:
        self.calls += 1
        images = self.own.images([blob.numpy() for blob in blobs])
        if mode != "RGB" or any(image is None for image in images):
            raise RuntimeError("Error while decoding JPEG images")
        return [image.permute(2, 0, 1) for image in images if image is not None]


@pytest.mark.parametrize("bad", [set(), {3}, {0, 15}, set(range(16))], ids=len)
def test_one_that_is_at_fault_is_found(
    photos: list[str], monkeypatch: pytest.MonkeyPatch, bad: set[int]
) -> None:
    vision = Vision()
    monkeypatch.setitem(sys.modules, "torchvision.io", vision)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    blobs = []
    for at in range(16):
        blob = np.fromfile(photos[0], np.uint8)
        blobs.append(blob[: len(blob) // 3] if at in bad else blob)
    found, which = DECODERS["torchvision"](torch.device("cpu"))(blobs)
    assert which == [at for at in range(16) if at not in bad] and len(found) == len(which)
    assert vision.calls <= {0: 1, 16: 31}.get(len(bad), 1 + 2 * 4 * len(bad))


def test_without_anything_that_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    monkeypatch.setattr(nvjpeg, "find_library", lambda: None)
    with pytest.raises(hr.OptionError, match="install the torchvision"):
        find_decoder(torch.device("cuda"))


# -- images that stay there ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_what_is_there_is_not_decoded_again(photos: list[str], own: Own, more: dict[str, Any]) -> None:
    made = recipe(photos)
    there = {"device": "cuda", "gpu_cache": "64MiB", "gpu_decode": 1.0, **more}
    same(batches(made, 4, **there), batches(made, 4, **more), 1e-6)
    room = SIZE * SIZE * 3 - 128
    can = sum(
        n % 16 not in (5, 7, 9, 13) and Path(path).stat().st_size < room for n, path in enumerate(photos)
    )
    assert can <= own.count < 4 * can, "but for what was asked for before it was there"
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "num_workers": 1, **there}
    with hr.DataLoader(made, **options) as loader:
        for _ in range(3):
            list(loader)
        found = loader.stats().device
        assert found is not None and found.held == can and found.hits > 0
        sides = [Image.open(path).size for n, path in enumerate(photos) if n % 16 not in (5, 7, 9, 13)]
        assert 0 < found.held_bytes <= sum(3 * width * height + 256 for width, height in sides), "each once"
        assert "images held there" in str(loader.stats())


def test_batches_of_what_is_there_are_not_copied(photos: list[str], own: Own) -> None:
    some = [path for number, path in enumerate(photos) if number % 16 not in (5, 7, 9, 11, 13)]
    made = recipe(some)
    with hr.DataLoader(made, batch_size=16, num_workers=1, device="cuda", gpu_cache="64MiB") as loader:
        sent = []
        for _ in range(12):
            list(loader)
            spent, found = loader.stats(), loader.stats().device
            assert found is not None
            sent.append((found.hits, spent.fetched_samples))
        assert found.held == len(some)
        assert sent[-1][0] - sent[-2][0] == len(some) and sent[-1][1] == sent[-2][1], "nothing is read either"


@pytest.mark.slow
def test_a_cache_that_is_too_small(photos: list[str], own: Own) -> None:
    made = recipe(photos)
    same(batches(made, 4, device="cuda", gpu_cache="400KiB"), batches(made, 4), 1e-6)
    with hr.DataLoader(made, batch_size=16, num_workers=1, device="cuda", gpu_cache="400KiB") as loader:
        for _ in range(4):
            list(loader)
        found = loader.stats().device
        assert found is not None and 0 < found.held < 40 and found.held_bytes <= 400 << 10
        before = own.count
        list(loader)
        list(loader)
        assert own.count == before, "once it is full, the device decodes no more than it is to"


@pytest.mark.slow
def test_a_cache_beside_one_in_memory(photos: list[str], own: Own) -> None:
    made = recipe(photos)
    for more in ({"cache": "64MiB"}, {"cache": "1MiB", "split": (1, 0, 0)}):
        same(batches(made, 4, device="cuda", gpu_cache="1MiB", **more), batches(made, 4, **more), 1e-6)


def test_images_that_are_padded_are_not_held(photos: list[str], own: Own) -> None:
    steps = [image.resize(80), image.center_crop(64), image.to_float()]
    made = hr.Recipe(hr.files(photos), decode=image.decode(reduce=False), augment=steps)
    same(batches(made, 3, device="cuda", gpu_cache="8MiB", gpu_decode=1.0), batches(made, 3), 1e-6)
    assert own.count > 64, "each time anew"


@pytest.mark.slow
def test_bad_samples_beside_images_that_are_there(damaged: list[str], own: Own) -> None:
    made = recipe(damaged)
    for rule in ("skip", "substitute"):
        options: dict[str, Any] = {"on_error": rule, "error_budget": 20, "batch_size": 8}
        same(batches(made, 3, device="cuda", gpu_cache="64MiB", **options), batches(made, 3, **options), 1e-6)


def test_a_share_is_found_over_epochs_that_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time between epochs counts for nothing, and what was measured in one is not lost with it."""
    now, noted = [0.0], []
    monkeypatch.setattr(left_rows.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(left_rows.DeviceShare, "note", lambda self, *found: noted.append(found) or 0.25)
    division, waited = left_rows.Division(None), 0.0
    for _ in range(40):
        division.pause()
        now[0] += 100
        for _ in range(4):
            now[0], waited = now[0] + 0.0625, waited + 0.03125
            share = division.taken(16, waited)
    assert share == 0.25 and len(noted) >= 8
    assert all(rows / seconds == 256 and rows >= 128 for rows, seconds, _ in noted)
    assert all(late == seconds / 2 for _, seconds, late in noted)


# -- what rows hold ------------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.integers(300, 400), st.integers(0, 2**30)
)
def test_what_is_put_into_rows_is_found_there(blobs: list[bytes], size: int, number: int) -> None:
    memory = np.full((len(blobs) + 1, size), 7, np.uint8)
    jobs = np.zeros(len(blobs), JOB)
    jobs["width"], jobs["box"] = number, (0.5, 1.5, 2.5, number)
    left.put(memory, list(range(len(blobs))), [blob or left.Held(3, 4) for blob in blobs], jobs)
    nbytes, found = left.get(memory, np.arange(len(blobs)))
    assert nbytes.tolist() == [len(blob) for blob in blobs] and (found == jobs).all()
    for row, blob in enumerate(blobs):
        assert bytes(left.bytes_of(memory, row, len(blob))) == blob
    assert (memory[-1] == 7).all()


def test_images_of_the_plain_kind(photos: list[str]) -> None:
    for number, path in enumerate(photos):
        blob = Path(path).read_bytes()
        if blob[:2] == b"\xff\xd8":
            assert left.is_baseline(blob) == (number % 16 != 13)
            assert left.is_baseline(memoryview(blob[:2] + b"\xff" + blob[2:])) == (number % 16 != 13)


def test_an_image_whose_end_is_missing_is_not_left_to_a_device(photos: list[str]) -> None:
    whole = Path(photos[0]).read_bytes()
    cut = [whole, whole[:-1], whole[:-20], whole[: len(whole) // 2], whole + b"\0"]
    may = left.can_be_left(kernels.probe_many(cut), cut, 1 << 20)
    assert may.tolist() == [True, False, False, False, False]


@given(st.binary(max_size=60))
def test_no_bytes_are_too_strange_to_be_looked_at(content: bytes) -> None:
    assert left.is_baseline(b"\xff\xd8" + content) in (True, False)


@given(st.binary(min_size=96, max_size=400))
def test_any_bytes_are_no_danger(content: bytes) -> None:
    memory = np.frombuffer(content, np.uint8).copy()[None]
    nbytes, _ = left.get(memory, np.array([0]))
    assert int(nbytes[0]) < memory.shape[1]


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_cuts_are_those_of_the_kernels_of_workers(seed: int, smooth: bool) -> None:
    dice = np.random.default_rng(seed)
    spec = RowSpec(int(dice.integers(1, 40)), int(dice.integers(1, 40)), dct_scaling=False, antialias=smooth)
    count = 4
    jobs, images = np.zeros(count, JOB), []
    for job in jobs:
        height, width = dice.integers(1, 90, 2)
        images.append(dice.integers(0, 256, (height, width, 3), np.uint8))
        job["width"], job["height"], job["orientation"] = width, height, 1
        wide, high = dice.uniform(0.3, width), dice.uniform(0.3, height)
        job["box"] = dice.uniform(0, width - wide), dice.uniform(0, height - high), wide, high
        x, y = dice.integers(0, width), dice.integers(0, height)
        job["clamp"] = x, y, dice.integers(x + 1, width + 1), dice.integers(y + 1, height + 1)
        job["hflip"], job["vflip"] = dice.integers(0, 2, 2)
    rows = np.empty((count, *spec.shape), np.uint8)
    assert not kernels.rows_many(kernels.Workspace(), images, jobs, rows, spec).any()
    order = dice.permutation(count).tolist()
    found = torch.zeros(count, *spec.shape, dtype=torch.uint8)
    plain_cut(Pictures.of([torch.from_numpy(one) for one in images]), cuts_of(jobs, spec), found, order)
    apart = np.abs(found[order].numpy().astype(int) - rows)
    assert apart.max() <= (1 if smooth else 0)


# -- which rows are left ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3]), st.integers(0, 15), st.booleans()), min_size=1, max_size=20
    ),
    st.integers(0, 25),
)
def test_rows_are_left_of_which_nothing_is_kept(rows: list[tuple[int, int, bool]], count: int) -> None:
    forms, keep, held = (np.array(one, np.uint8) for one in zip(*rows, strict=True))
    indices = np.arange(len(rows)).tobytes()
    order = Order(0, 0, 64, len(rows), 0, 0, 0, 0, indices, forms=forms.tobytes(), keep=keep.tobytes())
    made_here = (1 << Form.DECODED) | (1 << Form.AUGMENTED)
    may = [at for at, (form, bits, _) in enumerate(rows) if form < Form.DECODED and not bits & made_here]
    mask = RowWork(order).left(count)
    assert ([] if mask is None else np.flatnonzero(mask).tolist()) == (may[-count:] if count else [])
    work = RowWork(order)
    there = work.are_held(held > 0).tolist()
    assert there == [
        at
        for at, (form, bits, one) in enumerate(rows)
        if one and form != Form.AUGMENTED and not bits & (1 << Form.AUGMENTED)
    ]
    assert not set(there) & {*work.cached().tolist(), *work.missing().tolist()}, "nothing is fetched for them"
    mask = work.left(count)
    others = [at for at in may if at not in there]
    assert ([] if mask is None else np.flatnonzero(mask).tolist()) == sorted(
        there + (others[-count:] if count else [])
    )


@given(st.floats(0, 1), st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 9))
def test_the_share_is_kept_over_all_orders(share: float, sizes: list[int], rows: int) -> None:
    coordinator = Coordinator(Directory(100, dict.fromkeys(CACHEABLE, 0), 0), rows_per_order=rows)
    coordinator.leave = share
    left_to_it, asked = 0, 0

    class Batches:
        seed = 0

        def __init__(self) -> None:
            self.left = [Draw(0, step, np.arange(size), 0) for step, size in enumerate(sizes)]

        def draw(self) -> Draw | None:
            return self.left.pop(0) if self.left else None

    coordinator.feed(Batches())
    while (orders := coordinator.credit(Slot(0, 64))) is not None:
        for order in orders:
            count = len(order.index_array())
            assert 0 <= order.leave <= count + 1
            left_to_it += order.leave
            asked += count
    assert abs(left_to_it - share * asked) <= 1


# -- on a GPU --------------------------------------------------------------------------------------------------

cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or not can_decode(), reason="no CUDA device, or nothing that decodes there"
)


@pytest.fixture(params=sorted(DECODERS))
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of those who decode there."""
    try:
        DECODERS[request.param](torch.device("cuda", 0))
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{request.param}: {error}")
    monkeypatch.setattr(choose_session, "find_decoder", DECODERS[request.param])
    return str(request.param)


@pytest.fixture
def plain(photos: list[str]) -> list[str]:
    """Those that can be left to a GPU."""
    return [path for number, path in enumerate(photos) if number % 16 not in (5, 7, 9, 11, 13)]


@cuda
@pytest.mark.parametrize("more", [{"gpu_decode": 1.0}, {"gpu_cache": 1 << 28}], ids=str)
def test_a_gpu_decodes_nearly_the_same(decoder: str, plain: list[str], more: dict[str, Any]) -> None:
    made = recipe(plain, tail=[image.to_float()])
    with hr.DataLoader(
        made, batch_size=8, seed=3, shuffle=True, num_workers=2, device="cuda", **more
    ) as loader:
        ours = [[leaf.cpu().clone() for leaf in batch] for _ in range(4) for batch in loader]
        found = loader.stats().device
        assert found is not None and found.decoded >= len(plain) and not found.refused
    theirs = batches(made, 4, batch_size=8, seed=3, num_workers=2)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine[1] == other[1]).all()
        # (colours of half the resolution are made larger in different ways)
        assert float((mine[0] - other[0]).abs().mean()) < 3 / 255


@cuda
@pytest.mark.parametrize("more", [{}, {"gpu_cache": 1 << 28}], ids=str)
@pytest.mark.parametrize("side", [False, True])
def test_a_gpu_that_lags(decoder: str, plain: list[str], more: dict[str, Any], side: bool) -> None:
    made = recipe(
        plain, tail=[image.color_jitter(0.4, 0.4, 0.4), image.to_float(), image.random_erasing(1.0)]
    )
    epochs = 20
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()

    def run(lag: int) -> list[torch.Tensor]:
        sums = []
        options: dict[str, Any] = {
            "batch_size": 8,
            "seed": 3,
            "shuffle": True,
            "num_workers": 2,
            "device": "cuda",
        }
        with torch.cuda.stream(stream), hr.DataLoader(made, gpu_decode=1.0, **more, **options) as loader:
            for _ in range(epochs):
                for images, labels in loader:
                    if lag:
                        torch.cuda._sleep(lag)
                    weights = torch.arange(images.numel(), device="cuda", dtype=torch.float64) % 97
                    sums.append((images.double().reshape(-1) * weights).sum() + labels.sum())
                    del images, labels
        torch.cuda.synchronize()
        return [one.cpu() for one in sums]

    assert run(0) == run(4_000_000)


@cuda
def test_memory_of_the_gpu_comes_back(decoder: str, plain: list[str]) -> None:
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        options: dict[str, Any] = {"gpu_decode": 1.0, "gpu_cache": 1 << 28}
        with hr.DataLoader(recipe(plain), batch_size=8, num_workers=2, device="cuda", **options) as loader:
            list(loader)
            list(loader)
    del loader
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 1 << 20


@cuda
@pytest.mark.parametrize("rule", ["skip", "substitute"])
def test_bad_samples_on_a_gpu(decoder: str, damaged: list[str], rule: str) -> None:
    made, found = recipe(damaged), []
    options: dict[str, Any] = {"on_error": rule, "error_budget": 20, "batch_size": 8, "num_workers": 2}
    for more in ({}, {"device": "cuda", "gpu_decode": 1.0}):
        with hr.DataLoader(made, **options, **more) as loader:
            labels = [batch[1].tolist() for batch in loader]
            found.append((labels, sorted(bad.index for bad in loader.bad_samples)))
    # (a GPU may decode what libjpeg takes for broken, and never the other way round)
    assert set(found[1][1]) <= set(found[0][1]) and 40 in found[1][1]
