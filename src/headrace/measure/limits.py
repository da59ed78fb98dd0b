"""What limits a recipe on a machine."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np

from headrace.measure.profile import NEVER, Profile
from headrace.planning.bottleneck import demands
from headrace.planning.terms import Terms


class Limit(msgspec.Struct, frozen=True):
    """The busiest resource, and the samples per second that it allows."""

    where: str
    """Where samples come from: ``cold``, from storage; ``memory``, encoded ones that need not be waited for;
    ``decoded``, a cache that holds all of them decoded."""
    resource: str
    """See ``planning.bottleneck.RESOURCES``."""
    rate: float


def find_limits(profile: Profile) -> list[Limit]:
    """The limit for each place that samples may come from, as far as that is known."""
    plain = profile.terms(cache=0.0)
    if plain is None:
        return []
    found = []
    if profile.cold is not None:
        found.append(_limit("cold", dataclasses.replace(plain, storage=profile.cold)))
    found.append(_limit("memory", dataclasses.replace(plain, storage=math.inf)))
    cached = profile.terms(cache=2.0 * plain.decoded * profile.samples) if plain.decoded < NEVER else None
    if cached is not None:
        found.append(_limit("decoded", cached))
    return found


def _limit(where: str, terms: Terms) -> Limit:
    """All of the cache, if there is one, is for decoded samples."""
    busy = {name: float(seconds[0]) for name, seconds in demands(terms, np.array([[0.0, 1.0, 0.0]])).items()}
    resource = max(busy, key=busy.__getitem__)
    return Limit(where, resource, 1.0 / busy[resource])
