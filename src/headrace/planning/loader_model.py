"""A model of a job's loader: what one sample costs there, and how many there would be if something were different."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from headrace.planning import bottleneck
from headrace.planning.measured import Measured
from headrace.planning.search import Plan, Split, search
from headrace.planning.situation import Situation
from headrace.planning.staff import staff
from headrace.planning.supply import gave_all
from headrace.planning.terms import Floats, Terms

ENOUGH = 64
"""Samples of a stage, or delivered, before what they cost is believed."""
WAITED = 0.05
"""A loop that waits for less than this part of its time is well fed."""
_NEVER = 1e15
"""Bytes of a form that cannot be cached, or of which nothing is known."""
_PAGE = 4096
"""A cached sample takes whole pages; half of one is lost, and a header takes some of the rest."""
_TINY = 1e-9
_FITS = (0.3, 1.5)
"""A model that is further from what was measured than this has not understood the job."""
_STEPS = 20
ENCODED: Split = (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class LoaderModel:
    """A loader, as it was measured or as it would be.

    Seconds are those of one sample. ``cpu`` ones are paid by all CPUs, ``wall`` ones by the hands.
    """

    samples: float
    encoded: float
    """Bytes, as those below."""
    decoded: float
    augmented: float
    cache: float
    split: Split
    cpus: float
    hands: float
    storage: float
    """Bytes per second."""
    storage_is_all: bool
    """Whether hands waited for bytes: then this is what storage can give, and otherwise a guess."""
    trainer: float
    """Samples per second that the loop takes if it need not wait."""
    decode_cpu: float
    decode_wall: float
    augment_cpu: float
    augment_wall: float
    fetch_cpu: float
    loop_cpu: float
    user_decode: tuple[float, float]
    """CPU and wall seconds of the user's code, which are part of those above."""
    user_augment: tuple[float, float]
    fit: float = 1.0
    """What was measured, to what the model says of the same."""

    def demands(self, cache: float, splits: Floats) -> dict[str, Floats]:
        """Seconds for which storage, CPUs and hands are busy with one sample, for each split of a cache."""
        found = bottleneck.demands(self.terms(cache), splits)
        by_hand = bottleneck.demands(self._hand_terms(cache), splits)
        return {"storage": found["storage"], "cpu": found["cpu"], "hands": by_hand["cpu"]}

    def terms(self, cache: float) -> Terms:
        """The same for the models: what the loop itself takes of the CPUs is a part of every sample."""
        # Whether a sample is read from a file that lies in memory or taken from the cache makes little difference.
        augment = self.augment_cpu + self.fetch_cpu + self.loop_cpu
        # In the cache a sample takes whole pages; on its way from storage it does not.
        footprint = self.encoded + _PAGE
        return Terms(
            samples=max(self.samples, 1.0),
            encoded=footprint,
            decoded=self.decoded,
            augmented=max(self.augmented, 1.0),
            cache=cache,
            prepare=self.cpus / max(self.decode_cpu + augment, _TINY),
            augment=self.cpus / max(augment, _TINY),
            storage=self.storage * footprint / max(self.encoded, 1.0),
        )

    def _hand_terms(self, cache: float) -> Terms:
        return replace(
            self.terms(cache),
            prepare=self.hands / max(self.decode_wall + self.augment_wall, _TINY),
            augment=self.hands / max(self.augment_wall, _TINY),
        )

    def rates(self, cache: float, splits: Floats) -> Floats:
        """Samples per second for each split of a cache."""
        busiest = np.maximum.reduce([*self.demands(cache, splits).values()])
        return np.asarray(np.minimum(self.fit / np.maximum(busiest, _TINY), self.trainer), np.float64)

    def rate(self) -> float:
        """Samples per second with the cache that there is, once it is full."""
        return float(self.rates(self.cache, np.array([self.split]))[0])

    def best(self, cache: float) -> Plan:
        """The best split of a cache, and the samples per second with it."""
        return search(self.terms(cache), lambda _, splits: self.rates(cache, splits), _STEPS)

    def limit(self, cache: float | None = None, split: Split | None = None) -> str:
        """What sets the pace: ``storage``, ``cpu``, ``hands`` or ``trainer``."""
        at = np.array([self.split if split is None else split])
        busy = {
            name: float(seconds[0])
            for name, seconds in self.demands(self.cache if cache is None else cache, at).items()
        }
        busiest = max(busy, key=busy.__getitem__)
        return "trainer" if self.fit / max(busy[busiest], _TINY) >= self.trainer else busiest

    def with_hands(self, cpus: float, hands: float) -> LoaderModel:
        """On so many CPUs, with so many hands. Hands that share a CPU wait for each other."""
        decode = self._wall(self.decode_wall, self.decode_cpu, cpus, hands)
        augment = self._wall(self.augment_wall, self.augment_cpu, cpus, hands)
        return replace(self, cpus=cpus, hands=hands, decode_wall=decode, augment_wall=augment)

    def _wall(self, wall: float, cpu: float, cpus: float, hands: float) -> float:
        alone = max(cpu, wall - cpu * (max(1.0, self.hands / self.cpus) - 1.0))
        return alone + cpu * (max(1.0, hands / cpus) - 1.0)

    def without_user_code(self) -> LoaderModel:
        """As if the user's code cost nothing."""
        (decode_cpu, decode_wall), (augment_cpu, augment_wall) = self.user_decode, self.user_augment
        return replace(
            self,
            decode_cpu=max(0.0, self.decode_cpu - decode_cpu),
            decode_wall=max(0.0, self.decode_wall - decode_wall),
            augment_cpu=max(0.0, self.augment_cpu - augment_cpu),
            augment_wall=max(0.0, self.augment_wall - augment_wall),
            user_decode=(0.0, 0.0),
            user_augment=(0.0, 0.0),
        )

    def with_smaller_files(self, part: float) -> LoaderModel:
        """As if images had only this part of their pixels. Bytes and decoding go with them."""
        return replace(
            self,
            encoded=part * self.encoded,
            decoded=self.decoded if self.decoded >= _NEVER else part * self.decoded,
            decode_cpu=part * self.decode_cpu,
            decode_wall=part * self.decode_wall,
        )

    @property
    def knows_decoded(self) -> bool:
        """Whether it can be told what a cache of decoded samples would do."""
        return self.decoded < _NEVER


