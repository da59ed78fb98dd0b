"""Loaders learn of their recipe unasked, and begin with what is known; whatever happens to the files, jobs go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.coordinate import own_split
from headrace.core.forms import Form
from headrace.loader import learning
from headrace.loader.learning import Learning
from headrace.loader.sharing import job_name
from headrace.measure import Machine, Profile, Seen, learn, load_profile, profile_files, save_profile
from headrace.measure.cpu import CPU, Rate, Stage
from headrace.measure.memory import Bandwidth
from headrace.measure.seen import Cost
from headrace.measure.sizes import Sizes, Spread
from headrace.measure.storage import Reading, Storage
from tests.loader.helpers import assert_same, drain, images, jpeg_folder, recipe

SHAPE = (64, 64, 3)
SAMPLES = 300
CACHE = SAMPLES * 1024
"""A quarter of all samples, if they are encoded; a twelfth, if they are decoded."""
SLOW = 2e6
DECODED = 64 * 64 * 3 + 64
KNOWN = Seen(
    at=0.0,
    encoded=4096.0,
    decoded=float(DECODED),
    augmented=float(DECODED),
    decode=Cost(2e-3, 2e-3),
    augment=Cost(5e-5, 5e-5),
    fetch=5e-5,
    supply=1e9,
    fetchers=8,
)


BATCHES = learning._BATCHES


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (own_split, learning):
        monkeypatch.setattr(module, "LOOK_EVERY", 0.1)
    # On a busy machine these loops, too, may be what limits: then any split is as good as another.
    monkeypatch.setattr(learning, "_BATCHES", 1 << 30)


def data(*, bandwidth: float | None = None, spin: float = 0.0) -> hr.Recipe:
    """The same recipe whatever storage is like."""
    source = hr.synthetic.source(SAMPLES, bytes_per_sample=4096, shape=SHAPE, bandwidth=bandwidth, classes=9)
    return hr.Recipe(source, decode=hr.synthetic.decode(cost=spin))


def loader(of: hr.Recipe, **options: Any) -> Any:
    return hr.DataLoader(
        of, **{"batch_size": 10, "shuffle": True, "seed": 1, "cache": CACHE, "num_workers": 2, **options}
    )


def budgets(made: Any) -> tuple[int, int]:
    found = made.stats().cache
    return found["encoded"].budget, found["decoded"].budget


def begin(made: Any) -> tuple[int, int]:
    """How the cache is split when the first batch has come, before anything could be measured."""
    next(iter(made))
    return budgets(made)


def known(of: hr.Recipe) -> Profile:
    found = load_profile(of)
    assert found is not None
    return found


def files() -> list[Path]:
    return [path for path in profile_files.profiles_dir().rglob("*") if path.is_file()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_start_knows(num_workers: int) -> None:
    slow = data(bandwidth=SLOW)
    with loader(slow, num_workers=num_workers) as first:
        assert begin(first) == (0, CACHE)
        for _ in range(6):
            drain(first)
        learned = budgets(first)
        assert learned[0] > learned[1]
    seen = known(slow).seen
    assert seen is not None
    assert (seen.encoded, seen.decoded) == (4096, DECODED)
    assert seen.supply is not None and 0 < seen.supply < 4 * SLOW
    if num_workers:
        storage = seen.storage
        assert storage is not None, "preparing waited for it"
        assert 0 < storage.bytes < 2.5 * SLOW  # each process has a pipe of its own
        assert storage.latency * storage.bytes / 4096 == pytest.approx(storage.reads)
    else:
        assert seen.storage is None, "who prepares by himself never waits for fetching beside"
    with loader(data(bandwidth=SLOW), num_workers=num_workers) as second:
        assert begin(second) == learned


def test_storage_that_has_become_slower_is_found_out() -> None:
    slow = data(bandwidth=SLOW)
    assert learn(slow, seen=msgspec.structs.replace(KNOWN, at=time.time()))
    with loader(slow) as made:
        assert begin(made) == (0, CACHE)
        for _ in range(6):
            drain(made)
        encoded, decoded = budgets(made)
        assert encoded > decoded
    seen = known(slow).seen
    assert seen is not None and seen.supply is not None and seen.supply < 4 * SLOW


@pytest.mark.slow
def test_storage_that_has_become_faster_is_found_out() -> None:
    fast = data(spin=2e-3)
    assert learn(fast, seen=msgspec.structs.replace(KNOWN, at=time.time(), supply=2e5))
    with loader(fast) as made:
        assert begin(made) == (CACHE, 0)
        for _ in range(4):
            drain(made)
        encoded, decoded = budgets(made)
        assert decoded > encoded


def test_batches_are_the_same_whatever_is_known() -> None:
    slow = data(bandwidth=SLOW)
    with loader(slow) as unknowing:
        first = [drain(unknowing) for _ in range(3)]
    assert known(slow).seen is not None
    with loader(slow) as knowing:
        assert_same(first[0], drain(knowing))
        assert budgets(knowing)[0] > 0
        for epoch in first[1:]:
            assert_same(epoch, drain(knowing))


def test_images_are_the_same_whatever_is_known(tmp_path: Path) -> None:
    """Those that are not kept decoded are read and augmented in one go."""
    photos = images(jpeg_folder(tmp_path / "photos"))
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 1, "cache": 24 * 1024}
    with loader(photos, **options) as unknowing:
        assert begin(unknowing) == (0, 24 * 1024)
        first = [drain(unknowing) for _ in range(3)]
    of = msgspec.structs.replace(KNOWN, at=time.time() + 60, encoded=1024.0, decoded=8e3, supply=1e3)
    assert learn(photos, seen=of)
    with loader(photos, **options) as knowing:
        assert begin(knowing) == (24 * 1024, 0)
        for epoch in first:
            assert_same(epoch, drain(knowing))


def test_what_the_command_measured_is_used_and_stays() -> None:
    slow = data(bandwidth=SLOW)
    spread = Spread(4096.0, 0.0, 4096, 4096), Spread(float(DECODED), 0.0, DECODED, DECODED)
    reading = Reading(1, SLOW / 4096, SLOW, 1e-3, 2e-3)
    stage = Stage(1e-4, 2e4, [Rate(1, 1e4)])
    careful = Profile(
        fingerprint=slow.fingerprint(Form.AUGMENTED),
        machine=Machine.here(),
        label="data",
        samples=SAMPLES,
        taken=time.time(),
        sizes=Sizes(spread[0], spread[1], spread[1]),
        storage=Storage([reading], [reading], 1e-5, None, False),
        cpu=CPU(prepare=stage, uncached=stage, augment=stage),
        memory=[Bandwidth(1, 1e9, 1e9)],
    )
    save_profile(careful)
    with loader(slow) as made:
        assert begin(made) == (CACHE, 0)
        for _ in range(2):
            drain(made)
    after = known(slow)
    assert after.seen is not None
    assert msgspec.structs.replace(after, seen=None, consumption={}) == careful


def test_a_job_that_is_killed_has_learned_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_FIRST", 0.3)
    slow = data(bandwidth=SLOW / 8)
    with loader(slow, num_workers=2) as made:
        for _ in made:
            if files():
                break
        else:
            raise AssertionError("nothing was kept in the first epoch")
        assert known(slow).seen is not None


def test_without_a_cache_the_other_program_is_learned() -> None:
    plain = data(spin=1e-4)
    with loader(plain, cache=None) as made:
        for _ in range(3):
            drain(made)
    seen = known(plain).seen
    assert seen is not None and seen.decode is None and seen.augment is None
    assert seen.uncached is not None and seen.uncached.cpu > 0.5e-4
    assert seen.uncached.seconds >= seen.uncached.cpu


def test_the_pace_of_the_loop_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither waiting for batches nor what happens between epochs counts."""
    monkeypatch.setattr(learning, "_BATCHES", BATCHES)
    monkeypatch.setattr(learning, "_BUSY", 0.05)
    now = [time.perf_counter()]
    monkeypatch.setattr(learning, "time", SimpleNamespace(perf_counter=lambda: now[0], time=time.time))
    asked = Learning.asked

    def ask_and_wait(self: Learning) -> None:
        asked(self)
        now[0] += 2.0

    monkeypatch.setattr(Learning, "asked", ask_and_wait)
    with loader(data(), cache=None) as made:
        for _ in range(2):
            for _ in made:
                now[0] += 0.004
            now[0] += 50.0
    (name, rate), *others = known(data()).consumption.items()
    assert name == job_name() and not others
    assert rate == pytest.approx(10 / 0.004)


