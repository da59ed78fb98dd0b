"""What could be changed about a job's loader, and the gain that the model promises of each change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from headrace.core.sizes import show_size
from headrace.planning.loader_model import ENCODED, LoaderModel, hands_for, with_decoded_cache
from headrace.planning.search import Plan, Split
from headrace.planning.situation import Situation

WORTH = 1.05
"""A change that gains less is not worth the trouble."""
_NEARLY = 0.97
"""More of something is enough where it gives this part of what any amount would."""
_SPARE = 1.25
"""So much more of it: where two resources are equally busy, both are waited for now and then."""
_MARGIN = 8 / 7
"""A side of a prepared image, to that of the crops that are taken of it: 256 pixels for crops of 224."""
_ASPECT = 4 / 3
"""Long side to short side of ordinary photos."""
_SIZES = 16
_MEMORY = 0.8
"""Part of the machine's memory that a cache may be advised to take."""
_GPU_MEMORY = 0.5
"""The same of what is free of a GPU's: the model takes more of it at times."""


class Remedy(msgspec.Struct, frozen=True):
    """One change, and what it would give."""

    kind: str
    """``cache``, ``gpu cache``, ``cpus``, ``workers``, ``storage``, ``user code`` or ``smaller images``."""
    what: str
    """For people."""
    gain: float
    """Samples per second, to those at present (with the present cache filled)."""
    rate: float
    """Samples per second."""
    amount: float
    """Of what it is: bytes of a cache, CPUs, processes, bytes per second of storage, seconds of user code spared per
    sample, part of the pixels."""
    then: str
    """What sets the pace then."""
    split: Split | None = None
    """For a cache: how it is split in this promise."""
    estimated: bool = False
    """It rests on a rule of thumb, beside what was measured."""


class Curve(msgspec.Struct, frozen=True):
    """Samples per second by size of the cache, with the best split of each."""

    cache: list[float]
    """Bytes."""
    rate: list[float]
    split: list[Split]


def find_remedies(situation: Situation, model: LoaderModel, now: float) -> list[Remedy]:
    """Changes that are worth it, the best first. ``now``: samples per second without any."""
    found = [
        remedy
        for make in (_workers, _cache, _gpu_cache, _cpus, _storage, _user_code, _smaller)
        for remedy in make(situation, model, now)
    ]
    return sorted((one for one in found if one.gain >= WORTH), key=lambda one: -one.gain)


def what_if(situation: Situation, model: LoaderModel, points: int = _SIZES) -> Curve | None:
    """The curve over cache sizes, from none to one that holds all samples; None where none would help."""
    most = _most(situation, model)
    if not most:
        return None
    sizes = sorted({0.0, model.cache, *np.linspace(0.0, max(most, model.cache), points + 1).tolist()})
    plans = [best_with(situation, model, size) for size in sizes]
    # A larger cache need not be filled, so it is never worse; by the model it may be by a little.
    rates = np.maximum.accumulate([plan.throughput for plan in plans]).tolist()
    return Curve(sizes, rates, [plan.split for plan in plans])


def best_with(situation: Situation, model: LoaderModel, cache: float) -> Plan:
    """The best that can be had with a cache of this size, whatever form its samples are in."""
    encoded = Plan(ENCODED, float(model.rates(cache, np.array([ENCODED]))[0]))
    if not cache:
        return encoded
    found = [with_decoded_cache(situation, model).best(cache), encoded]
    if cache == model.cache:
        found.append(Plan(model.split, model.rate()))
    return max(found, key=lambda plan: plan.throughput)


def _most(situation: Situation, model: LoaderModel) -> float:
    """Bytes of a cache that holds everything in the largest form of which enough is known."""
    if situation.kind == "dataset" or situation.shared:
        return 0.0
    terms = with_decoded_cache(situation, model).terms(0.0)
    known = [size for size in (terms.encoded, terms.decoded) if size < 1e14]
    return 1.02 * terms.samples * max(known, default=0.0)


