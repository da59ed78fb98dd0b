"""Advice on made-up machines: the cause is the busiest resource, and what is promised is what they would give."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.planning import Advice, Means, Measured, Situation, advise, curve, staff
from headrace.planning.advice import CAUSES

MB = 1e6
some = settings(max_examples=50)
DECODED = (0.0, 1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Runs a job as the bottleneck has it, and measures. Seconds are CPU seconds of one sample."""

    cpus: int = 2
    storage: float = 1000 * MB
    decode: float = 1e-3
    augment: float = 1e-4
    user: float = 0.0
    fetch: float = 2e-5
    loop: float = 1e-5
    """Seconds that the loop takes over a sample; its CPU time is a tenth."""
    encoded: float = 50_000
    decoded: float = 550_000
    samples: int = 4000
    cache: float = 0.0

    @property
    def held(self) -> float:
        return min(1.0, self.cache / self.decoded / self.samples)

    @property
    def work(self) -> tuple[float, float]:
        """Seconds of decoding and of augmenting, for one delivered sample."""
        return (1 - self.held) * self.decode, self.augment + self.user

    def busy(self) -> dict[str, float]:
        """Seconds for which each resource has to do with one sample."""
        stored = 1 - self.held
        decode, augment = self.work
        hand = staff(self.cpus)
        return {
            "storage": stored * self.encoded / self.storage,
            "cpu": (decode + augment + self.fetch + self.loop / 10) / self.cpus,
            "hands": (decode + augment) / (hand.processes * hand.threads),
            "trainer": self.loop,
        }

    @property
    def rate(self) -> float:
        return 1 / max(self.busy().values())

    def measured(self, seconds: float = 10.0) -> Measured:
        """What is measured in a while, once the cache is full."""
        busy, n = self.busy(), self.rate * seconds
        stored = 1 - self.held
        decode, augment = self.work
        hands, fetchers = self.situation_means().hands, self.situation_means().fetchers
        free = hands * seconds - n * (decode + augment)
        starved = busy["storage"] >= max(busy["cpu"], busy["hands"], busy["trainer"])
        idles = busy["trainer"] >= max(busy["cpu"], busy["hands"], busy["storage"])
        return Measured(
            seconds=seconds,
            delivered=n,
            waited=seconds - n * self.loop,
            loop_cpu=n * self.loop / 10,
            fetched=n * stored,
            fetched_bytes=n * stored * self.encoded,
            fetch=n
            * stored
            * max(self.fetch, self.encoded / self.storage * (1 + (fetchers - 1) * self.reading)),
            fetch_cpu=n * self.fetch,
            wait_fetch=free if starved else 0.0,
            decoded=n * stored,
            decode=n * decode,
            prepared=n,
            augment=n * augment,
            cpu=n * (decode + augment),
            user=n * self.user,
            user_cpu=n * self.user,
            pixels=n * stored * self.decoded / 3,
            wait_room=0.0 if starved or idles else seconds,
            wait_order=free if idles else 0.0,
        )

    @property
    def reading(self) -> float:
        """How busy storage is: then reads are in each other's way."""
        return self.busy()["storage"] * self.rate

    def situation_means(self) -> Means:
        hand = staff(self.cpus)
        return Means(self.cpus, hand.processes * hand.threads, hand.processes)

    def situation(self, **changes: Any) -> Situation:
        measured = self.measured()
        entered = (measured.delivered * (1 - self.held), 0.0, measured.delivered * self.held, 0.0)
        known: dict[str, Any] = {
            "kind": "recipe",
            "recent": measured,
            "total": measured,
            "means": self.situation_means(),
            "user_in": "augment" if self.user else "",
            "user_steps": ("dither",) if self.user else (),
            "samples": self.samples,
            "decoded": self.decoded,
            "augmented": 150_000,
            "cache": self.cache,
            "cached": self.cache,
            "split": DECODED if self.cache else (0.0, 0.0, 0.0),
            "memory": 1e12,
            "entered": entered if self.cache else (0.0, 0.0, 0.0, 0.0),
            "tells_apart": True,
        }
        return Situation(**{**known, **changes})


