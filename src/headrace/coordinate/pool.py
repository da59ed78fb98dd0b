"""The pool: a cache's contents. Its shelves, and the room that they share in one tier or several."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress

from headrace.coordinate.costs import Took
from headrace.coordinate.foreseen import Foreseen
from headrace.coordinate.parts import Part
from headrace.coordinate.room import Place, Room
from headrace.coordinate.savings import Savings
from headrace.coordinate.shelf import Samples, Shelf
from headrace.coordinate.space import Space
from headrace.coordinate.worths import Needs, Worths
from headrace.core.addresses import SHIFT, Tier, pack
from headrace.core.forms import Form
from headrace.core.sparse import PAGE


class Pool:
    """Shelves, and room for what is on them. Each tier has addresses and a budget of bytes of its own.

    A newcomer goes to the fastest tier that has room, or where it is worth more than what has to go for it; what
    goes is gone. One sample of a shelf lies in one tier.
    """

    def __init__(
        self, spans: Mapping[Tier, int], needs: Needs, eviction: str = "auto", page: int = PAGE
    ) -> None:
        """``spans``: of each tier how many addresses there are, the fastest first."""
        self.shelves: dict[tuple[Form, str], Shelf] = {}
        self.savings = Savings(self.shelves)
        self.worths = Worths(needs, eviction, self.savings)
        self.rooms = {
            tier: Room(
                Space(span, page, pack(tier, 0)), self.shelves, self.worths, tier, alone=len(spans) == 1
            )
            for tier, span in spans.items()
        }
        self._rooms = tuple(self.rooms.values())
        self._only = self._rooms[0] if len(spans) == 1 else None

    def foresee(self, foreseen: Foreseen | None) -> None:
        """When each sample is needed next is known from now on; with None, it no longer is."""
        self.worths.foresee(foreseen)
        for room in self._rooms:
            room.foresee(foreseen)
        if foreseen is not None:
            for shelf in self.shelves.values():
                self.may_go(shelf, shelf.cached.ids())

    def may_go(self, shelf: Shelf, samples: Samples) -> None:
        """Where it is known when samples are needed: these are no longer read, or needed at another time."""
        for room in self._rooms:
            room.may_go(shelf, samples)

    def tick(self, events: int = 1) -> int:
        """The pool's own time: it counts what happens to samples."""
        self.worths.now += events
        return self.worths.now

    def epoch(self) -> None:
        """A job begins an epoch: a time to forget how much was needed."""
        for room in self._rooms:
            room.parts.forget_peaks()
        self.changed()

    def changed(self) -> None:
        """Who needs what has changed at large: what was found out about victims is out of date."""
        for room in self._rooms:
            room.victims.changed()

    def learn(self, shelves: Collection[Shelf], took: Took) -> None:
        """What workers of a job with these shelves took: so much is saved by what is cached."""
        if self.savings.learn(shelves, took):
            self.changed()
        took.clear()

    def learn_reading(self, tier: int, nbytes: int, seconds: float) -> None:
        """What reading so many bytes from a tier took."""
        found = next((known for known in self.rooms if known == tier), None)
        if found is not None and self.savings.learn_reading(found, nbytes, seconds):
            self.changed()

    def reconsider(self) -> None:
        """There is room again: newcomers that were refused may be worth it now."""
        for room in self._rooms:
            room.victims.reconsider()

    def shelf(self, form: Form, key: str, universe: int, body: int = 0) -> Shelf:
        """The shelf for a form with a key."""
        found = self.shelves.get((form, key))
        if found is None:
            found = self.shelves[form, key] = Shelf(form, key, universe, body)
        return found

    # -- room -------------------------------------------------------------------------------------------------

    def set_budget(self, budget: int, limits: Mapping[Part, int] | None, tier: Tier = Tier.ARENA) -> None:
        """Bytes of a tier in all, and by parts where that is split; each form is in one of them."""
        self.rooms[tier].set_budget(budget, limits)

    @property
    def budget(self) -> int:
        """Bytes in all."""
        return sum(room.parts.budget for room in self._rooms)

    @property
    def used(self) -> int:
        """Bytes of memory for what is filled, and for what was granted as far as it is expected to be."""
        return sum(room.used for room in self._rooms)

    @property
    def blocks(self) -> int:
        """Blocks that are filled or granted."""
        return sum(len(room.space) for room in self._rooms)

    @property
    def evictions(self) -> int:
        """Samples that had to go."""
        return sum(room.evictions for room in self._rooms)

    @property
    def limited(self) -> bool:
        """Whether a budget is split."""
        return any(room.parts.limited for room in self._rooms)

    def allows(self, form: Form) -> bool:
        """Whether anything of a form may be cached."""
        return any(room.parts.allows(form) for room in self._rooms)

    def room(self, form: Form) -> int:
        """Bytes that are free for a form."""
        return sum(room.free(form) for room in self._rooms)

    @property
    def spare(self) -> int:
        """Free bytes in which a decoded sample may stay: augmented ones on their way through leave them."""
        return sum(room.spare for room in self._rooms)

    def owed(self, shelf: Shelf) -> bool:
        """Whether a form has less than its part of a budget because another one has more."""
        return any(room.owed(shelf) for room in self._rooms)

    def size_for(self, shelf: Shelf) -> int:
        """Bytes to count for an extent in the fastest tier until it is known what it fills."""
        return self._rooms[0].size_for(shelf)

    def loose(self, resident: int, most: int = 16, tier: Tier = Tier.ARENA) -> list[tuple[int, int]]:
        """Ranges of a tier's memory, from offset to offset, to give back to the machine, which holds ``resident``
        bytes of it; some at a time."""
        base = pack(tier, 0)
        return [(start - base, end - base) for start, end in self.rooms[tier].loose(resident, most)]

    # -- what happens to samples ---------------------------------------------------------------------------

    def admit(
        self, shelf: Shelf, needs: Sequence[int], jobs: int, *, displace: bool = True
    ) -> list[Place | None]:
        """Room for newcomers: address and capacity of each. None for one that is not worth what would have to go.

        ``needs``: for each, how many jobs still need it. ``displace=False``: nothing has to go for them in any case.
        """
        if self._only is not None:
            return self._only.admit(shelf, needs, jobs, displace)
        places: list[Place | None] = [None] * len(needs)
        for room in self._rooms:
            left = [at for at, place in enumerate(places) if place is None]
            if left and room.parts.allows(shelf.form) and self.savings.saves(shelf, room.tier) > 0:
                found = room.admit(shelf, [needs[at] for at in left], jobs, displace)
                for at, place in zip(left, found, strict=True):
                    places[at] = place
        return places

    def store(
        self,
        shelf: Shelf,
        samples: Sequence[int],
        addresses: Sequence[int],
        sizes: Sequence[int],
        left: Sequence[int],
    ) -> None:
        """Admitted samples stand in their blocks; what these do not fill does not count.

        ``left``: for each, the jobs that have yet to take it.
        """
        for room, here in self._by_tier(addresses):
            if here is None:
                room.fill(shelf, samples, addresses, sizes)
            else:
                room.fill(shelf, *(list(compress(values, here)) for values in (samples, addresses, sizes)))
        shelf.learn(sizes)
        shelf.put(samples, addresses, sizes, self.tick(len(samples)), left)
        self.may_go(shelf, samples)

    def give_back(self, addresses: Collection[int]) -> None:
        """Blocks that nobody fills or reads any more."""
        for room, here in self._by_tier(addresses):
            room.give_back(addresses if here is None else list(compress(addresses, here)))

    def _by_tier(self, addresses: Collection[int]) -> Iterator[tuple[Room, list[bool] | None]]:
        """The rooms in which addresses are, and for each address whether it is there; None: all are."""
        if self._only is not None:
            yield self._only, None
            return
        for tier, room in self.rooms.items():
            here = [address >> SHIFT == tier for address in addresses]
            if any(here):
                yield room, here

    def evict(self, shelf: Shelf, samples: list[int]) -> None:
        """Cached samples go."""
        self.give_back(shelf.remove(samples))

    def fit(self) -> None:
        """Evict what is more than the budgets, as far as nobody reads it."""
        for room in self._rooms:
            room.fit()
