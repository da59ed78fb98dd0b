"""Profiles come back as they were kept; and whatever lies in the files, it is never an error."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.core.forms import Form
from headrace.measure import (
    Machine,
    Profile,
    forget_profile,
    learn,
    load_profile,
    profile_files,
    save_profile,
)
from headrace.measure.cpu import CPU, Rate, Stage
from headrace.measure.memory import Bandwidth
from headrace.measure.profile import VERSION
from headrace.measure.sizes import Sizes, Spread
from headrace.measure.storage import Reading, Storage

numbers = st.floats(1e-9, 1e15)
counts = st.integers(0, 2**53)
spreads = st.none() | st.builds(Spread, numbers, numbers, counts, counts)
readings = st.lists(st.builds(Reading, counts, numbers, numbers, numbers, numbers), min_size=1, max_size=3)
storages = st.none() | st.builds(
    Storage, readings, readings, numbers, st.none() | st.booleans(), st.booleans()
)
stages = st.builds(Stage, numbers, numbers, st.lists(st.builds(Rate, counts, numbers), max_size=3))
cpus = st.none() | st.builds(
    CPU, stages, stages, st.none() | stages, st.none() | stages, st.none() | stages, st.none() | numbers
)
profiles = st.builds(
    Profile,
    fingerprint=st.just(""),
    machine=st.just(Machine.here()),
    label=st.text(),
    samples=counts,
    taken=numbers,
    sizes=st.none() | st.builds(Sizes, spreads, spreads, spreads),
    storage=storages,
    cpu=cpus,
    memory=st.lists(st.builds(Bandwidth, counts, numbers, numbers), max_size=3),
    consumption=st.dictionaries(st.text(), numbers, max_size=3),
)
RECIPE = hr.Recipe(hr.synthetic.source(10), hr.synthetic.decode())
OTHER = hr.Recipe(hr.synthetic.source(11), hr.synthetic.decode())
SETTINGS = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def known(**more: object) -> Profile:
    fingerprint = RECIPE.fingerprint(Form.AUGMENTED)
    return Profile(fingerprint, Machine.here(), "data", 10, 1.5, **more)  # type: ignore[arg-type]


@SETTINGS
@given(profiles)
def test_what_is_kept_comes_back(kept: Path, profile: Profile) -> None:
    forget_profile(RECIPE)
    profile = msgspec.structs.replace(profile, fingerprint=RECIPE.fingerprint(Form.AUGMENTED))
    path = save_profile(profile)
    assert path.is_relative_to(kept)
    assert load_profile(RECIPE) == profile
    assert load_profile(OTHER) is None
    assert forget_profile(RECIPE) and not forget_profile(RECIPE)
    assert load_profile(RECIPE) is None
    assert list(path.parent.iterdir()) == []


@SETTINGS
@given(st.data())
def test_damage_is_nothing_known(kept: Path, data: st.DataObject) -> None:
    forget_profile(RECIPE)
    path = save_profile(known(memory=[Bandwidth(1, 2.0, 3.0)]))
    whole = path.read_bytes()
    how = data.draw(st.sampled_from(["cut", "changed", "noise"]))
    if how == "cut":
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 3))])
    elif how == "changed":
        at = data.draw(st.integers(0, len(whole) - 3))
        path.write_bytes(whole[:at] + data.draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :])
    else:
        path.write_bytes(data.draw(st.binary()))
    found = load_profile(RECIPE)
    assert found is None or (how == "changed" and found.fingerprint == RECIPE.fingerprint(Form.AUGMENTED))
    assert learn(RECIPE, job="train.py", consumption=7.0)  # and it is made good by the next who writes
    again = load_profile(RECIPE)
    assert again is not None and again.consumption["train.py"] == 7.0


@pytest.mark.parametrize("content", [b"null", b"[" * 100_000, b"{}", b'{"version": 1}'])
def test_other_json_is_nothing_known(kept: Path, content: bytes) -> None:
    save_profile(known()).write_bytes(content)
    assert load_profile(RECIPE) is None


def test_other_versions_and_machines_are_nothing_known(kept: Path) -> None:
    path = save_profile(known())
    for field, value in (("version", VERSION + 1), ("fingerprint", "f" * 64)):
        changed = msgspec.structs.replace(known(), **{field: value})
        path.write_bytes(msgspec.json.encode(changed))
        assert load_profile(RECIPE) is None, field
    machine = msgspec.structs.replace(Machine.here(), cpus=Machine.here().cpus + 1)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known(), machine=machine)))
    assert load_profile(RECIPE) is None
    elsewhere = save_profile(msgspec.structs.replace(known(), machine=machine))
    assert elsewhere.parent != path.parent


def test_what_jobs_learned_outlives_a_new_profile_and_the_other_way_round(kept: Path) -> None:
    assert learn(RECIPE, job="a.py", consumption=100.0)
    first = load_profile(RECIPE)
    assert first is not None and first.sizes is None and first.samples == 10
    assert first.terms(cache=0.0) is None
    save_profile(known(memory=[Bandwidth(1, 2.0, 3.0)]))
    assert learn(RECIPE, job="b.py", consumption=50.0)
    assert learn(RECIPE, job="a.py", consumption=200.0)
    found = load_profile(RECIPE)
    assert found is not None and found.memory
    assert list(found.consumption.items()) == [("b.py", 50.0), ("a.py", 200.0)]  # the latest last


def test_parts_that_a_job_measured_take_the_place_of_the_old_ones_alone(kept: Path) -> None:
    before = known(memory=[Bandwidth(1, 2.0, 3.0)], sizes=Sizes(Spread(1.0, 0.0, 1, 1), None, None))
    save_profile(before)
    cpu = CPU(prepare=Stage(1.0, 2.0), uncached=Stage(1.0, 2.0))
    assert learn(RECIPE, cpu=cpu)
    found = load_profile(RECIPE)
    assert found is not None and found.taken > before.taken
    assert found == msgspec.structs.replace(before, cpu=cpu, taken=found.taken)
    assert not learn(RECIPE)


def test_only_so_many_jobs_are_remembered(kept: Path) -> None:
    for number in range(40):
        assert learn(RECIPE, job=f"{number}", consumption=1.0 + number)
    found = load_profile(RECIPE)
    assert found is not None
    assert list(found.consumption) == [str(number) for number in range(8, 40)]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_that_are_none_are_not_learned(kept: Path, rate: float) -> None:
    assert not learn(RECIPE, job="a", consumption=rate)
    assert not kept.exists()


def test_where_nothing_can_be_written_jobs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert not learn(RECIPE, job="a", consumption=1.0)
    assert load_profile(RECIPE) is None
    with pytest.raises(OSError):
        save_profile(known())


def test_a_write_that_fails_leaves_the_old_profile(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_profile(known())

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile_files.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_profile(known(memory=[Bandwidth(1, 2.0, 3.0)]))
    assert load_profile(RECIPE) == known()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_recipes_that_cannot_be_told_apart_are_not_kept(kept: Path) -> None:
    class Odd:
        __slots__ = ()

        def __call__(self, value: bytes) -> bytes:
            return value

        def __reduce_ex__(self, protocol: object) -> str:
            raise TypeError("no")

    recipe = hr.Recipe(hr.synthetic.source(10), Odd())
    assert profile_files.fingerprint_of(recipe) is None
    assert load_profile(recipe) is None and not learn(recipe, job="a", consumption=1.0)
    assert not forget_profile(recipe)


def test_the_directory_is_where_caches_belong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert profile_files.profiles_dir() == tmp_path / ".cache" / "headrace" / "profiles"


def _write_many(number: int) -> None:
    for turn in range(20):
        assert learn(RECIPE, job=f"{number}", consumption=1.0 + turn)
        found = load_profile(RECIPE)
        # Somebody's whole profile is there at every moment, and has what this process wrote.
        assert found is not None and found.consumption[f"{number}"] == 1.0 + turn


def test_many_who_write_at_once_lose_nothing(kept: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    found = load_profile(RECIPE)
    assert found is not None and found.consumption == {str(number): 20.0 for number in range(4)}
    assert len(os.listdir(kept / Machine.here().key)) == 1
