"""A loader with a disk tier: the same batches, and nothing is read from storage twice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cache.disk import LEAST, DiskTier
from headrace.engine.disk_stage import DiskStage
from headrace.loader import disk_tier
from headrace.planning import Staff
from tests.loader.helpers import (
    assert_same,
    drain,
    flat,
    images,
    jpeg_folder,
    kill,
    recipe,
    targets,
    wait_until,
)
from tests.sharing.fixtures import place as place  # (a host of the test's own)

FORMS = ["encoded", "decoded"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return jpeg_folder(tmp_path / "images")


def make(what: hr.Recipe, disk: Any = None, **options: Any) -> hr.DataLoader[Any]:
    options = {"batch_size": 5, "num_workers": 1, "shuffle": True, "seed": 3, **options}
    return hr.DataLoader(what, disk=disk, **options)


def test_the_default_folder_is_that_of_the_environment(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DISK", str(tmp_path / "here"))
    with make(images(folder), hr.Disk("16MiB", form="encoded")) as loader:
        drain(loader)
        disk = loader.stats().disk
        assert disk is not None and disk.path == str(tmp_path / "here") and disk.budget == LEAST
        assert f"B from {tmp_path / 'here'} (at most 16.0 MiB)" in str(loader.stats())
    monkeypatch.delenv("HEADRACE_DISK")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    with make(images(folder), hr.Disk("16MiB", form="encoded")) as loader:
        drain(loader)
    assert (tmp_path / "caches/headrace/disk/table").exists()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", FORMS)
def test_every_sample_is_read_once_for_all_epochs_and_starts(
    tmp_path: Path, folder: Path, form: str, workers: int
) -> None:
    disk = hr.Disk("16MiB", tmp_path / "disk", form)
    what = images(folder)
    with make(what, num_workers=workers, cache="1MiB", split=(0, 1, 0)) as loader:
        cached = [drain(loader) for _ in range(2)]
    with make(what, num_workers=workers) as loader:
        plain = [drain(loader) for _ in range(2)]
    for start in range(2):
        with make(what, disk, num_workers=workers) as loader:
            ours = [drain(loader) for _ in range(2)]
            stats = loader.stats()
        # (decoded forms are those that a cache in memory would have)
        for mine, theirs in zip(ours, cached if form == "decoded" else plain, strict=True):
            assert_same(mine, theirs)
        # (with workers, the second epoch begins before all of the first is there, and with many it may be over then)
        late = 24 if workers else 0
        assert stats.fetched_samples == 0 if start else 24 <= stats.fetched_samples <= 24 + late
        assert stats.disk is not None and stats.disk.hits >= (48 if start else 24 - late)
        assert stats.disk.bytes > 0 or not start
        if form == "decoded":
            assert stats.decoded == stats.fetched_samples


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_image_is_decoded_again_and_put_in_its_place(
    tmp_path: Path, folder: Path, workers: int
) -> None:
    """A tier may hold whatever somebody put there, with checksums that are right."""
    disk = hr.Disk("16MiB", tmp_path / "disk", "decoded")
    what = images(folder)
    with make(what, num_workers=workers, cache="1MiB", split=(0, 1, 0)) as loader:
        wanted = drain(loader)
    use = disk_tier.use_disk(disk_tier.read_disk(disk), what, cache={}, staff=Staff(1, 1))
    assert use is not None
    there = DiskStage(use, what.source)
    names = there.names(np.arange(24))
    others = [np.zeros(5), np.zeros((4, 4, 3)), {"image": 5}]
    there.keep_decoded({name: others[at % 3] for at, name in enumerate(names)})
    assert None not in there.find(names)
    there.close()
    for start in range(2):
        with make(what, disk, num_workers=workers) as loader:
            assert_same(drain(loader), wanted)
            stats = loader.stats()
            # (with workers, some of the second epoch may be prepared by then, and have been found there or not)
            late = 24 if workers else 0
            assert stats.fetched_samples == 0 if start else 24 <= stats.fetched_samples <= 24 + late
            assert stats.disk is not None and stats.disk.hits >= (24 if start else 0)


def test_jobs_share_what_lies_there(tmp_path: Path) -> None:
    """Also of other orders, subsets and steps: samples are known by what they are."""
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    whole = recipe(60)
    with make(whole, disk) as one:
        drain(one)
        part = hr.Recipe(hr.synthetic.source(60, shape=(4, 5, 3)), decode=hr.synthetic.decode())
        with make(part, disk, batch_size=7) as two:
            drain(two)
            assert two.stats().fetched_samples == 0


def test_a_file_that_changed_is_another_sample(tmp_path: Path, folder: Path) -> None:
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    with make(images(folder), disk, shuffle=False) as loader:
        before = drain(loader)
    changed = sorted(folder.rglob("*.jpg"))[0]
    cv2.imwrite(str(changed), np.full((50, 60, 3), 200, np.uint8))
    with make(images(folder), disk, shuffle=False) as loader:
        after = drain(loader)
        assert loader.stats().fetched_samples == 1
    assert not np.array_equal(before[0][0][0], after[0][0][0])
    with make(images(folder), shuffle=False) as loader:
        assert_same(after, drain(loader))


def test_samples_in_memory_are_not_kept_on_a_disk_that_has_no_room_for_all(tmp_path: Path) -> None:
    """So that memory and disk together hold as much as both have."""
    what = recipe(200, bytes_per_sample=200_000)
    with make(what, hr.Disk("16MiB", tmp_path / "disk", "encoded"), cache="16MiB", split=(1, 0, 0)) as loader:
        for _ in range(3):
            drain(loader)
        stats = loader.stats()
    held = stats.cache["encoded"].samples
    assert held > 60
    assert stats.disk is not None
    # Whatever is in neither is read each time.
    in_both = 200 - (stats.fetched_samples - 200) // 2
    assert in_both >= held + 75


def test_what_memory_keeps_decoded_is_on_disk_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the samples are to be kept decoded there, and memory takes some of them first."""
    monkeypatch.setattr(disk_tier, "_choose", lambda *_: 0.5)
    what = recipe(80, bytes_per_sample=20_000, shape=(20, 20, 3))
    for start in range(2):
        with make(what, hr.Disk("32MiB", tmp_path / "disk"), cache="1MiB") as loader:
            drain(loader)
            drain(loader)
            assert (loader.stats().fetched_samples == 0) == (start == 1)