def test_a_few_batches_are_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_BATCHES", BATCHES)
    with loader(data(), batch_size=100) as made:
        for _ in made:
            time.sleep(0.3)
    assert known(data()).consumption == {}


def test_samples_too_few_to_say_anything_are_not_kept() -> None:
    with loader(data(), batch_size=10, prefetch_factor=1) as made:
        next(iter(made))
    assert not files()


def test_one_who_does_not_want_profiles_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = data(bandwidth=SLOW)
    assert learn(slow, seen=msgspec.structs.replace(KNOWN, at=time.time(), supply=2e5))
    (path,) = files()
    before = path.read_bytes()
    monkeypatch.setenv("HEADRACE_PROFILES", "0")
    with loader(slow) as made:
        assert begin(made) == (0, CACHE), "not read"
        drain(made)
        drain(made)
    assert path.read_bytes() == before, "not written"


def test_where_nothing_can_be_written_jobs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with loader(data()) as made:
        assert len(drain(made)) == 30
    assert blocked.read_text() == ""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("unheard of")])
def test_a_write_that_fails_is_no_matter_of_the_job(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(profile_files, "write_json", fail)
    with loader(data()) as made:
        for _ in range(2):
            assert len(drain(made)) == 30
    assert tried and not files()


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00 nothing", b'{"version": 1}', b"a third of the real one", b"silly numbers"]
)
def test_a_damaged_file_counts_as_none_and_is_made_good(content: bytes) -> None:
    slow = data(bandwidth=SLOW)
    assert learn(slow, seen=msgspec.structs.replace(KNOWN, at=time.time(), supply=2e5))
    (path,) = files()
    whole = path.read_bytes()
    if content.startswith(b"a third"):
        content = whole[: len(whole) // 3]
    elif content.startswith(b"silly"):
        content = whole.replace(b"4096.0", b"-4096.0").replace(b"0.002", b"1e300")
    path.write_bytes(content)
    with loader(slow) as made:
        assert begin(made) == (0, CACHE)
        drain(made)
        drain(made)
    seen = known(slow).seen
    assert seen is not None and seen.encoded == 4096


class Anonymous:
    """A step that cannot be told from another."""

    __slots__ = ()

    def __call__(self, value: bytes) -> Any:
        return hr.synthetic.decode()(value, (8,))

    def __reduce_ex__(self, protocol: object) -> str:
        raise TypeError("no")


class Nameless(type(hr.synthetic.source(1))):  # type: ignore[misc]
    """A source that never learned to describe itself."""

    def fingerprint(self) -> str:
        raise NotImplementedError("one day")


@pytest.mark.parametrize("of", ["step", "source"])
def test_recipes_that_cannot_be_told_apart_are_not_learned(of: str) -> None:
    if of == "step":
        odd = hr.Recipe(hr.synthetic.source(40, bytes_per_sample=64, classes=3), Anonymous())
    else:
        odd = hr.Recipe(Nameless(40, 64, 64, (8,), 0.0, None, 3), hr.synthetic.decode())
    with loader(odd, num_workers=0) as made:
        for _ in range(3):
            assert len(drain(made)) == 4
    assert not files()


def test_one_rank_of_each_machine_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    with loader(recipe(), cache=None, rank=1, world_size=2, num_workers=0) as made:
        drain(made)
    assert not files()
    with loader(recipe(), cache=None, rank=0, world_size=2, num_workers=0) as made:
        for _ in range(3):
            drain(made)
    assert len(files()) == 1
    assert learning.first_here(0) and not learning.first_here(3)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert learning.first_here(8), "the first rank of the second machine"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not learning.first_here(1)


def test_a_fork_of_the_job_keeps_nothing() -> None:
    with loader(data(), num_workers=0) as made:
        drain(made)
        child = os.fork()
        if child == 0:
            made._epochs.session._learning.close(made._epochs.session.workers, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not files()
    assert len(files()) == 1


def test_what_is_learned_is_kept_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading happens once, and writing not after every epoch."""
    monkeypatch.setattr(learning, "_FIRST", 3600.0)
    called: list[str] = []

    def counted(name: str) -> Any:
        real = getattr(learning, name)
        return lambda *args, **options: (called.append(name), real(*args, **options))[1]

    for name in ("load_profile", "learn"):
        monkeypatch.setattr(learning, name, counted(name))
    with loader(data(), num_workers=0) as made:
        for _ in range(20):
            drain(made)
        assert called == ["load_profile"], "short epochs"
    assert called == ["load_profile", "learn"]
