"""Files that are broken, cut off, something else, gone, or changed: each is named, and the rest is loaded."""

import contextlib
import errno
import os
import random
import resource
import shutil
import socket

import cv2
import numpy as np
import pytest
from PIL import Image

import headrace as hr
from tests.loader.helpers import images, jpeg_folder


def picture(size=64):
    noise = np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return cv2.resize(noise, (size, size))


def load(folder, *, num_workers=2, epochs=1, **options):
    """How many samples arrive, and what is said of those that do not, by file name."""
    options = {
        "batch_size": 8,
        "num_workers": num_workers,
        "on_error": "skip",
        "error_budget": 1000,
        **options,
    }
    with hr.DataLoader(images(folder), **options) as loader:
        count = sum(len(labels) for _ in range(epochs) for _, labels in loader)
        restarts = loader.stats().restarts
        bad = {os.path.basename(sample.name): sample.reason for sample in loader.bad_samples}
    assert restarts == 0, "a broken file must not crash a worker"
    return count, bad


def encoded(kind):
    return cv2.imencode(f".{kind}", picture())[1].tobytes()


@pytest.mark.parametrize("kind", ["jpg", "png", "bmp", "webp", "tiff"])
def test_files_cut_off_anywhere(tmp_path, kind):
    """Each is either loaded, as a decoder that shows what it has, or named; none crashes or hangs."""
    whole = encoded(kind)
    folder = tmp_path / "all" / "class"
    folder.mkdir(parents=True)
    cuts = sorted({*range(0, 40, 3), *np.linspace(40, len(whole) - 1, 24, dtype=int).tolist()})
    for cut in cuts:
        (folder / f"{cut:06}.{kind}").write_bytes(whole[:cut])
    (folder / f"whole.{kind}").write_bytes(whole)
    count, bad = load(tmp_path / "all")
    assert count + len(bad) == len(cuts) + 1
    assert f"whole.{kind}" not in bad
    for cut in cuts:
        if cut < 20:
            assert f"{cut:06}.{kind}" in bad, "there is no picture in so little"
    assert all(bad.values()), "each has a reason"


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_files_with_flipped_bytes(tmp_path, kind):
    whole = bytearray(encoded(kind))
    folder = tmp_path / "all" / "class"
    folder.mkdir(parents=True)
    chance = np.random.default_rng(3)
    for number in range(60):
        broken = bytearray(whole)
        for at in chance.integers(0, len(whole), 1 + number % 8):
            broken[at] = chance.integers(0, 256)
        (folder / f"{number:03}.{kind}").write_bytes(broken)
    count, bad = load(tmp_path / "all")
    assert count + len(bad) == 60


def test_things_that_are_no_images(tmp_path):
    jpeg_folder(tmp_path, count=9)
    folder = tmp_path / "class-0"
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("This is a text file with the name of a picture. " * 50)
    (folder / "zeros.jpg").write_bytes(bytes(5000))
    (folder / "start.jpg").write_bytes(b"\xff\xd8\xff\xe0" + random.randbytes(3000))
    (folder / "end.jpg").write_bytes(b"\xff\xd8\xff\xd9")
    (folder / "page.png").write_text("<html>404 not found</html>")
    Image.new("RGB", (10, 10)).save(folder / "fine.gif", "GIF")
    os.symlink(tmp_path / "nowhere.jpg", folder / "dangling.jpg")
    os.symlink(folder / "000.jpg", folder / "linked.jpg")
    count, bad = load(tmp_path)
    assert count == 10
    assert set(bad) <= {
        "empty.jpg",
        "text.jpg",
        "zeros.jpg",
        "start.jpg",
        "end.jpg",
        "page.png",
        "dangling.jpg",
    }
    assert {"empty.jpg", "text.jpg", "zeros.jpg", "start.jpg", "end.jpg", "page.png"} <= set(bad)


def test_images_of_every_colour_load(tmp_path):
    folder = tmp_path / "all" / "class"
    folder.mkdir(parents=True)
    for mode in ("RGB", "L", "CMYK", "RGBA", "P", "1", "I;16", "LA"):
        kind = "jpg" if mode in ("RGB", "L", "CMYK") else "png"
        Image.new(mode, (50, 60)).save(folder / f"{mode.replace(';', '')}.{kind}")
    count, bad = load(tmp_path / "all")
    assert (count, bad) == (8, {})