def test_half_of_a_dataset_on_disk_halves_what_is_read(tmp_path: Path) -> None:
    what = recipe(320, bytes_per_sample=100_000)
    with make(what, hr.Disk(LEAST, tmp_path / "disk", "encoded"), num_workers=2) as loader:
        drain(loader)
        drain(loader)
        stats = loader.stats()
    assert stats.disk is not None
    hits, misses = stats.disk.bytes, stats.fetched_bytes - 320 * 100_000  # (of the third epoch, too)
    assert misses / (hits + misses) <= 1.04 - LEAST / (320 * 100_000), (
        "two in a hundred are what the table takes"
    )


def test_encoded_copies_of_local_files_are_not_made_unless_asked_for(tmp_path: Path, folder: Path) -> None:
    with make(images(folder), hr.Disk("16MiB", tmp_path / "disk")) as loader:
        drain(loader)
        assert loader.stats().disk is None
    assert not (tmp_path / "disk/table").exists()


@pytest.mark.usefixtures("place")
def test_it_goes_with_a_shared_cache(tmp_path: Path, folder: Path) -> None:
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    with make(images(folder), disk, share=True, sampling="uniform") as loader:
        ours = drain(loader)
    with make(images(folder), disk, share=True, sampling="uniform") as loader:
        drain(loader)
        assert loader.stats().fetched_samples == 0
    with make(images(folder), share=True, sampling="uniform") as loader:
        assert_same(ours, drain(loader))


def test_a_loader_that_a_trainer_builds_anew_has_it_too(tmp_path: Path) -> None:
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    first = make(recipe(40), disk)
    with first:
        drain(first)
    again = torch.utils.data.DataLoader(first.dataset, batch_sampler=first.batch_sampler, num_workers=1)
    assert isinstance(again, hr.DataLoader)
    with again:
        drain(again)
        assert again.stats().fetched_samples == 0 and again.stats().disk is not None


@pytest.mark.parametrize("form", FORMS)
def test_collated_samples_too(tmp_path: Path, form: str) -> None:
    def pairs(samples: list[Any]) -> list[int]:
        return [int(label) for _, label in samples]

    disk = hr.Disk("16MiB", tmp_path / "disk", form)
    for start in range(2):
        with make(recipe(40), disk, collate_fn=pairs, shuffle=False) as loader:
            assert [label for batch in loader for label in batch] == list(range(40))
            assert loader.stats().fetched_samples == (0 if start else 40)


def test_bad_samples_are_bad_each_time(tmp_path: Path, folder: Path) -> None:
    bad = sorted(folder.rglob("*.jpg"))[4]
    bad.write_bytes(b"no image")
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    for _ in range(2):
        with make(images(folder), disk, on_error="skip", error_budget=2) as loader:
            drain(loader)
            assert [sample.name for sample in loader.bad_samples] == [str(bad)]


