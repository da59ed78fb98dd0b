"""Room in one tier of a cache: who gets some of it, and who has to go for that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from headrace.coordinate.blocks import Blocks
from headrace.coordinate.foreseen import Foreseen
from headrace.coordinate.foreseen_victims import ForeseenVictims
from headrace.coordinate.parts import Part, Parts
from headrace.coordinate.shelf import Samples, Shelf
from headrace.coordinate.space import Space
from headrace.coordinate.victims import Shelves, Victims
from headrace.coordinate.worths import Worths
from headrace.core.addresses import Tier
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import aligned

_MOST = 64
"""Victims that one newcomer may cost."""
_IDLE = 8
"""Slabs may hold this part of the budget for blocks that are free, where what is left in them is worth it."""
_SLACK = 32
"""Free memory is not given back for less than this part of the budget."""
Place = tuple[int, int]
"""Address and capacity of a block."""


class Room:
    """The addresses of one tier under one budget of bytes, for the extents of all shelves."""

    def __init__(self, space: Space, shelves: Shelves, worths: Worths, tier: Tier, *, alone: bool) -> None:
        """``alone``: there is no other tier."""
        self.space, self.tier = space, tier
        self.parts = Parts()
        self.evictions = 0
        self._shelves, self._worths, self._alone = shelves, worths, alone
        self._blocks = Blocks(space)
        self.victims: Victims = Victims(shelves, self.parts, worths, tier, alone=alone)

    def foresee(self, foreseen: Foreseen | None) -> None:
        """From now on victims are found by their next use; with None, they are looked for as usual."""
        terms = self._shelves, self.parts, self._worths, self.tier
        if foreseen is None:
            self.victims = Victims(*terms, alone=self._alone)
        else:
            self.victims = ForeseenVictims(*terms, foreseen, alone=self._alone)

    def may_go(self, shelf: Shelf, samples: Samples) -> None:
        """Samples may have to go from now on, or at another time than was known."""
        if isinstance(self.victims, ForeseenVictims):
            self.victims.may_go(shelf, samples)

    def set_budget(self, budget: int, limits: Mapping[Part, int] | None) -> None:
        """Bytes in all, and by parts where the budget is split; each form is in one of them."""
        if self.parts.set(budget, limits):
            self.victims.changed()
            self.fit()

    # -- how much there is ----------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of memory for what is filled, and for what was granted as far as it is expected to be."""
        return sum(self.parts.used.values()) + self.space.idle

    @property
    def available(self) -> int:
        """Bytes that are not used."""
        return max(0, self.parts.budget - self.used)

    def free(self, form: Form) -> int:
        """Bytes that are free for a form: what is not used, and what its slabs hold anyway."""
        sizes = {self._sizes_for(shelf) for shelf in self._shelves.values() if shelf.form == form}
        return self.parts.room(form, self.available + self._blocks.unused(sizes))

    @property
    def spare(self) -> int:
        """Free bytes beyond what augmented samples on their way through have lately needed.

        What is put there may stay; what is put elsewhere would soon have to go again.
        """
        return self.free(Form.DECODED) - self.parts.awaited(Form.AUGMENTED, Form.DECODED)

    def owed(self, shelf: Shelf) -> bool:
        """Whether a form has less than its part of the budget because another one has more."""
        return self.parts.within(shelf.form, self.size_for(shelf)) and any(
            map(self.parts.overdrawn, CACHEABLE)
        )

    def size_for(self, shelf: Shelf) -> int:
        """Bytes to count for an extent until it is known what it fills."""
        return self._sizes_for(shelf)[1]

    def _sizes_for(self, shelf: Shelf) -> tuple[int, int]:
        return self._blocks.sizes_for(shelf, self.parts.budget)

    def _fits(self, shelf: Shelf, count: int = 1) -> bool:
        """Whether there is memory for so many newcomers."""
        block, nbytes = self._sizes_for(shelf)
        if not self.space.packs(block):
            return count * nbytes <= self.available
        # (Slabs may be shorter where little is left; for one newcomer a page will do.)
        cost = self.space.cost(block, count)
        return cost <= self.available or (count == 1 and self.space.page <= self.available)

    def loose(self, resident: int, most: int) -> list[tuple[int, int]]:
        """Ranges to give back to the machine, which holds ``resident`` bytes here; some at a time."""
        if resident <= self.parts.budget + self.parts.budget // _SLACK:
            self._blocks.forget_loose()
            return []
        return self._blocks.loose(most)

    # -- newcomers --------------------------------------------------------------------------------------------

    def admit(self, shelf: Shelf, needs: Sequence[int], jobs: int, displace: bool) -> list[Place | None]:
        """See ``Pool``."""
        nbytes, count = self.size_for(shelf), len(needs)
        places: list[Place | None] = []
        if self._fits(shelf, count) and self.parts.within(shelf.form, count * nbytes):
            places += self._take(shelf, count)
        hopeless = -1
        for need in needs[len(places) :]:
            # Where one was not worth it, another that fewer need is not either.
            place = self._admit(shelf, need, jobs, displace) if need > hopeless else None
            if place is None:
                hopeless = max(hopeless, need)
            places.append(place)
        return places

    def _admit(self, shelf: Shelf, needs: int, jobs: int, displace: bool) -> Place | None:
        nbytes = self.size_for(shelf)
        limited = None if self.parts.within(shelf.form, nbytes) else self.parts.part_of(shelf.form)
        if limited is not None and not self.parts.ever_holds(limited, nbytes):
            return None
        if limited is None and self._fits(shelf):
            places = self._take(shelf)
            # (with none, it is addresses that lack, which come back in their own time)
            return places[0] if places else None
        return self._displace(shelf, nbytes, needs, jobs, limited) if displace else None

    def _take(self, shelf: Shelf, count: int = 1) -> list[Place]:
        sizes = self._sizes_for(shelf)
        places = self._blocks.take(shelf, sizes, count, self.available)
        self.parts.charge(shelf.form, sizes[1] * len(places))
        return places

    def _displace(
        self, shelf: Shelf, nbytes: int, needs: int, jobs: int, limited: Part | None
    ) -> Place | None:
        size = aligned(shelf.expected) if shelf.known else nbytes
        worth = self._worths.newcomer(shelf, self.tier, size, needs, jobs)
        if self.victims.refuses(limited, worth):
            return None
        block = self._sizes_for(shelf)[0]
        due = limited is None and self.parts.limited
        for _ in range(_MOST):
            victim = self.victims.next(limited, worth)
            if victim is None:
                return self._replace_sparse(shelf, worth, block) if limited is None else None
            self._let_go(*victim, block, np.inf if due else worth)
            if self._fits(shelf) and self.parts.within(shelf.form, nbytes):
                places = self._take(shelf)
                if places:
                    return places[0]
        self.victims.refuse(limited, worth)
        return None

    def _replace_sparse(self, shelf: Shelf, worth: float, block: int) -> Place | None:
        """Where slabs hold much that is free, let those go for a newcomer in which little is left."""
        if self.space.idle * _IDLE < self.parts.budget:
            return None
        for address in self.space.sparse(block, _MOST):
            owner, sample = self._blocks.filled_with(address)
            if sample >= 0:
                self._let_go(owner, sample, block, worth)
            if self._fits(shelf):
                places = self._take(shelf)
                return places[0] if places else None
        return None

    # -- who goes ---------------------------------------------------------------------------------------------

    def _let_go(self, shelf: Shelf, sample: int, block: int, worth: float) -> None:
        """Evict a victim for somebody who gets a block of so many bytes and is worth that much.

        One in a slab makes room for others of its size. For anybody else all have to go that lie with it; so they do,
        unless one of them is in use, or all of the slab is worth more than what could be there instead.
        """
        address = shelf.address_of(sample)
        victims = {shelf: [sample]}
        size = self.space.size_of(address)
        if self.space.packs(size) and size != block:
            victims, stay = self._blocks.slab_of(address)
            lost = sum(
                self._worths.cached(owner, self.tier, owner.rows(some)).sum()
                for owner, some in victims.items()
            )
            if stay or lost > worth * self.space.places(address):
                return
        self._evict(victims)

    def fit(self) -> None:
        """Evict what is more than the budget, as far as nobody reads it.

        That is so when the budget became smaller, and when extents turned out larger than was expected. What is
        more than a form's limit stays until there are others of that form: somebody may still take it.
        """
        while self.used > self.parts.budget and self._evict_one():
            pass

    def _evict_one(self) -> bool:
        """The sample that is worth least goes, even where the policy evicts nothing; whether there was one."""
        victim = self.victims.next(None, np.inf)
        if victim is None:
            found = self.victims.look(None, forced=True)
            if not found:
                return False
            victim = found[-1][1:]
        shelf, sample = victim
        address = shelf.address_of(sample)
        packed = self.space.packs(self.space.size_of(address))
        self._evict(self._blocks.slab_of(address)[0] if packed else {shelf: [sample]})
        return True

    def _evict(self, victims: dict[Shelf, list[int]]) -> None:
        for shelf, samples in victims.items():
            self.give_back(shelf.remove(samples))
            self.evictions += len(samples)

    # -- what happens to blocks -------------------------------------------------------------------------------

    def fill(
        self, shelf: Shelf, samples: Sequence[int], addresses: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Samples stand in their blocks; what these do not fill does not count."""
        self.parts.charge(shelf.form, self._blocks.fill(shelf, samples, addresses, sizes))

    def give_back(self, addresses: Collection[int]) -> None:
        """Blocks that nobody fills or reads any more."""
        self._blocks.give_back(addresses, self.parts.used)