def model_of(situation: Situation) -> LoaderModel | None:
    """The model of a loader; None while too little is known of it."""
    recent = situation.recent
    if recent.delivered < ENOUGH or recent.seconds <= 0:
        return None
    found = _of_dataset(situation) if situation.kind == "dataset" else _of_recipe(situation)
    if found is None:
        return None
    if situation.inline or recent.waited < WAITED * recent.seconds:
        return found  # a loop that hardly waits says nothing about what the loader could do
    present = replace(found, trainer=math.inf)
    if situation.cache and not situation.shared and sum(situation.entered):
        # (while the cache fills, there are fewer hits than there will be)
        present = replace(present, cache=_effective(situation, found), split=_shares(situation, found))
    # Hands may well be idle while the loop is busy; when it waits, they should not be.
    busy = 1.0 - recent.waited / recent.seconds
    idle = 0.0 if situation.kind == "dataset" else recent.wait_order / (recent.seconds * found.hands)
    at_work = max(recent.seconds * (1.0 - min(idle, busy)), _TINY)
    fit = recent.delivered / at_work / present.rate()
    return replace(found, fit=min(max(fit, _FITS[0]), _FITS[1]))


def _effective(situation: Situation, model: LoaderModel) -> float:
    """Bytes of a cache that would have given the hits that there were."""
    _, encoded, decoded, _ = situation.entered
    entered = max(sum(situation.entered), 1)
    size = encoded * (model.encoded + _PAGE) + decoded * min(model.decoded, _NEVER)
    return model.samples * size / entered


def _shares(situation: Situation, model: LoaderModel) -> Split:
    _, encoded, decoded, _ = situation.entered
    sizes = encoded * (model.encoded + _PAGE), decoded * model.decoded
    whole = max(sum(sizes), _TINY)
    return sizes[0] / whole, sizes[1] / whole, 0.0


def _trainer(recent: Measured) -> float:
    return recent.delivered / max(recent.seconds - recent.waited, _TINY)


def _of_dataset(situation: Situation) -> LoaderModel:
    """All work is one stage, which nothing can be cached of."""
    recent, means = situation.recent, situation.means
    wall, cpu = recent.fetch / recent.delivered, recent.fetch_cpu / recent.delivered
    if situation.inline:
        wall = recent.waited / recent.delivered
        cpu = min(wall, recent.loop_cpu / recent.delivered)
    return LoaderModel(
        samples=1.0, encoded=1.0, decoded=_NEVER, augmented=1.0, cache=0.0, split=ENCODED,
        cpus=means.cpus, hands=max(1, means.hands), storage=math.inf, storage_is_all=False,
        trainer=_trainer(recent), decode_cpu=0.0, decode_wall=0.0, augment_cpu=cpu, augment_wall=wall,
        fetch_cpu=0.0, loop_cpu=0.0 if situation.inline else recent.loop_cpu / recent.delivered,
        user_decode=(0.0, 0.0), user_augment=(cpu, wall),
    )  # fmt: skip


