"""The pool: the shared cache's contents. What is admitted, where it goes, and what has to go for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.shelf import SAVES, Shelf
from headrace.coordinate.space import Space
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import aligned
from headrace.core.sparse import PAGE
from headrace.eviction import EVICTIONS, Entries

Ids = NDArray[np.int64]
Part = tuple[Form, ...]
"""Forms that have a part of the budget together."""
Needs = Callable[[Shelf, Ids], NDArray[np.int64]]
"""How many jobs still need each sample in their present epochs and could take it from that shelf."""

_PATIENCE = 32
"""After a newcomer was refused, so many events pass before the whole cache is looked over again; more of them in a
large one, where a look costs more and each event changes less: a part of what is cached."""
_PART = 16
_QUEUE = 128
"""Victims found in one look."""
_MOST = 64
"""Victims that one newcomer may cost."""
_IDLE = 8
"""Slabs may hold this part of the budget for blocks that are free, where what is left in them is worth it."""
_FIRST = 64
"""Extents of which the size cannot be guessed may each fill this part of the budget."""
_SLACK = 32
"""Free memory is not given back for less than this part of the budget."""


class Pool:
    """Shelves in one range of addresses, under one budget of bytes and one eviction policy.

    Addresses are plenty and cost nothing, so an extent of unknown size gets more of them than it will need, and
    the budget counts what extents fill. What was filled and is free again stays in the machine's memory, to be
    filled anew at little cost; when that becomes too much, ``loose`` says what to give back.
    """

    def __init__(self, span: int, needs: Needs, eviction: str = "auto", page: int = PAGE) -> None:
        self.space = Space(span, page)
        self.shelves: dict[tuple[Form, str], Shelf] = {}
        self.eviction = EVICTIONS[eviction]
        self.evictions = 0
        self.budget = 0
        self._needs = needs
        self._limits: dict[Part, int] | None = None
        self._parts: dict[Form, Part] = {}
        """Of each form: those with which it has a limit in common."""
        self._used = dict.fromkeys(CACHEABLE, 0)
        self._peak = dict.fromkeys(CACHEABLE, 0)
        self._sizes: dict[int, tuple[Shelf, int, int]] = {}
        """Of each block: whose it is, the bytes that count, and the sample that fills it; -1: none yet."""
        self._unsized: set[int] = set()
        """Blocks for extents of which nobody could guess the size."""
        self._loose: list[tuple[int, int]] = []
        self._cuts = 0
        self._clock = 0
        self._victims: dict[Part | None, list[tuple[float, Shelf, int]]] = {}
        self._refused: dict[Part | None, tuple[float, int]] = {}
        self._worths: dict[tuple[Form, int, int, int], float] = {}

    def tick(self, events: int = 1) -> int:
        """The pool's own time: it counts what happens to samples."""
        self._clock += events
        return self._clock

    def changed(self) -> None:
        """Who needs what has changed at large: what was found out about victims is out of date."""
        self._victims.clear()
        self._refused.clear()

    def reconsider(self) -> None:
        """There is room again: newcomers that were refused may be worth it now."""
        self._refused.clear()

    def shelf(self, form: Form, key: str, universe: int, body: int = 0) -> Shelf:
        """The shelf for a form with a key."""
        found = self.shelves.get((form, key))
        if found is None:
            found = self.shelves[form, key] = Shelf(form, key, universe, body)
        return found

    def set_budget(self, budget: int, limits: Mapping[Part, int] | None) -> None:
        """Bytes in all, and by parts where the budget is split; each form is in one of them."""
        if (budget, limits) != (self.budget, self._limits):
            self.budget = budget
            self._limits = None if limits is None else dict(limits)
            self._parts = {form: part for part in limits or () for form in part}
            self.changed()
            self.fit()

    def fit(self) -> None:
        """Evict what is more than the budget, as far as nobody reads it.

        That is so when the budget became smaller, and when extents turned out larger than was expected. What is
        more than a form's limit stays until there are others of that form: somebody may still take it.
        """
        while self.used > self.budget and self._evict_one():
            pass

    def _evict_one(self) -> bool:
        """The sample that is worth least goes, even where the policy evicts nothing; whether there was one."""
        victim = self._next_victim(None, np.inf)
        if victim is None:
            found = self._look(None, forced=True)
            if not found:
                return False
            victim = found[-1][1:]
        shelf, sample = victim
        offset = self._offset(shelf, sample)
        packed = self.space.packs(self.space.size_of(offset))
        self._evict_all(self._slab_of(offset)[0] if packed else {shelf: [sample]})
        return True

    @property
    def limited(self) -> bool:
        """Whether the budget is split."""
        return self._limits is not None

    def allows(self, form: Form) -> bool:
        """Whether anything of a form may be cached."""
        return self.budget > 0 and (self._limits is None or self._limits[self._parts[form]] > 0)

    def room(self, form: Form) -> int:
        """Bytes that are free for a form: what is not used, and what its slabs hold anyway."""
        sizes = {self._sizes_for(shelf) for shelf in self.shelves.values() if shelf.form == form}
        room = self.available + sum(nbytes * self.space.unused(block) for block, nbytes in sizes)
        if self._limits is None:
            return room
        part = self._parts[form]
        return max(0, min(room, self._limits[part] - self._used_by(part)))

    def _used_by(self, part: Part) -> int:
        return sum(self._used[form] for form in part)

    def owed(self, shelf: Shelf) -> bool:
        """Whether a form has less than its part of the budget because another one has more."""
        return self._within_limit(shelf.form, self.size_for(shelf)) and any(map(self._overdrawn, CACHEABLE))

    def _overdrawn(self, form: Form) -> bool:
        if self._limits is None:
            return False
        part = self._parts[form]
        return self._used_by(part) > self._limits[part]

    # -- the machine's memory -------------------------------------------------------------------------------

    def loose(self, resident: int, most: int = 16) -> list[tuple[int, int]]:
        """Ranges to give back to the machine, which holds ``resident`` bytes for this pool; some at a time."""
        if resident <= self.budget + self.budget // _SLACK:
            self._loose = []
            return []
        if not self._loose:
            self._loose = self._find_loose()
        found, self._loose = self._loose[-most:], self._loose[:-most]
        ranges = {block: self._unfilled(block, end) for block, end in found}
        ranges = {block: (start, end) for block, (start, end) in ranges.items() if start < end}
        self.space.hollow.update(ranges)
        return list(ranges.values())

    def _find_loose(self) -> list[tuple[int, int]]:
        """Blocks that are not filled, and their ends. Those last of which most is free, as little is soon filled
        again; of equal ones, those that are filled again last."""
        space = self.space
        blocks = [
            (offset, offset + space.size_of(offset)) for offset in self._sizes if offset not in space.hollow
        ]
        found = [
            (end - start, block, end)
            for block, end in [*reversed(space.free_blocks()), *blocks]
            if (start := self._unfilled(block, end)[0]) + space.page <= end
        ]
        return [(block, end) for _, block, end in sorted(found, key=lambda item: item[0])]

    def _unfilled(self, block: int, end: int) -> tuple[int, int]:
        """The part of a block that is free as it is now. (What was a block may be a slab: all of that is in use.)"""
        if self.space.is_slab(block):
            return end, end
        _, nbytes, sample = self._sizes.get(block, (None, 0, 0))
        return block + nbytes if sample >= 0 else end, end

    # -- room ---------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of memory for what is filled, and for what was granted as far as it is expected to be."""
        return sum(self._used.values()) + self.space.idle

    @property
    def available(self) -> int:
        """Bytes that are not used."""
        return max(0, self.budget - self.used)

    def size_for(self, shelf: Shelf) -> int:
        """Bytes to count for an extent until it is known what it fills.

        While nobody can guess, that is all that it may fill: some large ones must not be more than the budget.
        """
        return self._sizes_for(shelf)[1]

    def _sizes_for(self, shelf: Shelf) -> tuple[int, int]:
        """The block that an extent gets, and the bytes to count for it."""
        page = self.space.page
        block = aligned(shelf.capacity if shelf.known else min(shelf.capacity, self.budget // _FIRST or 1))
        if self.space.packs(block):
            return block, self.space.share(block)
        return aligned(block, page), aligned(shelf.expected) if shelf.known else block

    def _fits(self, shelf: Shelf, count: int = 1) -> bool:
        """Whether there is memory for so many newcomers."""
        block, nbytes = self._sizes_for(shelf)
        if not self.space.packs(block):
            return count * nbytes <= self.available
        # (Slabs may be shorter where little is left; for one newcomer a page will do.)
        cost = self.space.cost(block, count)
        return cost <= self.available or (count == 1 and self.space.page <= self.available)

    def admit(
        self, shelf: Shelf, needs: Sequence[int], jobs: int, *, displace: bool = True
    ) -> list[tuple[int, int] | None]:
        """Room for newcomers: offset and capacity of each. None for one that is not worth what would have to go.

        ``needs``: for each, how many jobs still need it. ``displace=False``: nothing has to go for them in any case.
        """
        nbytes, count = self.size_for(shelf), len(needs)
        places: list[tuple[int, int] | None] = []
        if self._fits(shelf, count) and self._within_limit(shelf.form, count * nbytes):
            places += self._take(shelf, count)
        hopeless = -1
        for need in needs[len(places) :]:
            # Where one was not worth it, another that fewer need is not either.
            place = self._admit(shelf, need, jobs, displace) if need > hopeless else None
            if place is None:
                hopeless = max(hopeless, need)
            places.append(place)
        return places

    def _admit(self, shelf: Shelf, needs: int, jobs: int, displace: bool) -> tuple[int, int] | None:
        nbytes = self.size_for(shelf)
        limited = None if self._within_limit(shelf.form, nbytes) else self._parts[shelf.form]
        if limited is not None and self._limits is not None and nbytes > self._limits[limited]:
            return None
        if limited is None and self._fits(shelf):
            places = self._take(shelf)
            # (with none, it is addresses that lack, which come back in their own time)
            return places[0] if places else None
        return self._displace(shelf, nbytes, needs, jobs, limited) if displace else None

    def _within_limit(self, form: Form, nbytes: int) -> bool:
        if self._limits is None:
            return True
        part = self._parts[form]
        return self._used_by(part) + nbytes <= self._limits[part]

    def _take(self, shelf: Shelf, count: int = 1) -> list[tuple[int, int]]:
        form = shelf.form
        places: list[tuple[int, int]] = []
        block, nbytes = self._sizes_for(shelf)
        packed = self.space.packs(block)
        least = block if packed else aligned(nbytes, self.space.page)
        for capacity in (block, least):  # the second if addresses are cut up
            offsets = self.space.take(capacity, count - len(places), self.available)
            self._sizes.update(dict.fromkeys(offsets, (shelf, nbytes, -1)))
            places += [(offset, capacity) for offset in offsets]
            if not shelf.known:
                self._unsized.update(offsets)
            if len(places) == count:
                break
        if self.space.cuts != self._cuts:  # ends of free blocks that were found do not hold any more
            self._cuts, self._loose = self.space.cuts, []
        self._charge(form, nbytes * len(places))
        return places

    def _charge(self, form: Form, nbytes: int) -> None:
        used = self._used[form] = self._used[form] + nbytes
        if used > self._peak[form]:
            self._peak[form] = used

    @property
    def spare(self) -> int:
        """Free bytes beyond what augmented samples on their way through have lately needed.

        What is put there may stay; what is put elsewhere would soon have to go again.
        """
        room = self.room(Form.DECODED)
        if self._limits is not None and Form.AUGMENTED not in self._parts[Form.DECODED]:
            return room
        return room - max(0, self._peak[Form.AUGMENTED] - self._used[Form.AUGMENTED])

    def epoch(self) -> None:
        """A job begins an epoch: a time to forget old peaks, little by little."""
        self._peak = {form: max(self._used[form], int(0.95 * peak)) for form, peak in self._peak.items()}
        self.changed()

    def _displace(
        self, shelf: Shelf, nbytes: int, needs: int, jobs: int, limited: Part | None
    ) -> tuple[int, int] | None:
        worth = self._worth(shelf, aligned(shelf.expected) if shelf.known else nbytes, needs, jobs)
        before = self._refused.get(limited)
        if before is not None:
            bar, since = before
            if self._clock - since < self._patience() and (worth <= bar if self.eviction.strict else True):
                return None
        block = self._sizes_for(shelf)[0]
        due = limited is None and self._limits is not None
        for _ in range(_MOST):
            victim = self._next_victim(limited, worth)
            if victim is None:
                return self._replace_sparse(shelf, worth, block) if limited is None else None
            self._let_go(*victim, block, np.inf if due else worth)
            if self._fits(shelf) and self._within_limit(shelf.form, nbytes):
                places = self._take(shelf)
                if places:
                    return places[0]
        self._refused[limited] = (worth, self._clock)
        return None

    def _replace_sparse(self, shelf: Shelf, worth: float, block: int) -> tuple[int, int] | None:
        """Where slabs hold much that is free, let those go for a newcomer in which little is left."""
        if self.space.idle * _IDLE < self.budget:
            return None
        for offset in self.space.sparse(block, _MOST):
            owner, _, sample = self._sizes[offset]
            if sample >= 0:
                self._let_go(owner, sample, block, worth)
            if self._fits(shelf):
                places = self._take(shelf)
                return places[0] if places else None
        return None

    def _let_go(self, shelf: Shelf, sample: int, block: int, worth: float) -> None:
        """Evict a victim for somebody who gets a block of so many bytes and is worth that much.

        One in a slab makes room for others of its size. For anybody else all have to go that lie with it; so they do,
        unless one of them is in use, or all of the slab is worth more than what could be there instead.
        """
        offset = self._offset(shelf, sample)
        victims = {shelf: [sample]}
        size = self.space.size_of(offset)
        if self.space.packs(size) and size != block:
            victims, stay = self._slab_of(offset)
            lost = sum(self._worths_of(owner, owner.rows(some)).sum() for owner, some in victims.items())
            if stay or lost > worth * self.space.places(offset):
                return
        self._evict_all(victims)

    @staticmethod
    def _offset(shelf: Shelf, sample: int) -> int:
        return int(shelf.find([sample])[0][0])

    def _evict_all(self, victims: dict[Shelf, list[int]]) -> None:
        for shelf, samples in victims.items():
            self.evict(shelf, samples)
            self.evictions += len(samples)

    def _slab_of(self, offset: int) -> tuple[dict[Shelf, list[int]], int]:
        """The samples that lie with one in its slab and could go, by shelf; and how many blocks there could not."""
        victims: dict[Shelf, list[int]] = {}
        stay = 0
        for mate in self.space.mates(offset):
            owner, _, sample = self._sizes[mate]
            if sample < 0 or owner.busy.get(sample):
                stay += 1
            else:
                victims.setdefault(owner, []).append(sample)
        return victims, stay

    def _patience(self) -> int:
        return max(_PATIENCE, sum(map(len, self.shelves.values())) // _PART)

    def _worth(self, shelf: Shelf, nbytes: int, needs: int, jobs: int) -> float:
        """What a newcomer is worth. Asked for every sample that is prepared, and mostly with the same answer."""
        key = (shelf.form, nbytes, needs, jobs)
        worth = self._worths.get(key)
        if worth is None:
            entry = Entries(
                needs=np.array([needs]),
                uses=np.array([0]),
                admitted=np.array([self._clock + 1]),
                used=np.array([self._clock + 1]),
                nbytes=np.array([nbytes]),
                saves=np.array([SAVES[shelf.form]]),
                lasting=np.array([shelf.form != Form.AUGMENTED]),
            )
            worth = float(self.eviction.worth(entry, np.array([max(jobs, 1)]))[0])
            if self.eviction.strict:  # else it depends on the time
                if len(self._worths) > 4096:
                    self._worths.clear()
                self._worths[key] = worth
        return worth

    def _next_victim(self, limited: Part | None, worth: float) -> tuple[Shelf, int] | None:
        queue = self._victims.get(limited)
        while True:
            if not queue:
                queue = self._victims[limited] = self._look(limited)
                if not queue:
                    self._refused[limited] = (np.inf, self._clock)
                    return None
            value, shelf, sample = queue[-1]
            if sample not in shelf or shelf.busy.get(sample):
                queue.pop()
                continue
            # What is more than its form's part of the budget has to go, whatever it is worth.
            due = limited is None and self._limits is not None
            if due and not self._overdrawn(shelf.form):
                queue.clear()
                continue
            if not due and (worth <= value if self.eviction.strict else worth < value):
                self._refused[limited] = (value, self._clock)
                del self._victims[limited]
                return None
            queue.pop()
            return shelf, sample

    def _worths_of(self, shelf: Shelf, table: NDArray[np.int64]) -> NDArray[np.float64]:
        """What cached samples are worth, by their rows."""
        entries = Entries(
            needs=self._needs(shelf, table[:, 0]),
            uses=table[:, 3],
            admitted=table[:, 4],
            used=table[:, 5],
            nbytes=np.maximum(table[:, 2], 1),
            saves=np.full(len(table), SAVES[shelf.form]),
            lasting=np.full(len(table), shelf.form != Form.AUGMENTED),
        )
        return self.eviction.worth(entries, np.full(len(table), len(shelf.jobs)))

    def _look(self, limited: Part | None, *, forced: bool = False) -> list[tuple[float, Shelf, int]]:
        """The cached samples that are worth least, the least last. ``forced``: also those that are to stay."""
        found: list[tuple[float, Shelf, int]] = []
        for shelf in self.shelves.values():
            if limited is not None and shelf.form not in limited:
                continue
            if (
                limited is None
                and self._limits is not None
                and not forced
                and not self._overdrawn(shelf.form)
            ):
                continue
            table = shelf.entries()
            if not len(table):
                continue
            worth = self._worths_of(shelf, table)
            least = smallest(worth, _QUEUE)
            if not forced:
                least = least[np.isfinite(worth[least])]
            found += [(float(worth[at]), shelf, int(table[at, 0])) for at in least]
        found.sort(key=lambda item: -item[0])
        return found[-_QUEUE:]

    # -- what happens to samples ---------------------------------------------------------------------------

    def store(
        self,
        shelf: Shelf,
        samples: Sequence[int],
        offsets: Sequence[int],
        sizes: Sequence[int],
        left: Sequence[int],
    ) -> None:
        """Admitted samples stand in their blocks; what these do not fill does not count.

        ``left``: for each, the jobs that have yet to take it.
        """
        held, size_of, page = self._sizes, self.space.size_of, self.space.page
        more = 0
        for sample, offset, nbytes in zip(samples, offsets, sizes, strict=True):
            if offset in self._unsized:  # nobody knew how small it is
                self._unsized.discard(offset)
                self.space.shrink(offset, nbytes)
                self._loose = []  # an end that was found may be another block's now
            block, kept = size_of(offset), held[offset][1]
            # Of a block that is not filled, the machine holds the pages that are; of one in a slab, all.
            if block >= page:
                filled = min(block, aligned(nbytes, page))
                more += filled - kept
                kept = filled
            held[offset] = (shelf, kept, sample)
        self._charge(shelf.form, more)
        shelf.learn(sizes)
        shelf.put(samples, offsets, sizes, self.tick(len(samples)), left)

    def give_back(self, offsets: Collection[int]) -> None:
        """Blocks that nobody fills or reads any more."""
        self._unsized.difference_update(offsets)
        used, held = self._used, self._sizes
        for offset in offsets:
            shelf, size, _ = held.pop(offset)
            used[shelf.form] -= size
        self.space.free(offsets)

    def evict(self, shelf: Shelf, samples: list[int]) -> None:
        """Cached samples go."""
        self.give_back(shelf.remove(samples))


def smallest(values: NDArray[np.float64], count: int) -> Ids:
    """Where the ``count`` smallest values are, the smallest first; of equal ones, the first."""
    if len(values) <= 2 * count:
        return np.argsort(values, kind="stable")[:count]
    bar = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < bar)
    equal = np.flatnonzero(values == bar)[: count - len(below)]
    return np.concatenate([below[np.argsort(values[below], kind="stable")], equal])
