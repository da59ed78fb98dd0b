"""What a job waits for, and what would help by how much: from what its loader measured, and the model."""

from __future__ import annotations

import msgspec

from headrace.planning.loader_model import WAITED, LoaderModel, model_of
from headrace.planning.remedies import Curve, Remedy, find_remedies, what_if
from headrace.planning.situation import Situation

CAUSES = {
    "storage": "storage-bound",
    "decode": "decode-bound",
    "augment": "augment-bound",
    "python": "bound by your own code",
    "orders": "bound by orders that come late",
    "dataset": "bound by the dataset's own code",
    "trainer": "the trainer sets the pace",
}
"""What a loop may wait for, and how that is said."""
LIMITS = {"storage": "storage", "cpu": "the CPUs", "hands": "the preparing threads", "trainer": "the trainer"}
"""What may set the pace by the model."""


_CHANGES = 0.05
"""Rates that differ by less than this part are the same."""
_SIGNAL = 0.05
"""Stages that wait for each other for less than this part of the time do not tell which of them is the short one."""


class Advice(msgspec.Struct, frozen=True):
    """What a loader's measurements say, and what the model makes of them. ``str()`` gives it in one sentence."""

    waited: float
    """Share of the time for which the training loop waited for a batch, lately."""
    rate: float
    """Samples per second, lately."""
    trainer: float
    """Samples per second that the loop would take if it never waited."""
    expected: float
    """Samples per second, once the cache is full; what gains refer to."""
    cause: str
    """The stage that the loop waits for most; see ``CAUSES``."""
    stalls: dict[str, float]
    """The part of all waiting that is due to each stage."""
    remedies: list[Remedy]
    """What would help, the best first."""
    notes: list[str]
    numbers: dict[str, float]
    """What all of this rests on."""

    def __str__(self) -> str:
        said = [f"waited {self.waited:.0%} of the time", self.bound]
        said += [f"{'about ' if one.estimated else ''}{one.gain:.1f}x by {one.what}" for one in self.remedies]
        return "; ".join([*said, *self.notes])

    @property
    def bound(self) -> str:
        """The cause, in words."""
        share = "" if self.cause == "trainer" else f": {self.stalls[self.cause]:.0%} of stalls"
        return f"{CAUSES[self.cause]}{share}"


def advise(situation: Situation) -> Advice | None:
    """Advice for a loader; None while too little was measured."""
    model = model_of(situation)
    if model is None:
        return None
    recent = situation.recent
    rate, waited = recent.delivered / recent.seconds, recent.waited / recent.seconds
    now = rate if situation.inline else model.rate()
    stalls = find_stalls(situation)
    return Advice(
        waited=waited,
        rate=rate,
        trainer=model.trainer,
        expected=now,
        cause="trainer" if waited < WAITED else _cause(stalls),
        stalls=stalls,
        remedies=find_remedies(situation, model, now),
        notes=_notes(situation, model, abs(now / rate - 1) > _CHANGES),
        numbers=_numbers(situation, model),
    )


def curve(situation: Situation) -> Curve | None:
    """Samples per second by size of the cache; None where that is not known."""
    model = model_of(situation)
    return None if model is None else what_if(situation, model)


def find_stalls(situation: Situation) -> dict[str, float]:
    """To which stage the loop's waiting is due, in parts of the whole.

    Waiting is the signal. Hands that wait for bytes: storage is too slow. Bytes that wait for hands: preparing is,
    and there each step by its time. Hands without an order, while the loop waits: orders come late.
    """
    recent, means = situation.recent, situation.means
    if situation.kind == "dataset":
        return {"dataset": 1.0}
    hands, fetchers = max(1, means.hands), max(1, means.fetchers)
    work = max(recent.decode + recent.augment, 1e-9)
    late = 0.0
    if situation.inline:  # one after the other
        starved, room = recent.fetch, work
    else:
        starved = recent.wait_fetch / (hands * recent.seconds)
        room = recent.wait_room / (fetchers * recent.seconds)
        if starved + room < _SIGNAL:  # so little is under way that nothing queues up
            room = work / (hands * recent.seconds)
        # While the loop is busy, hands may well be idle.
        busy = recent.seconds - recent.waited
        late = min(1.0, max(0.0, recent.wait_order / (hands * recent.seconds) - busy / recent.seconds))
    short = (1.0 - late) / max(starved + room, 1e-9)
    user = min(recent.user, work)
    in_decode = {"decode": 1.0, "both": recent.decode / work}.get(situation.user_in, 0.0)
    steps = {
        "decode": max(recent.decode - in_decode * user, 0.0),
        "augment": max(recent.augment - (1 - in_decode) * user, 0.0),
        "python": user,
    }
    sum_of_steps = max(sum(steps.values()), 1e-9)
    found = {name: short * room * seconds / sum_of_steps for name, seconds in steps.items()}
    return {"storage": short * starved, **found, "orders": late}


def _cause(stalls: dict[str, float]) -> str:
    """The side that is waited for most, and on the side of preparing its longest step."""
    steps = [name for name in ("decode", "augment", "python") if name in stalls]
    preparing = sum(stalls[name] for name in steps)
    others = {name: share for name, share in stalls.items() if name not in steps}
    other = max(others, key=others.__getitem__, default="")
    if other and others[other] > preparing:
        return other
    return max(steps, key=stalls.__getitem__)


def _notes(situation: Situation, model: LoaderModel, changes: bool) -> list[str]:
    """``changes``: other rates are expected than those of late."""
    notes = [situation.slow_kernels] if situation.slow_kernels else []
    if situation.recent.waited < WAITED * situation.recent.seconds:
        notes.append("nothing about the loader would make training faster")
    elif situation.gpu_could_decode and _cause(find_stalls(situation)) == "decode":
        notes.append(
            "gpu_decode=True lets the GPU decode a part of the images, as far as that pays (docs/gpu.md)"
        )
    if changes and situation.cache and not situation.shared and not situation.inline:
        notes.append("the cache was still filling: gains refer to a full one")
    untold = situation.kind == "recipe" and not situation.shared and not model.knows_decoded
    if untold and not situation.full_part and situation.recent.pixels:
        notes.append("what a cache of decoded samples would give is known after `headrace profile`")
    if situation.shared:
        notes.append("what the shared cache holds, and for whom: `headrace status`")
    if not 0.7 < model.fit < 1.3:
        notes.append(f"the model is off by a factor of {1 / model.fit:.1f}: take gains as rough")
    return notes


def _numbers(situation: Situation, model: LoaderModel) -> dict[str, float]:
    """The measured numbers that gains rest on: seconds of a sample, bytes, what there is to work with."""
    recent = situation.recent
    found = {
        "seconds": recent.seconds,
        "samples": float(recent.delivered),
        "cpus": model.cpus,
        "hands": model.hands,
        "cpus_busy": (recent.cpu + recent.fetch_cpu + (recent.loop_cpu)) / recent.seconds,
        "decode_cpu_s": model.decode_cpu,
        "augment_cpu_s": model.augment_cpu,
        "user_cpu_s": model.user_decode[0] + model.user_augment[0],
        "fetch_cpu_s": model.fetch_cpu,
        "loop_cpu_s": model.loop_cpu,
        "encoded_bytes": model.encoded,
        "decoded_bytes": situation.decoded,
        "storage_bytes_s": model.storage,
        "cache_bytes": situation.cache,
        "model_fit": model.fit,
    }
    return {name: value for name, value in found.items() if 0 < value < 1e14}