def _of_recipe(situation: Situation) -> LoaderModel | None:
    recent, total, means = situation.recent, situation.total, situation.means
    if recent.prepared < ENOUGH:
        return None
    hands = max(1, means.hands)
    # Where little was decoded or fetched lately, what it costs is known from before.
    decoding = recent if recent.decoded >= ENOUGH else total
    fetching = recent if recent.fetched >= ENOUGH else total
    wall = max(recent.decode + recent.augment, _TINY)
    user_wall, user_cpu = min(recent.user, wall), min(recent.user_cpu, recent.cpu)
    own = max(recent.cpu - user_cpu, 0.0) / max(
        wall - user_wall, _TINY
    )  # CPU seconds in a second of own code
    own = min(own, 1.0)
    in_decode = {"decode": 1.0, "both": recent.decode / wall}.get(situation.user_in, 0.0)
    decodes = max(recent.decoded, 1)
    user_decode = (in_decode * user_cpu / decodes, in_decode * user_wall / decodes)
    user_augment = (
        (1 - in_decode) * user_cpu / recent.prepared,
        (1 - in_decode) * user_wall / recent.prepared,
    )
    decode_wall = decoding.decode / max(decoding.decoded, 1)
    if not decoding.decoded:  # there is no decode step
        decode_wall = decoding.decode / max(decoding.prepared, 1)
    augment_wall = recent.augment / recent.prepared
    decode_cpu = own * max(decode_wall - user_decode[1], 0.0) + user_decode[0]
    augment_cpu = own * max(augment_wall - user_augment[1], 0.0) + user_augment[0]
    # A sample that came augmented from a shared cache was prepared by others.
    prepared = min(1.0, recent.prepared / recent.delivered) if situation.shared else 1.0
    storage, is_all = _storage(situation, fetching, hands)
    model = LoaderModel(
        samples=situation.samples,
        encoded=fetching.fetched_bytes / fetching.fetched
        if fetching.fetched
        else situation.encoded or _NEVER,
        decoded=situation.decoded if situation.decoded and situation.tells_apart else _NEVER,
        augmented=situation.augmented,
        cache=situation.cache,
        split=situation.split if sum(situation.split) else ENCODED,
        cpus=means.cpus,
        hands=hands,
        storage=storage,
        storage_is_all=is_all,
        trainer=_trainer(recent),
        decode_cpu=prepared * decode_cpu,
        decode_wall=prepared * decode_wall,
        augment_cpu=prepared * augment_cpu,
        augment_wall=prepared * augment_wall,
        fetch_cpu=recent.fetch_cpu / recent.delivered,
        loop_cpu=0.0 if situation.inline else recent.loop_cpu / recent.delivered,
        user_decode=user_decode,
        user_augment=user_augment,
    )
    if situation.shared:
        # What the shared cache holds is others' business; for this job it is the hits that it has.
        model = replace(model, decoded=situation.decoded or 1.0)
        cache, split = _effective(situation, model), _shares(situation, model)
        model = replace(model, cache=cache, split=split if sum(split) else ENCODED)
    return model


def _storage(situation: Situation, fetching: Measured, hands: int) -> tuple[float, bool]:
    """Bytes per second that storage gives, and whether that is all it can."""
    if not fetching.fetched or not fetching.fetched_bytes:
        return math.inf, False
    seen = fetching.fetched_bytes / fetching.seconds
    if situation.inline:
        return fetching.fetched_bytes / max(fetching.fetch, _TINY), False
    if gave_all(fetching, hands, situation.means.fetchers):
        return seen, True
    guess = situation.means.fetchers * fetching.fetched_bytes / max(fetching.fetch, _TINY)
    return max(seen, guess), False


def with_decoded_cache(situation: Situation, model: LoaderModel) -> LoaderModel:
    """The same loader if it cached decoded samples: then images are decoded in full, as a profile measured it."""
    if model.knows_decoded or situation.shared or not (situation.decoded and situation.full_part):
        return model
    cpu, wall = model.decode_cpu + model.augment_cpu, model.decode_wall + model.augment_wall
    decode = max(situation.full_part - situation.augment_part, 0.0)
    return replace(
        model,
        decoded=situation.decoded,
        decode_cpu=decode * cpu,
        decode_wall=decode * wall,
        augment_cpu=situation.augment_part * cpu,
        augment_wall=situation.augment_part * wall,
    )


def hands_for(situation: Situation, cpus: int, own: int | None) -> int:
    """Threads that would prepare on so many CPUs."""
    if situation.kind == "dataset":
        return own if own is not None else cpus
    wanted = staff(cpus, own, situation.held)
    return wanted.processes * wanted.threads
