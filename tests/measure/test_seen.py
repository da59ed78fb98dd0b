"""What loaders saw, beside what was measured: which goes before which, and what becomes of it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure import Profile, Seen, find_limits, learn, load_profile, save_profile
from headrace.measure.seen import Cost, Starved
from headrace.planning import Means, search
from tests.measure.test_profile import PROFILE
from tests.measure.test_profile_files import RECIPE, known, numbers
from tests.measure.test_profile_files import profiles as measured_profiles

MEANS = Means(cpus=4, hands=4, fetchers=2)
maybe = st.none() | numbers
costs = st.none() | st.builds(Cost, numbers, numbers)
sights = st.builds(
    Seen,
    at=numbers,
    encoded=maybe,
    decoded=maybe,
    augmented=maybe,
    decode=costs,
    augment=costs,
    uncached=costs,
    fetch=maybe,
    waits=st.booleans(),
    loop=maybe,
    supply=maybe,
    fetchers=st.integers(1, 64),
    storage=st.none() | st.builds(Starved, numbers, numbers, numbers, numbers),
)
WHOLE = Seen(
    at=1.0,
    encoded=110.0,
    decoded=520.0,
    augmented=200.0,
    decode=Cost(0.05, 0.03),
    augment=Cost(0.02, 0.01),
    uncached=Cost(0.04, 0.025),
    fetch=2e-4,
    supply=2e3,
    fetchers=2,
    storage=Starved(2e3, 8.0, 0.05, at=1.0),
)


def with_seen(seen: Seen, **more: object) -> Profile:
    return msgspec.structs.replace(PROFILE, seen=seen, **more)


@given(sights, sights)
def test_the_later_of_two_has_the_last_word_and_loses_nothing(first: Seen, second: Seen) -> None:
    both = second.after(first)
    assert both.at == second.at and both.waits == second.waits
    for name in set(Seen.__struct_fields__) - {"at", "waits", "fetchers"}:
        mine = getattr(second, name)
        assert getattr(both, name) == (getattr(first, name) if mine is None else mine)
    assert both.fetchers == (first if second.supply is None else second).fetchers
    assert second.after(None) == second and both.after(first) == both


@given(measured_profiles, st.none() | sights, st.sampled_from([0.0, 1e9]))
def test_whatever_a_file_says_a_planner_can_do_with_it(
    profile: Profile, seen: Seen | None, cache: float
) -> None:
    profile = msgspec.structs.replace(profile, seen=seen)
    terms = profile.terms(cache=cache, means=MEANS)
    if terms is not None:
        with np.errstate(all="raise", under="ignore"):
            plan = search(terms)
        assert math.isfinite(plan.throughput) and plan.throughput > 0
        assert sum(plan.split) == pytest.approx(1.0)
    find_limits(profile)


def test_what_was_seen_last_goes_before_what_was_measured_earlier() -> None:
    terms = with_seen(WHOLE).terms(cache=1e4, means=MEANS)
    assert terms is not None
    assert (terms.encoded, terms.decoded, terms.augmented) == (110, 520, 200)
    # By processor time: the machine was shared, and may not be the next time.
    assert (terms.prepare, terms.augment) == (pytest.approx(4 / 0.04), pytest.approx(4 / 0.01))
    assert terms.storage == 2e3 and terms.fetch == pytest.approx(4 / 2e-4)
    assert terms.copy == 40_000 and terms.cache_link == 6e9, "which only the command measures"
    plain = with_seen(WHOLE).terms(cache=0.0, means=MEANS)
    assert plain is not None and plain.prepare == pytest.approx(4 / 0.025)


def test_what_was_measured_last_goes_before_what_was_seen_earlier() -> None:
    later = with_seen(WHOLE, taken=2.0)
    assert later.terms(cache=1e4) == PROFILE.terms(cache=1e4)
    assert later.cold == PROFILE.cold == 3e3
    # Only where it knows nothing is there anything to add.
    lacking = with_seen(WHOLE, taken=2.0, storage=None)
    assert lacking.cold == 2e3 and lacking.terms(cache=1e4).storage == 2e3  # type: ignore[union-attr]


def test_a_profile_may_be_nothing_but_what_was_seen() -> None:
    bare = Profile("f", PROFILE.machine, "data", 1000, 1.0, seen=WHOLE)
    terms = bare.terms(cache=1e4)
    assert terms is not None and terms.copy == math.inf
    assert [limit.where for limit in find_limits(bare)] == ["cold", "memory", "decoded"]
    for part in ("encoded", "decoded", "augmented", "decode", "augment"):
        less = msgspec.structs.replace(bare, seen=msgspec.structs.replace(WHOLE, **{part: None}))
        assert less.terms(cache=1e4) is None, part


def test_waits_count_where_there_is_user_code() -> None:
    slow = Cost(seconds=0.1, cpu=0.01)
    assert slow.rate(MEANS, waits=False) == pytest.approx(400)
    assert slow.rate(MEANS, waits=True) == pytest.approx(40)
    assert slow.rate(Means(cpus=2, hands=8, fetchers=1), waits=False) == pytest.approx(200)
    assert slow.rate(Means(cpus=8, hands=2, fetchers=1), waits=True) == pytest.approx(20)


def test_the_training_process_has_its_share_of_the_cpus() -> None:
    busy = msgspec.structs.replace(WHOLE, loop=1.0)
    assert busy.stages(MEANS, cached=True)[1] == pytest.approx(3 / 0.01)  # type: ignore[index]


def test_with_more_who_fetch_storage_may_have_more_to_give() -> None:
    more = Means(cpus=4, hands=4, fetchers=4)
    before = msgspec.structs.replace(WHOLE, storage=None)
    profile = with_seen(before)
    assert profile.terms(cache=1e4, means=MEANS).storage == 2e3  # type: ignore[union-attr]
    assert profile.terms(cache=1e4, means=more).storage == 3e3  # type: ignore[union-attr]


def test_files_in_memory_say_nothing_about_storage() -> None:
    """The last loader got its bytes from the page cache: so may the next, but storage is what it was."""
    warm = msgspec.structs.replace(WHOLE, at=5.0, supply=1e9)
    profile = with_seen(warm)
    assert profile.terms(cache=1e4, means=MEANS).storage == 1e9  # type: ignore[union-attr]
    assert profile.cold == 2e3
    assert next(limit for limit in find_limits(profile) if limit.where == "cold").resource == "storage"


def test_tables_stay_and_what_was_seen_is_kept_beside_them(kept: Path) -> None:
    careful = msgspec.structs.replace(
        PROFILE, fingerprint=known().fingerprint, machine=known().machine, samples=10, taken=10.0
    )
    save_profile(careful)
    assert learn(RECIPE, job="a.py", consumption=5.0, seen=msgspec.structs.replace(WHOLE, at=20.0))
    assert learn(RECIPE, seen=Seen(at=30.0, supply=7e3))
    found = load_profile(RECIPE)
    assert found is not None
    assert msgspec.structs.replace(found, seen=None, consumption={}) == careful
    assert found.seen == msgspec.structs.replace(WHOLE, at=30.0, supply=7e3, fetchers=1)
    # A new profile is the latest word, and what was seen before does not come back with what is seen after.
    newer = msgspec.structs.replace(careful, taken=40.0)
    save_profile(newer)
    assert load_profile(RECIPE).terms(cache=1e4) == newer.terms(cache=1e4)  # type: ignore[union-attr]
    assert learn(RECIPE, seen=Seen(at=50.0, encoded=120.0))
    found = load_profile(RECIPE)
    assert found is not None
    assert found.seen == Seen(at=50.0, encoded=120.0, storage=WHOLE.storage)
    assert found.terms(cache=1e4).prepare == 90  # type: ignore[union-attr]
    assert found.cold == 3e3
