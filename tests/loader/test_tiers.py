"""A loader whose cache has a second tier, a file on disk: nobody sees it in the batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cache import extents
from headrace.coordinate.directory import Directory, TierTerms
from headrace.core.addresses import Tier, tiers_of, unpack
from headrace.core.forms import Form
from headrace.core.sparse import PAGE, punch, resident
from headrace.engine.store import Cache
from headrace.loader.sessions import HostParts
from tests.cache.file_tier import FileTier
from tests.loader.helpers import assert_same, counting, drain, images, jpeg_folder

SIZE = 50
SHAPE = (64, 42, 3)
EACH = 2 * PAGE
"""What a sample costs, encoded or decoded: two pages."""
assert EACH - PAGE < extents.array_size(SHAPE, "uint8") <= EACH
Tiered = Callable[..., FileTier]


@pytest.fixture
def tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiered:
    """Gives the loaders that are made from now on a file of so many bytes beside their arena."""

    def make(budget: int, form: Form = Form.DECODED) -> FileTier:
        tier = FileTier.make(str(tmp_path / "cache"), 1 << 30)
        terms = TierTerms(tier.span, {form: budget})
        build = HostParts.build.__func__  # type: ignore[attr-defined]

        def with_file(cls: type[HostParts], samples: int, budgets: dict[Form, int]) -> HostParts:
            parts: HostParts = build(cls, samples, budgets)
            assert isinstance(parts.cache, Cache)
            parts.cache.beside = {Tier.DISK: tier}
            parts.directory = Directory(samples, budgets, parts.cache.span, {Tier.DISK: terms})
            return parts

        monkeypatch.setattr(HostParts, "build", classmethod(with_file))
        return tier

    return make


def make(recipe: hr.Recipe, **options: Any) -> hr.DataLoader:
    terms = {"batch_size": 8, "shuffle": True, "seed": 4, "num_workers": 2, "cache": PAGE}
    return hr.DataLoader(recipe, **{**terms, "split": (0, 1, 0), **options})


def directory(loader: hr.DataLoader) -> Directory:
    found = loader._epochs.session.host.coordinator.directory
    assert isinstance(found, Directory)
    return found


def epochs(loader: hr.DataLoader, count: int = 3) -> list[Any]:
    """Batches of some epochs."""
    return [drain(loader) for _ in range(count)]


def check(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("form", [Form.ENCODED, Form.DECODED])
def test_what_has_no_room_in_the_arena_is_read_from_the_file(
    num_workers: int, form: Form, tiered: Tiered
) -> None:
    split = (1, 0, 0) if form == Form.ENCODED else (0, 1, 0)
    with make(counting(SIZE, shape=SHAPE)[0], num_workers=num_workers, split=split) as loader:
        expected = epochs(loader)
        assert not any(directory(loader).samples.values()), "the arena has no room for any"
    recipe, source = counting(SIZE, shape=SHAPE)
    tier = tiered(SIZE * EACH, form)
    with make(recipe, num_workers=num_workers, split=split) as loader:
        check(epochs(loader), expected)
        found = directory(loader)
        assert found.samples[form] == SIZE and found.pool.rooms[Tier.DISK].used == SIZE * EACH
        addresses = found._shelves[form].find(list(range(SIZE)))[0]
        assert set(tiers_of(addresses).tolist()) == {Tier.DISK}
        hits = found.hits
        # (what the second epoch begins with is ordered before the first has ended)
        assert hits[form] + hits[Form.NONE] >= 3 * SIZE and hits[form] >= 2 * SIZE - 4 * 8
        assert int(source.reads.sum()) == hits[Form.NONE], "and nothing else was read"
        reading = found.pool.savings._reading[Tier.DISK]
        assert (
            reading.count >= (2 * SIZE - 4 * 8) * SHAPE[0] * SHAPE[1] * SHAPE[2] / 2 and reading.seconds > 0
        )
        assert found._took.rows or found.pool.savings._all.augment.count, "workers' reports are learned from"
    assert SIZE * EACH // 2 < resident_of(tier) <= SIZE * EACH + PAGE


def resident_of(tier: FileTier) -> int:
    return os.stat(tier.path).st_blocks * 512


def test_arena_and_file_share_the_samples(tiered: Tiered) -> None:
    recipe, _ = counting(SIZE, shape=SHAPE)
    with make(recipe) as loader:
        expected = epochs(loader)
    tiered(20 * EACH)
    with make(recipe, cache=20 * EACH) as loader:
        check(epochs(loader), expected)
        shelf = directory(loader)._shelves[Form.DECODED]
        tiers = tiers_of(shelf.find(shelf.cached.ids().tolist())[0]).tolist()
        assert tiers.count(Tier.ARENA) == 20 == tiers.count(Tier.DISK)


def test_images_are_the_same_from_a_file(tiered: Tiered, tmp_path: Path) -> None:
    recipe = images(jpeg_folder(tmp_path / "images"))
    with make(recipe, cache="8MiB") as loader:
        expected = epochs(loader)
        assert directory(loader).samples[Form.DECODED] == 24
    tiered(8 << 20)
    with make(recipe) as loader:
        check(epochs(loader), expected)
        assert directory(loader).samples[Form.DECODED] == 24


@pytest.mark.parametrize("left", [0, 1, EACH // 2, 7 * EACH + 100])
def test_a_file_that_was_cut_off_costs_reads_and_no_sample(left: int, tiered: Tiered) -> None:
    with make(counting(SIZE, shape=SHAPE)[0]) as loader:
        expected = epochs(loader)
    recipe, source = counting(SIZE, shape=SHAPE)
    tier = tiered(SIZE * EACH)
    with make(recipe) as loader:
        first = epochs(loader, 2)
        before = int(source.reads.sum())
        os.truncate(tier.path, left)
        check([*first, *epochs(loader, 1)], expected)
        # (some of the third epoch was prepared before)
        assert int(source.reads.sum()) - before >= SIZE - left // EACH - 4 * 8


def test_damaged_lengths_are_not_believed(tiered: Tiered) -> None:
    """Headers in the file speak of more than there is."""
    with make(counting(SIZE, shape=SHAPE)[0]) as loader:
        expected = epochs(loader)
    recipe, _ = counting(SIZE, shape=SHAPE)
    tier = tiered(SIZE * EACH)
    with make(recipe) as loader:
        first = epochs(loader, 2)
        shelf = directory(loader)._shelves[Form.DECODED]
        cached = shelf.cached.ids().tolist()
        assert len(cached) > SIZE // 2
        with open(tier.path, "r+b") as file:
            for address in shelf.find(cached)[0].tolist():
                file.seek(unpack(address)[1] + 16)
                file.write(b"\xff" * 8)
        check([*first, *epochs(loader, 1)], expected)


def test_a_smaller_budget_holds_for_the_file(tiered: Tiered) -> None:
    recipe, _ = counting(SIZE, shape=SHAPE)
    with make(recipe) as loader:
        expected = epochs(loader)
    tier = tiered(SIZE * EACH)
    with make(recipe) as loader:
        first = epochs(loader, 2)
        found = directory(loader)
        found.set_split({Form.DECODED: 10 * EACH}, Tier.DISK)
        room = found.pool.rooms[Tier.DISK]
        assert (
            room.used <= 10 * EACH + sum(map(len, (shelf.busy for shelf in found._shelves.values()))) * EACH
        )
        check([*first, *epochs(loader, 1)], expected)
        found.pool.fit()
        assert room.used <= 10 * EACH and found.samples[Form.DECODED] <= 10
        with open(tier.path, "r+b") as file:
            while ranges := found.pool.loose(resident(file.fileno()), tier=Tier.DISK):
                for start, end in ranges:
                    punch(file.fileno(), start, end)
            assert resident(file.fileno()) <= 11 * EACH
        check(epochs(loader, 1), epochs_from(recipe, 3))


def epochs_from(recipe: hr.Recipe, epoch: int) -> list[Any]:
    """One epoch of a loader without a file."""
    with make(recipe) as loader:
        return epochs(loader, epoch + 1)[-1:]
