"""The directory of a job's own cache: which sample is cached in which form and where, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.costs import Took
from headrace.coordinate.foreseen import Foreseen
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.pool import Pool
from headrace.coordinate.shelf import Shelf
from headrace.core.addresses import NOWHERE, Tier
from headrace.core.bits import drop, put, test
from headrace.core.forms import CACHEABLE, Form
from headrace.sampling import Draw, Foresight, epochs_worth_knowing
from headrace.sampling.foresight import MOST_SAMPLES

Ids = NDArray[np.int64]
Encoded = bytes
"""(``bytes`` is also what a directory calls the sizes of its contents.)"""
_IS_DECODED = int(Form.DECODED)  # numpy takes long over enumerations


class Catalogue(Protocol):
    """What a coordinator asks about cached samples, whoever keeps them."""

    @property
    def budgets(self) -> Mapping[Form, int]: ...
    @property
    def bytes(self) -> Mapping[Form, int]: ...
    @property
    def samples(self) -> Mapping[Form, int]: ...
    @property
    def hits(self) -> Mapping[Form, int]: ...

    def dress(self, order: Order, drawn: Draw, *, again: bool = False) -> None:
        """Say how each row of an order enters and what is kept of it. ``again``: another order with these rows
        was lost."""
        ...

    def done(self, order: Order, event: OrderDone) -> None:
        """An order is finished."""
        ...

    def lost(self, order: Order) -> None:
        """An order will not be finished."""
        ...


@dataclass(frozen=True)
class TierTerms:
    """What a directory may use of a tier."""

    span: int
    """Addresses."""
    budgets: Mapping[Form, int]
    """Bytes for each form."""


@dataclass(eq=False)
class _Open:
    """What an order that is under way holds of the cache."""

    ids: Ids
    keep: NDArray[np.uint8]
    blocks: dict[int, tuple[Form, int]]
    """Granted and not filled, by address: form and capacity."""
    reads: list[tuple[Shelf, list[int]]]


class Directory:
    """A job's own cache.

    A sample lasts in one form: decoded while there is room for that, else encoded. Of a job with one rank, what is
    cached stays, for with each sample needed once an epoch no other one would be needed sooner; it goes only when the
    cache is divided anew, and then as others come for its room.

    A rank of several gets other samples in each epoch, and it may be many epochs before it gets one again. Where it
    is known when (``Draw.known``), what it needs last goes for what it needs sooner.
    """

    def __init__(
        self,
        size: int,
        budgets: Mapping[Form, int],
        span: int = 0,
        beside: Mapping[Tier, TierTerms] | None = None,
    ) -> None:
        """``span``: addresses of the cache's memory. They cost nothing, and there should be far more than bytes.

        ``beside``: tiers for what finds no room in the arena, the fastest first.
        """
        beside = beside or {}
        self.size = size
        spans = {Tier.ARENA: span, **{tier: terms.span for tier, terms in beside.items()}}
        self.pool = Pool(spans, lambda _, ids: np.zeros(len(ids), np.int64))
        self.hits = dict.fromkeys((Form.NONE, *CACHEABLE), 0)
        self._shelves: dict[Form, Shelf] = {}
        self._open: dict[int, _Open] = {}
        self._took = Took()
        self._foresight: Foresight | None = None
        self._foreseen: Foreseen | None = None
        self._drawn: Draw | None = None
        """The last draw whose rows were looked up."""
        self._budgets: dict[Tier, dict[Form, int]] = {}
        self.set_split(budgets)
        for tier, terms in beside.items():
            self.set_split(terms.budgets, tier)

    def set_split(self, budgets: Mapping[Form, int], tier: Tier = Tier.ARENA) -> None:
        """Split a tier of the cache anew. What a form has too much goes when another one needs the room."""
        parts = self._budgets[tier] = {form: budgets.get(form, 0) for form in CACHEABLE}
        self.pool.set_budget(sum(parts.values()), {(form,): budget for form, budget in parts.items()}, tier)
        for form, budget in parts.items():
            if budget and form != Form.AUGMENTED and form not in self._shelves:
                self._shelves[form] = self.pool.shelf(form, "", self.size)
                self._shelves[form].jobs.add(0)

    @property
    def budgets(self) -> Mapping[Form, int]:
        """Bytes of the arena for each form."""
        return self._budgets[Tier.ARENA]

    @property
    def bytes(self) -> Mapping[Form, int]:
        """Bytes of what is cached, by form."""
        return {form: self._shelves[form].bytes if form in self._shelves else 0 for form in CACHEABLE}

    @property
    def samples(self) -> Mapping[Form, int]:
        """Samples that are cached, by form."""
        return {form: len(self._shelves[form]) if form in self._shelves else 0 for form in CACHEABLE}

    @property
    def drawn(self) -> int:
        """Samples that were asked for."""
        return sum(self.hits.values())

    def mean(self, form: Form) -> float:
        """Mean bytes of a sample in a form, as far as any was seen; else 0."""
        shelf = self._shelves.get(form)
        return float(shelf.expected) if shelf is not None and shelf.known else 0.0

    @property
    def unsure(self) -> bool:
        """Whether the first samples of a form are being made, from which their size will be known. Till then few can
        be granted room: each might need much."""
        forms = {form for form, shelf in self._shelves.items() if not shelf.known}
        if not forms:
            return False
        return any(form in forms for opened in self._open.values() for form, _ in opened.blocks.values())

    def too_small_for(self) -> int:
        """Bytes that a sample was seen to need, where the whole cache has no room for one; else 0."""
        sizes = [shelf.expected for shelf in self._shelves.values() if shelf.known]
        return min(sizes) if sizes and min(sizes) > self.pool.budget and not any(self.samples.values()) else 0

    def dress(self, order: Order, drawn: Draw, *, again: bool = False) -> None:
        """See ``Catalogue``."""
        if not self._shelves:
            return
        if drawn is not self._drawn and drawn.known is not None and not again:
            self._foresee(drawn)
        ids = order.index_array()
        count = len(ids)
        forms = np.zeros(count, np.uint8)
        offsets = np.full(count, NOWHERE, np.int64)
        lengths = np.zeros(count, np.int64)
        reads: list[tuple[Shelf, list[int]]] = []
        for form in (Form.DECODED, Form.ENCODED):
            shelf = self._shelves.get(form)
            if shelf is None or not len(shelf):
                continue
            rows = np.flatnonzero(test(shelf.cached.words, ids) & (forms == 0))
            if len(rows):
                samples = ids[rows].tolist()
                forms[rows] = int(form)
                offsets[rows], lengths[rows] = shelf.find(samples)
                shelf.read(samples)
                reads.append((shelf, samples))
        opened = _Open(ids, np.zeros(count, np.uint8), {}, reads)
        if (forms < _IS_DECODED).any():
            self._keep(opened, forms)
        order.forms, order.offsets, order.lengths = forms.tobytes(), offsets.tobytes(), lengths.tobytes()
        order.keep = opened.keep.tobytes()
        if opened.blocks:
            grants = [(int(form), offset, size) for offset, (form, size) in opened.blocks.items()]
            order.grants = np.array(grants, np.int64).tobytes()
        self._open[order.id] = opened
        if not again:
            for value, number in enumerate(np.bincount(forms, minlength=len(self.hits)).tolist()):
                self.hits[Form(value)] += number

    def _foresee(self, drawn: Draw) -> None:
        """The next batch is drawn: from now on its samples are needed when they come again."""
        self._drawn, known = drawn, drawn.known
        assert known is not None
        foresight = self._foresight
        if foresight is None:
            if known.geometry.world_size < 2 or not known.shuffled:
                return
            if known.size >= MOST_SAMPLES or self.size != known.size:
                return
            foresight = self._foresight = Foresight(known, [known.geometry.rank])
            due = foresight.next_uses.due
            self._foreseen = Foreseen(lambda _: due, foresight.grain)
            self.pool.foresee(self._foreseen)
        if drawn.epoch != foresight.epoch:
            foresight.epochs = epochs_worth_knowing(1 / known.geometry.world_size, self._part())
        changed = foresight.follow(drawn)
        if len(changed):
            for shelf in self._shelves.values():
                self.pool.may_go(shelf, changed[test(shelf.cached.words, changed)].tolist())

    def _part(self) -> float:
        """The share of all samples that the cache has room for, as far as one can tell."""
        room = sum(
            terms[form] / shelf.expected
            for terms in self._budgets.values()
            for form, shelf in self._shelves.items()
            if shelf.known
        )
        return min(1.0, room / max(1, self.size))

    def _nearness(self, shelf: Shelf, ids: Ids) -> list[int]:
        """How soon samples are needed again, as far as that is known."""
        if self._foresight is None or self._foreseen is None or self._foresight.blind:
            return [0] * len(ids)
        near: list[int] = self._foreseen.newcomers(shelf, ids).tolist()
        return near

    def _keep(self, opened: _Open, forms: NDArray[np.uint8]) -> None:
        """Decide what of an order's rows is kept, and grant memory for it."""
        ids = opened.ids
        # A sample may come twice in one order; only its first row keeps it.
        left = np.sort(np.unique(ids, return_index=True)[1])
        left = left[forms[left] < _IS_DECODED]
        for form in (Form.DECODED, Form.ENCODED):
            shelf = self._shelves.get(form)
            if shelf is None or not self.pool.allows(form):
                continue
            left = left[~test(shelf.pending.words, ids[left])]  # another order is about to cache those
            rows = left[forms[left] < int(form)]
            if not len(rows):
                continue
            near = self._nearness(shelf, ids[rows])
            places = self.pool.admit(shelf, near, 1, displace=any(near) or self.pool.owed(shelf))
            kept = np.array([place is not None for place in places], np.bool_)
            if not kept.any():
                continue
            opened.blocks.update((place[0], (form, place[1])) for place in places if place is not None)
            opened.keep[rows[kept]] |= np.uint8(1 << form)
            put(shelf.pending.words, ids[rows[kept]])
            left = left[(opened.keep[left] & np.uint8(1 << form)) == 0]

    def done(self, order: Order, event: OrderDone) -> None:
        """See ``Catalogue``."""
        opened = self._open.pop(order.id, None)
        if opened is None:
            return
        for form, wanted in zip(CACHEABLE, event.wanted, strict=True):
            if wanted and form in self._shelves:
                self._shelves[form].too_small(wanted)
        if self._took.add(event.spent, len(opened.ids)):
            self.pool.learn(self._shelves.values(), self._took)
        for tier, nbytes, seconds in event.read:
            self.pool.learn_reading(tier, nbytes, seconds)
        self._close(opened, event.published)
        self.pool.fit()

    def lost(self, order: Order) -> None:
        """See ``Catalogue``."""
        opened = self._open.pop(order.id, None)
        if opened is not None:
            self._close(opened, b"")

    def _close(self, opened: _Open, published: Encoded) -> None:
        """An order is over: what it read may go, what it published stands, and the rest may be tried again."""
        for shelf, samples in opened.reads:
            shelf.release(samples)
            self.pool.may_go(shelf, samples)
        if opened.reads:
            self.pool.reconsider()  # what nobody reads any more may make room
        rows: dict[Form, list[tuple[int, int, int]]] = {}
        for row, form_, offset, nbytes in np.frombuffer(published, np.int64).reshape(-1, 4).tolist():
            form, capacity = opened.blocks.pop(offset)
            if int(form) != form_ or nbytes > capacity:
                raise ValueError(f"{nbytes} bytes of form {form_} in a block of {capacity} for {form.name}")
            rows.setdefault(form, []).append((int(opened.ids[row]), offset, nbytes))
        self.pool.give_back(opened.blocks)
        for form, extents in rows.items():
            ids, offsets, sizes = zip(*extents, strict=True)
            self.pool.store(self._shelves[form], ids, offsets, sizes, [0] * len(ids))
        for form, shelf in self._shelves.items():
            marked = opened.ids[(opened.keep & np.uint8(1 << form)) != 0]
            if len(marked):
                drop(shelf.pending.words, marked)
        encoded = self._shelves.get(Form.ENCODED)
        if encoded is not None and len(encoded) and Form.DECODED in rows:
            again = [sample for sample, _, _ in rows[Form.DECODED] if sample in encoded]
            self.pool.evict(encoded, [sample for sample in again if not encoded.busy.get(sample)])
