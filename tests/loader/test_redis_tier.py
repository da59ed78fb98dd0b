"""A loader with a tier in a server: the same batches, nothing read from storage twice, and no harm in its loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.errors import OptionError
from tests.cache.valkey import Valkey
from tests.loader.helpers import assert_same, drain, images, jpeg_folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    made = Valkey(tmp_path)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return jpeg_folder(tmp_path / "images")


def make(what: Any, **options: Any) -> hr.DataLoader[Any]:
    return hr.DataLoader(what, **{"batch_size": 5, "num_workers": 1, "shuffle": True, "seed": 3, **options})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["encoded", "decoded"])
def test_every_sample_is_read_once_for_all_epochs_and_starts(
    server: Valkey, folder: Path, form: str, workers: int
) -> None:
    what = images(folder)
    plain = {"cache": "1MiB", "split": (0, 1, 0)} if form == "decoded" else {}
    with make(what, num_workers=workers, **plain) as loader:
        wanted = [drain(loader) for _ in range(2)]
    for start in range(2):
        with make(what, num_workers=workers, tier=hr.Redis(server.url, "64MiB", form)) as loader:
            for theirs in wanted:
                assert_same(drain(loader), theirs)
            stats = loader.stats()
        assert stats.disk is not None and stats.disk.path == server.url
        assert f"tier        {stats.disk.hits} samples" in str(stats)
        if start:
            assert stats.fetched_samples == 0, "the start before has left all of them there"


def test_a_server_that_is_killed_costs_reads_and_no_sample(server: Valkey, folder: Path) -> None:
    what = images(folder)
    with make(what) as loader:
        wanted = [drain(loader) for _ in range(4)]
    with make(what, tier=server.url) as loader:
        for epoch, theirs in enumerate(wanted):
            assert_same(drain(loader), theirs)
            if epoch == 1:
                server.kill()
        assert loader.stats().restarts == 0


def test_options_are_checked(folder: Path, tmp_path: Path) -> None:
    what = images(folder)
    for tier, said in (
        ("http://host", "expected a URL"),
        (7, "write a URL"),
        (hr.Redis("redis://host", "1KiB"), "at least"),
        (hr.Redis("redis://host", form="auto"), "choose one of"),
    ):
        with pytest.raises(OptionError, match=said):
            make(what, tier=tier)
    with pytest.raises(OptionError, match="give one of them"):
        make(what, tier="redis://host", disk=hr.Disk("16MiB", tmp_path / "disk"))
    with pytest.raises(OptionError, match="needs a recipe"):
        make([1, 2, 3], tier="redis://host")
    assert "secret" not in repr(hr.Redis("redis://me:secret@host"))