def _cache(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    room = max(_MEMORY * situation.memory, model.cache)
    most = _most(situation, model)
    if situation.inline or not most:
        return
    sizes = np.linspace(0.0, most, _SIZES + 1).tolist()
    terms = model.terms(0.0)
    encoded_all = 1.02 * terms.samples * terms.encoded if terms.encoded < 1e14 else most
    sizes += np.linspace(0.0, encoded_all, _SIZES // 2 + 1).tolist()
    plans = [
        (size, best_with(situation, model, size)) for size in sorted(sizes) if model.cache < size <= room
    ]
    if not plans:
        return
    rate = max(plan.throughput for _, plan in plans)
    size, plan = next((size, plan) for size, plan in plans if plan.throughput >= _NEARLY * rate)
    enough = max(size, encoded_all if plan.split == ENCODED else most)
    size = min(model.cache + _SPARE * (size - model.cache), enough, room)
    plan = best_with(situation, model, size)
    encoded, decoded, _ = plan.split
    form = "encoded" if decoded < 0.05 else "decoded" if encoded < 0.05 else "encoded and decoded"
    what = f"a cache of {show_size(size)} for {form} samples"
    if model.cache:
        what = f"{show_size(size - model.cache)} more cache, for {form} samples"
    if plan.split == ENCODED:
        what += " (split=(1, 0, 0))"
    after = model if form == "encoded" else with_decoded_cache(situation, model)
    yield Remedy(
        "cache", what, plan.throughput / now, plan.throughput, size, after.limit(size, plan.split), plan.split
    )


def _gpu_cache(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    """Images that a GPU holds cost nothing but the loop's own time; the others what they cost now."""
    recent = situation.recent
    pixels = recent.pixels / recent.decoded if recent.decoded else 0.0
    image = 3 * pixels or (model.decoded if model.knows_decoded else 0.0)
    if not situation.gpu_memory or not image or situation.inline:
        return
    most = 1.02 * situation.samples * image
    size = min(most, _GPU_MEMORY * situation.gpu_memory)
    busy = model.demands(model.cache, np.array([model.split]))
    busiest = max(float(seconds[0]) for seconds in busy.values()) * (1 - size / most)
    rate = min(model.fit / max(busiest, model.loop_cpu, 1e-9), model.trainer)
    what = f'gpu_cache="{size / (1 << 30):.1f}GiB" ({size / most:.0%} of the images decoded in the GPU\'s memory)'
    yield Remedy("gpu cache", what, rate / now, rate, size, "trainer" if rate == model.trainer else "cpu")


def _cpus(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    if situation.inline:
        return
    present = max(1, round(model.cpus))
    scale = model.cpus / present
    tried = {
        cpus: model.with_hands(
            scale * cpus, max(model.hands, hands_for(situation, cpus, situation.own_workers))
        )
        for cpus in range(present + 1, 2 * present + 1)
    }
    most = max(one.rate() for one in tried.values())
    cpus, better = next((cpus, one) for cpus, one in tried.items() if one.rate() >= _NEARLY * most)
    more = cpus - present
    what = f"{_count(more)} more CPU{'s' if more > 1 else ''} ({present} -> {cpus})"
    yield Remedy("cpus", what, better.rate() / now, better.rate(), cpus, better.limit())


def _workers(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    """Where the user gave fewer hands than the CPUs could serve."""
    cpus = max(1, round(model.cpus))
    hands = hands_for(situation, cpus, None)
    if situation.kind == "dataset" and not situation.inline and model.augment_cpu:
        # Workers that wait rather than compute may be more than there are CPUs.
        hands = round(min(4.0 * cpus, max(hands, cpus * model.augment_wall / model.augment_cpu)))
    if hands <= model.hands and not situation.inline:
        return
    better = model.with_hands(model.cpus, hands)
    what = f"{hands} workers in place of {situation.own_workers or 0}"
    if situation.kind == "recipe":
        what = f"num_workers left to headrace ({hands} preparing threads)"
    yield Remedy("workers", what, better.rate() / now, better.rate(), hands, better.limit())


def _storage(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    if not model.storage_is_all or not math.isfinite(model.storage):
        return
    better = replace(model, storage=math.inf)
    read = model.demands(model.cache, np.array([model.split]))["storage"][0] * model.storage
    wanted = _SPARE * better.rate() * float(read)
    if wanted <= model.storage:
        return
    what = f"storage that gives {_speed(wanted)} in place of {_speed(model.storage)}"
    yield Remedy("storage", what, better.rate() / now, better.rate(), wanted, better.limit())


def _user_code(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    if situation.inline or situation.kind == "dataset":
        return
    better = model.without_user_code()
    names = ", ".join(situation.user_steps) or "your own code"
    spared = model.user_decode[0] + model.user_augment[0]
    what = (
        f"{names} at no cost (now {1e3 * spared:.2f} CPU ms a sample): headrace's own steps, or compiled code"
    )
    yield Remedy("user code", what, better.rate() / now, better.rate(), spared, better.limit())


def _smaller(situation: Situation, model: LoaderModel, now: float) -> Iterator[Remedy]:
    recent = situation.recent
    if situation.inline or not situation.needed_pixels or not recent.pixels or not recent.decoded:
        return
    pixels = recent.pixels / recent.decoded
    wanted = _ASPECT * _MARGIN**2 * situation.needed_pixels
    if pixels < 1.5 * wanted:
        return
    part = wanted / pixels
    side = round(_MARGIN * math.sqrt(situation.needed_pixels))
    better = model.with_smaller_files(part)
    what = f"files resized to {side} pixels on the short side beforehand (about {part:.0%} of their pixels)"
    yield Remedy(
        "smaller images", what, better.rate() / now, better.rate(), part, better.limit(), estimated=True
    )


def _speed(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:,.0f} MB/s" if bytes_s >= 1e7 else f"{bytes_s / 1e6:,.1f} MB/s"


def _count(number: int) -> str:
    return {1: "one", 2: "two", 3: "three", 4: "four"}.get(number, str(number))