def samples_in(path: Path, nbytes: int) -> int:
    """Of so many bytes each, how many lie there."""
    return sum(file.stat().st_size // nbytes for file in (path / "segments").iterdir())


def ahead_segments(path: Path) -> int:
    disk = DiskTier(str(path), LEAST, b"?" * 16).open()
    try:
        return int(np.count_nonzero(disk._room.table.segments["ahead"]))
    finally:
        disk.close()


@pytest.mark.parametrize("fits", [True, False])
def test_while_the_loop_is_busy_batches_to_come_are_copied(tmp_path: Path, fits: bool) -> None:
    """Further ahead than they are prepared; each sample is read once, and what has no room for long is released."""
    count, nbytes = (600, 10_000) if fits else (900, 25_000)
    path = tmp_path / "disk"
    with make(
        recipe(count, bytes_per_sample=nbytes, latency=0.001), hr.Disk(LEAST, path, "encoded")
    ) as loader:
        if not fits:
            drain(loader)  # it is full now
        for number, _ in enumerate(loader):
            if number == 40 and fits:  # (of 32 batches to come, of which few are prepared)
                assert wait_until(lambda: samples_in(path, nbytes) > 5 * 41 + 100)
            elif number == 40:
                assert wait_until(lambda: ahead_segments(path) > 0)
        stats = loader.stats()
        if fits:
            assert 600 <= stats.fetched_samples <= 640
        else:
            # Of 22.5 MB there is room for 16; some of the third epoch were read, too.
            assert stats.disk is not None
            misses = stats.fetched_samples - 900
            assert misses <= (1 - 0.95 * LEAST / (900 * nbytes)) * (stats.disk.hits + misses) + 20
    assert ahead_segments(path) == 0


@pytest.mark.faults
def test_a_killed_worker_costs_no_sample(tmp_path: Path) -> None:
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    with make(recipe(400, bytes_per_sample=5000, latency=0.002), disk, num_workers=2) as loader:
        seen: list[int] = []
        for number, (_, labels) in enumerate(loader):
            seen += labels.tolist()
            if number == 10:
                kill(next(iter(loader._epochs.session.host.workers)).process.pid)
        assert sorted(seen) == list(range(400))
        assert sorted(flat(targets(loader))) == list(range(400))
        assert loader.stats().restarts >= 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=3m", "headrace-test", str(path)]
    if os.geteuid() or subprocess.run(options, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root and the right to mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.faults
@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_costs_speed_and_nothing_else(small_disk: Path, form: str) -> None:
    with make(recipe(60, bytes_per_sample=100_000), hr.Disk("16MiB", small_disk / "disk", form)) as loader:
        for _ in range(2):
            assert sorted(flat(targets(loader))) == list(range(60))
        disk = loader.stats().disk
        assert disk is not None and (form == "decoded" or disk.hits > 10)


@pytest.mark.faults
def test_a_folder_that_is_taken_away_costs_a_warning(tmp_path: Path) -> None:
    loader = make(recipe(40), hr.Disk("16MiB", tmp_path / "disk", "encoded"), num_workers=0)
    (tmp_path / "disk").rmdir()
    (tmp_path / "disk").write_text("a file in its place")
    with loader, pytest.warns(UserWarning, match="the tier .* is not used"):
        assert sorted(flat(targets(loader))) == list(range(40))


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_that_is_removed_while_a_job_runs_costs_speed(tmp_path: Path, workers: int) -> None:
    disk = hr.Disk("16MiB", tmp_path / "disk", "encoded")
    with make(recipe(200, bytes_per_sample=20_000), disk, num_workers=workers) as loader:
        seen: list[int] = []
        for number, (_, labels) in enumerate(loader):
            if number == 5:
                (tmp_path / "disk").rename(tmp_path / "gone")  # (at once, whoever writes to it)
            seen += labels.tolist()
        assert sorted(seen) == list(range(200))
        assert sorted(flat(targets(loader))) == list(range(200))


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        ("much", "disk='much' is not a size"),
        ("1MiB", "has at least 16.0 MiB; write a size such as '200GiB'"),
        (hr.Disk("1GiB", form="augmented"), "choose one of 'auto', 'encoded', 'decoded'"),
        (hr.Disk("1GiB", "/proc/nowhere"), "'/proc/nowhere' cannot be used"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(disk: Any, words: str) -> None:
    with pytest.raises(hr.OptionError, match=words):
        make(recipe(), disk)


def test_a_dataset_needs_a_recipe() -> None:
    with pytest.raises(hr.OptionError, match="disk= needs a recipe"):
        hr.DataLoader([1, 2, 3], disk="1GiB")


def test_none_is_none() -> None:
    for disk in (None, 0, "0GiB"):
        with make(recipe(), disk) as loader:
            drain(loader)
            assert loader.stats().disk is None