def test_an_image_that_would_fill_the_memory_is_refused(tmp_path):
    jpeg_folder(tmp_path, count=6)
    bomb = bytearray(encoded("jpg"))
    at = bomb.index(b"\xff\xc0")
    bomb[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    (tmp_path / "class-0" / "bomb.jpg").write_bytes(bomb)
    count, bad = load(tmp_path)
    assert count == 6
    assert "65500" in bad["bomb.jpg"]


@pytest.mark.parametrize("cache", [None, "64MiB"], ids=["plain", "cached"])
def test_images_that_claim_more_than_they_hold_are_refused_and_take_nothing(tmp_path, cache):
    jpeg_folder(tmp_path, count=6, classes=1)
    folder = tmp_path / "class-0"
    Image.fromarray(picture(16)).save(folder / "claims.jpg", progressive=True, quality=20)
    bomb = bytearray((folder / "claims.jpg").read_bytes())
    at = bomb.index(b"\xff\xc2")
    bomb[at + 5 : at + 9] = (9000).to_bytes(2, "big") * 2
    (folder / "claims.jpg").write_bytes(bomb)
    (folder / "claims.ppm").write_bytes(b"P6 # large\n30000 30000 255\n" + bytes(1000))
    count, bad = load(tmp_path, cache=cache, epochs=2)
    assert count == 12
    assert "shorter than any image of its size" in bad["claims.jpg"]
    assert "30000x30000 pixels is over the limit" in bad["claims.ppm"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_directory_in_the_place_of_a_file(tmp_path, num_workers):
    jpeg_folder(tmp_path, count=9)
    source = images(tmp_path)
    (tmp_path / "class-0" / "000.jpg").unlink()
    (tmp_path / "class-0" / "000.jpg").mkdir()
    options = {"batch_size": 4, "num_workers": num_workers, "on_error": "skip", "error_budget": 1}
    with hr.DataLoader(source, **options) as loader:
        assert sum(len(labels) for _, labels in loader) == 8
        assert "IsADirectoryError" in loader.bad_samples[0].reason


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cache", [None, "64MiB"], ids=["plain", "cached"])
def test_files_that_vanish_in_the_middle_of_an_epoch(tmp_path, num_workers, cache):
    jpeg_folder(tmp_path, count=60, classes=1)
    options = {
        "batch_size": 4,
        "num_workers": num_workers,
        "on_error": "skip",
        "error_budget": 60,
        "cache": cache,
    }
    with hr.DataLoader(images(tmp_path), prefetch_factor=1 if num_workers else None, **options) as loader:
        iterator = iter(loader)
        first = len(next(iterator)[1])
        for number in range(40, 60):
            (tmp_path / "class-0" / f"{number:03}.jpg").unlink()
        assert first + sum(len(labels) for _, labels in iterator) == 40
        assert {os.path.basename(bad.name) for bad in loader.bad_samples} == {
            f"{n:03}.jpg" for n in range(40, 60)
        }
        assert all("FileNotFoundError" in bad.reason for bad in loader.bad_samples)
        shutil.rmtree(tmp_path / "class-0")
        if cache:
            assert sum(len(labels) for _, labels in loader) == 40, "what is cached needs no file"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_files_that_change_and_come_back(tmp_path, num_workers):
    jpeg_folder(tmp_path, count=12, classes=1)
    path = tmp_path / "class-0" / "005.jpg"
    good = path.read_bytes()
    options = {"batch_size": 4, "num_workers": num_workers, "on_error": "skip", "error_budget": 1}
    with hr.DataLoader(images(tmp_path), persistent_workers=False, **options) as loader:
        counts = []
        for content in (good, good[: len(good) // 3], b"", good + b"more", good):
            path.write_bytes(content)
            counts.append(sum(len(labels) for _, labels in loader))
    assert counts[0] == counts[3] == counts[4] == 12
    assert counts[2] == 11
    assert counts[1] in (11, 12)


def test_a_file_that_grows_while_it_is_read_gives_what_it_had(tmp_path):
    jpeg_folder(tmp_path, count=4, classes=1)
    path = tmp_path / "class-0" / "001.jpg"
    os.truncate(path, 50_000_000)
    count, bad = load(tmp_path)
    assert count + len(bad) == 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_no_file_is_named_and_waits_for_nobody(tmp_path, num_workers):
    jpeg_folder(tmp_path, count=6, classes=1)
    folder = tmp_path / "class-0"
    os.mkfifo(folder / "fifo.jpg")
    os.symlink("/dev/zero", folder / "device.jpg")
    listener = socket.socket(socket.AF_UNIX)
    with listener, contextlib.chdir(folder):
        listener.bind("socket.jpg")
        recipe = hr.Recipe(
            source=hr.files(sorted(folder.iterdir())),
            decode=hr.image.decode(),
            augment=[hr.image.resize((16, 16))],
        )
        options = {"batch_size": 3, "num_workers": num_workers, "on_error": "skip", "error_budget": 3}
        with hr.DataLoader(recipe, **options) as loader:
            assert sum(len(batch) for batch in loader) == 6
            bad = {os.path.basename(sample.name): sample.reason for sample in loader.bad_samples}
    assert set(bad) == {"fifo.jpg", "device.jpg", "socket.jpg"}
    assert "a FIFO, and not a regular file" in bad["fifo.jpg"]
    assert "a device or socket, and not a regular file" in bad["device.jpg"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_would_fill_the_memory_is_not_read(tmp_path, num_workers):
    jpeg_folder(tmp_path, count=6, classes=1)
    with open(tmp_path / "class-0" / "003.jpg", "r+b") as file:
        file.truncate(3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count, bad = load(tmp_path, num_workers=num_workers)
    assert count == 5
    assert "3.0 GiB, and at most 1.0 GiB are read" in bad["003.jpg"]
    assert "pass max_bytes=" in bad["003.jpg"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19, "kibibytes"


def test_the_largest_file_that_is_read_can_be_chosen(tmp_path):
    jpeg_folder(tmp_path, count=4, classes=1)
    paths = sorted((tmp_path / "class-0").iterdir())
    paths[1].write_bytes(paths[1].read_bytes() + bytes(100_000))
    for source in (
        hr.files(paths, max_bytes=100_000),
        hr.folder(tmp_path, max_bytes="100kB"),
        hr.folder(tmp_path, labels=False, max_bytes=100_000),
    ):
        read = source.read_many(range(4))
        assert [isinstance(data, bytes) for data in read] == [True, False, True, True]
        assert read[1].errno == errno.EFBIG
    assert len(hr.files(paths, max_bytes="1MB").read_many([1])[0]) > 100_000
    for wrong in (0, -1, "much"):
        with pytest.raises(hr.OptionError, match="max_bytes"):
            hr.files(paths, max_bytes=wrong)