def advice_on(machine: Machine, **changes: Any) -> Advice:
    found = advise(machine.situation(**changes))
    assert found is not None
    return found


def gain_of(advice: Advice, kind: str) -> float:
    return next((one.gain for one in advice.remedies if one.kind == kind), 1.0)


@pytest.mark.parametrize(
    ("machine", "cause"),
    [
        (Machine(storage=10 * MB), "storage"),
        (Machine(), "decode"),
        (Machine(decode=1e-4, augment=1e-3), "augment"),
        (Machine(user=5e-3), "python"),
        (Machine(loop=0.01), "trainer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_cause_is_named(machine: Machine, cause: str) -> None:
    advice = advice_on(machine)
    assert advice.cause == cause
    assert CAUSES[cause] in str(advice)
    assert advice.rate == pytest.approx(machine.rate)
    if cause == "trainer":
        assert not advice.remedies and "nothing about the loader would make training faster" in str(advice)
    else:
        assert advice.stalls[cause] > 0.5
        assert advice.remedies and advice.remedies[0].gain > 1.5


def test_what_is_promised_of_more_cpus_is_what_they_give() -> None:
    machine = Machine(cpus=1)
    (cpus,) = [one for one in advice_on(machine).remedies if one.kind == "cpus"]
    assert cpus.amount == 2
    better = dataclasses.replace(machine, cpus=2)
    assert cpus.gain == pytest.approx(better.rate / machine.rate, rel=0.02)


def test_no_more_cpus_are_advised_than_help() -> None:
    machine = Machine(cpus=8, loop=1 / 10_000)
    (cpus,) = [one for one in advice_on(machine).remedies if one.kind == "cpus"]
    assert cpus.amount < 16 and 9_500 < cpus.rate <= 10_000  # the loop takes no more


def test_what_is_promised_of_a_cache_is_what_it_gives() -> None:
    machine = Machine(cache=500 * MB)
    (cache,) = [one for one in advice_on(machine).remedies if one.kind == "cache"]
    better = dataclasses.replace(machine, cache=cache.amount)
    assert cache.gain == pytest.approx(better.rate / machine.rate, rel=0.05)
    assert cache.amount >= 0.97 * machine.samples * machine.decoded, "part of it would not do"


def test_slow_storage_wants_a_small_cache_for_encoded_samples_or_a_faster_disk() -> None:
    machine = Machine(storage=20 * MB)
    remedies = {one.kind: one for one in advice_on(machine, tells_apart=False).remedies}
    cache, storage = remedies["cache"], remedies["storage"]
    assert cache.split == (1.0, 0.0, 0.0) and "split=(1, 0, 0)" in cache.what
    assert cache.amount < 1.15 * machine.samples * machine.encoded
    better = dataclasses.replace(machine, storage=storage.amount)
    assert storage.gain == pytest.approx(better.rate / machine.rate, rel=0.05)
    assert storage.amount > machine.storage and storage.then in ("cpu", "hands")


def test_what_is_promised_of_removing_user_code_is_what_that_gives() -> None:
    machine = Machine(user=4e-3)
    advice = advice_on(machine)
    better = dataclasses.replace(machine, user=0.0)
    assert gain_of(advice, "user code") == pytest.approx(better.rate / machine.rate, rel=0.05)
    assert "dither" in str(advice)


def test_without_a_profile_nothing_is_promised_of_decoded_samples_and_with_one_it_is() -> None:
    """Where images are read and augmented in one, how long augmenting alone takes cannot be told."""
    machine = Machine(decode=1.1e-3, augment=0.0)
    advice = advice_on(machine, tells_apart=False)
    assert gain_of(advice, "cache") == 1.0
    assert any("headrace profile" in note for note in advice.notes)
    advice = advice_on(machine, tells_apart=False, augment_part=0.1, full_part=1.2)
    assert gain_of(advice, "cache") == pytest.approx(8.6, rel=0.1)
    assert not any("headrace profile" in note for note in advice.notes)


def test_larger_images_than_needed_should_be_made_smaller() -> None:
    machine = Machine(decode=8e-3, decoded=3 * 4000 * 3000, encoded=2 * MB)
    (smaller,) = [
        one for one in advice_on(machine, needed_pixels=224 * 224).remedies if one.kind == "smaller images"
    ]
    assert smaller.estimated and smaller.amount < 0.01 and "256 pixels" in smaller.what
    assert "about" in str(advice_on(machine, needed_pixels=224 * 224))
    assert "smaller images" not in [one.kind for one in advice_on(machine).remedies], "these are no images"


def test_a_cache_that_still_fills_is_judged_by_what_it_will_give() -> None:
    full = Machine(cache=1000 * MB)
    cold = dataclasses.replace(full, cache=0.0)
    early = cold.situation(
        cache=full.cache, cached=10 * MB, split=DECODED, entered=(cold.measured().delivered, 0.0, 0.0, 0.0)
    )
    found = advise(early)
    assert found is not None
    assert found.rate == pytest.approx(cold.rate)
    assert found.expected == pytest.approx(full.rate, rel=0.05)
    assert any("still filling" in note for note in found.notes)


def test_too_early_is_said_by_none() -> None:
    machine = Machine()
    few = msgspec.structs.replace(machine.measured(), delivered=10)
    assert advise(machine.situation(recent=few)) is None
    assert advise(machine.situation(recent=Measured())) is None
    assert curve(machine.situation(recent=few)) is None


def test_a_shared_cache_is_left_to_the_host() -> None:
    machine = Machine(cache=1000 * MB)
    advice = advice_on(machine, shared=True)
    assert advice.expected == pytest.approx(machine.rate, rel=0.02)
    assert "cache" not in [one.kind for one in advice.remedies]
    assert any("headrace status" in note for note in advice.notes)


def test_slow_kernels_are_the_first_thing_said() -> None:
    advice = advice_on(Machine(), slow_kernels="images are decoded by slower kernels: no compiler")
    assert advice.notes[0] == "images are decoded by slower kernels: no compiler"


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (Machine(), "gpu_decode=True"),
        (Machine(decode=1e-4, augment=1e-3), ""),
        (Machine(storage=10 * MB), ""),
        (Machine(loop=0.01), ""),
    ],
    ids=["decode", "augment", "storage", "trainer"],
)
def test_a_gpu_that_could_decode_is_named_where_processors_are_short(machine: Machine, said: str) -> None:
    notes = [note for note in advice_on(machine, gpu_could_decode=True).notes if "gpu_" in note]
    assert [note.startswith(said) for note in notes] == ([True] if said else [])
    assert not any("gpu_" in note for note in advice_on(machine).notes)


def test_what_a_gpu_would_hold() -> None:
    """All images: then nothing is prepared any more. A half of them: it is prepared half as much."""
    machine = Machine(loop=1e-4)
    whole = gain_of(advice_on(machine, gpu_memory=1e12), "gpu cache")
    assert whole == pytest.approx(1 / machine.loop / machine.rate, rel=0.05), "the trainer sets the pace"
    half = advice_on(machine, gpu_memory=1.02 * machine.samples * machine.decoded)
    assert gain_of(half, "gpu cache") == pytest.approx(2.0, rel=0.1)
    (said,) = (one.what for one in half.remedies if one.kind == "gpu cache")
    assert 'gpu_cache="1.0GiB" (50% of the images' in said
    assert gain_of(advice_on(machine), "gpu cache") == 1.0
    assert gain_of(advice_on(Machine(loop=0.01), gpu_memory=1e12), "gpu cache") == 1.0


def dataset(**changes: Any) -> Situation:
    """A torch dataset whose samples take 8 ms each, a quarter of it on the CPU; 2 workers on 4 CPUs."""
    sums = Measured(seconds=10, delivered=2500, waited=9.5, loop_cpu=0.5, fetch=20.0, fetch_cpu=5.0)
    known: dict[str, Any] = {
        "kind": "dataset",
        "recent": sums,
        "total": sums,
        "means": Means(4, 2, 2),
        "own_workers": 2,
    }
    return Situation(**{**known, **changes})


def test_of_a_dataset_is_said_what_can_be_known() -> None:
    advice = advise(dataset())
    assert advice is not None
    assert advice.cause == "dataset" and advice.waited == pytest.approx(0.95)
    (workers,) = advice.remedies
    assert workers.kind == "workers" and workers.gain > 3
    assert curve(dataset()) is None


def test_without_workers_some_are_advised() -> None:
    sums = Measured(seconds=10, delivered=1000, waited=9.0, loop_cpu=9.5)
    advice = advise(dataset(recent=sums, inline=True, own_workers=0, means=Means(4, 1, 1)))
    assert advice is not None
    (workers,) = advice.remedies
    assert workers.kind == "workers"
    assert workers.gain == pytest.approx(4 * 1000 / 9 / 100, rel=0.02), "four share what one did"


machines = st.builds(
    Machine,
    cpus=st.integers(1, 16),
    storage=st.floats(5 * MB, 2000 * MB),
    decode=st.floats(50e-6, 5e-3),
    augment=st.floats(20e-6, 2e-3),
    user=st.one_of(st.just(0.0), st.floats(1e-4, 5e-3)),
    encoded=st.floats(5_000, 200_000),
    decoded=st.floats(100_000, 2_000_000),
    cache=st.one_of(st.just(0.0), st.floats(20 * MB, 4000 * MB)),
    loop=st.floats(1e-6, 2e-3),
)


@some
@given(machines)
def test_gains_are_gains_and_never_beyond_the_trainer(machine: Machine) -> None:
    advice = advice_on(machine)
    gains = [one.gain for one in advice.remedies]
    assert all(gain >= 1.05 for gain in gains)
    assert gains == sorted(gains, reverse=True)
    assert all(one.rate <= advice.trainer * 1.001 for one in advice.remedies)
    assert all(math.isfinite(value) for value in advice.numbers.values())
    assert sum(advice.stalls.values()) == pytest.approx(1.0)
    assert msgspec.json.decode(msgspec.json.encode(advice), type=Advice) == advice


@some
@given(machines)
def test_the_cause_is_the_busiest_resource(machine: Machine) -> None:
    busy = machine.busy()
    preparing = {"cpu", "hands"}
    names = sorted(busy, key=busy.__getitem__)
    others = [name for name in names if name != names[-1] and not {name, names[-1]} <= preparing]
    assume(busy[names[-1]] > 1.2 * max(busy[name] for name in others))
    steps = {"decode", "augment", "python"}
    kind = {"storage": {"storage"}, "trainer": {"trainer"}}.get(names[-1], steps)
    advice = advice_on(machine)
    if advice.waited < 0.05 or advice.cause == "trainer":
        assert names[-1] == "trainer"
    else:
        assert advice.cause in kind


@some
@given(machines)
@pytest.mark.slow
def test_the_curve_rises_to_the_best_that_there_is(machine: Machine) -> None:
    found = curve(machine.situation())
    assert found is not None
    assert found.cache[0] == 0.0 and machine.cache in found.cache
    assert all(np.diff(found.cache) > 0)
    assert all(np.diff(found.rate) >= 0)
    advice = advice_on(machine)
    assert found.rate[-1] <= advice.trainer * 1.001
    assert all(sum(split) == pytest.approx(1.0) for split in found.split)


@some
@given(machines)
def test_promises_are_kept_by_machines_that_are_as_the_model_has_them(machine: Machine) -> None:
    advice = advice_on(machine)
    changes = {"user code": lambda _: {"user": 0.0}, "cpus": lambda one: {"cpus": int(one.amount)}}
    for one in advice.remedies:
        if one.kind in changes:
            better = dataclasses.replace(machine, **changes[one.kind](one))
            if machine.reading < 1.0 and better.reading > 0.99:
                continue  # storage that was never waited for has no known limit
            assert one.gain == pytest.approx(better.rate / machine.rate, rel=0.1)
