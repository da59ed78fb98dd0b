"""From measurements to what models rest on, and to what limits a recipe."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.measure import Machine, Profile, find_limits, load_profile, save_profile, take_profile
from headrace.measure.cpu import CPU, Rate, Stage
from headrace.measure.memory import Bandwidth
from headrace.measure.sizes import Sizes, Spread
from headrace.measure.storage import Reading, Storage
from headrace.planning import bottleneck
from headrace.planning.search import grid, search

PROFILE = Profile(
    fingerprint="f" * 64,
    machine=Machine("host", "model", cpus=4, memory=16),
    label="data",
    samples=1000,
    taken=0.0,
    sizes=Sizes(Spread(100.0, 1, 90, 110), Spread(500.0, 1, 400, 600), Spread(200.0, 0, 200, 200)),
    storage=Storage(
        cold=[Reading(1, 10, 1e3, 0.1, 0.2), Reading(2, 30, 3e3, 0.1, 0.2), Reading(4, 20, 2e3, 0.1, 0.2)],
        warm=[Reading(1, 1e4, 1e6, 1e-5, 1e-4)],
        cpu=1e-4,
        dropped=True,
        from_memory=False,
    ),
    cpu=CPU(
        prepare=Stage(0.04, 90.0), uncached=Stage(0.03, 120.0), decode=Stage(0.03, 100.0),
        augment=Stage(0.01, 400.0), copy=Stage(1e-4, 40_000.0),
    ),
    memory=[Bandwidth(1, 4e9, 3e9), Bandwidth(4, 6e9, 5e9)],
)  # fmt: skip


def test_terms_are_the_best_that_was_measured() -> None:
    terms = PROFILE.terms(cache=1e4, jobs=3, ingest=500.0)
    assert terms is not None
    assert (terms.samples, terms.encoded, terms.decoded, terms.augmented) == (1000, 100, 500, 200)
    assert (terms.cache, terms.jobs, terms.ingest) == (1e4, 3, 500)
    assert (terms.prepare, terms.augment, terms.copy) == (90, 400, 40_000)
    assert terms.storage == 3e3
    assert terms.fetch == pytest.approx(4 / 1e-4)
    assert terms.cache_link == 6e9


def test_without_a_cache_samples_are_prepared_by_the_other_program() -> None:
    terms = PROFILE.terms(cache=0.0)
    assert terms is not None and terms.prepare == 120


def test_what_is_not_known_has_no_limit() -> None:
    bare = msgspec.structs.replace(PROFILE, storage=None, memory=[])
    terms = bare.terms(cache=0.0)
    assert terms is not None
    assert (terms.storage, terms.fetch, terms.cache_link, terms.ingest) == (math.inf,) * 4
    for missing in ("sizes", "cpu"):
        assert msgspec.structs.replace(PROFILE, **{missing: None}).terms(cache=0.0) is None
        assert find_limits(msgspec.structs.replace(PROFILE, **{missing: None})) == []


def test_forms_that_cannot_be_cached_are_of_no_use_to_a_planner() -> None:
    assert PROFILE.sizes is not None and PROFILE.cpu is not None
    sizes = msgspec.structs.replace(PROFILE.sizes, encoded=None, decoded=None)
    cpu = msgspec.structs.replace(PROFILE.cpu, augment=None)
    terms = msgspec.structs.replace(PROFILE, sizes=sizes, cpu=cpu, storage=None).terms(cache=1e12)
    assert terms is not None
    # However they are given room, nothing is gained.
    assert search(terms).throughput == pytest.approx(90.0, rel=0.02)
    assert (bottleneck.throughput(terms, grid()) <= 90.0 * (1 + 1e-9)).all()


def test_a_thread_that_had_a_cpu_for_itself_is_told_from_one_that_had_not() -> None:
    assert PROFILE.cpu is not None and PROFILE.cpu.got is None
    for rate, got in ((100.0, 1.0), (25.0, 1.0), (10.0, 0.4)):
        cpu = msgspec.structs.replace(PROFILE.cpu, prepare=Stage(0.04, 90.0, [Rate(1, rate), Rate(2, 1e3)]))
        assert cpu.got == pytest.approx(got)


def test_limits_by_hand() -> None:
    cold, memory, decoded = find_limits(PROFILE)
    assert (cold.where, cold.resource, cold.rate) == ("cold", "storage", pytest.approx(3e3 / 100))
    each = 1 / 120 + 1 / 4e4  # preparing, and reading
    assert (memory.where, memory.resource, memory.rate) == ("memory", "cpu", pytest.approx(1 / each))
    assert (decoded.where, decoded.resource, decoded.rate) == ("decoded", "cpu", pytest.approx(400))


def test_storage_that_was_not_seen_is_no_limit() -> None:
    assert PROFILE.storage is not None
    hidden = msgspec.structs.replace(PROFILE.storage, from_memory=True)
    assert [limit.where for limit in find_limits(msgspec.structs.replace(PROFILE, storage=hidden))] == [
        "memory",
        "decoded",
    ]


@given(*[st.floats(1e-3, 1e9)] * 4)
def test_storage_never_makes_it_faster(storage: float, uncached: float, augment: float, link: float) -> None:
    assert PROFILE.cpu is not None and PROFILE.storage is not None
    profile = msgspec.structs.replace(
        PROFILE,
        cpu=msgspec.structs.replace(PROFILE.cpu, uncached=Stage(1.0, uncached), augment=Stage(1.0, augment)),
        storage=msgspec.structs.replace(PROFILE.storage, cold=[Reading(1, 1.0, storage, 0.1, 0.1)]),
        memory=[Bandwidth(1, link, link)],
    )
    cold, memory, decoded = find_limits(profile)
    assert 0 < cold.rate <= memory.rate * (1 + 1e-9)
    assert cold.resource in ("storage", "cpu") and memory.resource == "cpu"
    assert decoded.rate == pytest.approx(min(augment, link / 500))


def test_a_whole_profile_of_images(photos: Path, kept: Path) -> None:
    recipe = hr.Recipe(
        hr.folder(photos), hr.image.decode(), [hr.image.random_resized_crop(32), hr.image.horizontal_flip()]
    )
    seen: list[tuple[str, float]] = []
    profile = take_profile(recipe, 0.8, lambda what, share: seen.append((what, share)))
    assert list(dict.fromkeys(what for what, _ in seen)) == ["storage", "samples", "cpu", "memory"]
    shares = [share for _, share in seen]
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    assert profile.fingerprint == recipe.profile_key
    assert profile.samples == 24 and profile.machine == Machine.here()
    assert profile.sizes is not None
    assert profile.sizes.augmented == Spread(32 * 32 * 3, 0.0, 32 * 32 * 3, 32 * 32 * 3)
    assert profile.sizes.decoded is not None
    # Of as many photos as there was time for: they grow by a line each. An extent has a header.
    possible = [64 + height * 160 * 3 for height in range(120, 144)]
    assert profile.sizes.decoded.least in possible and profile.sizes.decoded.most in possible
    assert profile.sizes.decoded.least <= profile.sizes.decoded.mean <= profile.sizes.decoded.most
    encoded = [path.stat().st_size for path in photos.rglob("*.jpg")]
    assert profile.sizes.encoded is not None
    assert profile.sizes.encoded.least in encoded and profile.sizes.encoded.most in encoded
    assert profile.memory and all(at.out > 0 and at.into > 0 for at in profile.memory)
    save_profile(profile)
    assert load_profile(recipe) == profile
    assert {"memory", "decoded"} <= {limit.where for limit in find_limits(profile)}


def test_slow_storage_is_found_to_be_the_limit(kept: Path) -> None:
    slow = hr.Recipe(hr.synthetic.source(500, bytes_per_sample=10_000, bandwidth=1e6), hr.synthetic.decode())
    cold, memory, _ = find_limits(take_profile(slow, 1.5))
    assert cold.resource == "storage" and 30 < cold.rate < 200
    assert memory.rate > cold.rate


def test_a_source_of_paths_has_no_storage_of_its_own(photos: Path) -> None:
    paths = sorted(photos.rglob("*.jpg"))
    recipe = hr.Recipe(
        hr.files(paths, encoded=False), lambda path: np.fromfile(path.decode(), np.uint8)[:100].copy()
    )
    profile = take_profile(recipe, 0.5)
    assert profile.storage is None
    assert profile.sizes is not None and profile.sizes.encoded is None
    assert [limit.where for limit in find_limits(profile)] == ["memory", "decoded"]


@pytest.mark.slow
def test_the_same_samples_are_taken_each_time() -> None:
    class Noting(type(hr.synthetic.source(1))):  # type: ignore[misc]
        """Notes which samples are read."""

        def read_many(self, indices: object) -> object:
            self.read.update(int(index) for index in indices)  # type: ignore[attr-defined]
            return super().read_many(indices)

    taken = []
    for _ in range(2):
        source = hr.synthetic.source(100_000, latency=0.02, bytes_per_sample=100)
        source.__class__, source.read = Noting, set()  # type: ignore[attr-defined]
        take_profile(hr.Recipe(source, None), 0.5)
        taken.append(source.read)  # type: ignore[attr-defined]
    assert len(taken[0] & taken[1]) > 0.5 * min(len(taken[0]), len(taken[1]))
    assert max(taken[0]) > 50_000  # from all over the dataset
