"""Jobs over a real ``Commons``, with a memory of their own making: what they are told is checked as it comes.

``World`` knows of the commons only what jobs are told. It keeps the bytes that were granted, published and read,
so that an extent handed out twice, overwritten while it is read, or served for another sample is an error at
once. Tests drive it event by event; ``clock.run`` drives it in virtual time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.commons import Commons
from headrace.coordinate.events import (
    Answer,
    Asked,
    Began,
    Buried,
    Came,
    Done,
    Event,
    GiveBack,
    Gone,
    Named,
    Ticked,
    WasIdle,
)
from headrace.coordinate.members import write_progress
from headrace.coordinate.protocol import (
    Begin,
    Drawn,
    Fill,
    Finished,
    Join,
    Joined,
    Known,
    Over,
    Refused,
    Reply,
    Update,
)
from headrace.core.addresses import Tier
from headrace.core.bits import Bits
from headrace.core.forms import Form
from headrace.core.layout import aligned
from headrace.core.sparse import PAGE
from headrace.planning import Spent
from headrace.sampling import epoch_order

Ids = NDArray[np.int64]
Publish = Callable[[Form, int], int | None]
"""By form and capacity of a grant: the bytes that are put there; None: it is not used."""
KEYS = ("e", "d", "a")
BYTES = {Form.ENCODED: 5_000, Form.DECODED: 56_000, Form.AUGMENTED: 15_000}
"""Of a sample that a job prepares as it should."""


def unpacked(grants: bytes) -> list[tuple[int, int, int, int]]:
    """Rows of (row, form, offset, capacity)."""
    return [
        (row, form, at, size)
        for row, form, at, size in np.frombuffer(grants, np.int64).reshape(-1, 4).tolist()
    ]


def counted(block: int, nbytes: int, page: int = PAGE) -> int:
    """What an extent in a block costs: whole pages, as far as the block goes."""
    return min(block, aligned(nbytes, page))


def prepared(form: Form, capacity: int) -> int | None:
    """An extent of the usual size, if there is room for it."""
    return BYTES[form] if BYTES[form] <= capacity else None


def identities(samples: Ids) -> NDArray[np.uint8]:
    """16 bytes for each number."""
    table = np.empty((len(samples), 2), np.uint64)
    table[:, 0] = (samples.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    table[:, 1] = samples
    return table.view(np.uint8).reshape(-1, 16)


@dataclass
class Extent:
    """What was published: of which sample, and which one of it."""

    start: int
    stop: int
    nbytes: int
    form: Form
    key: str
    sample: int
    instance: int


@dataclass(eq=False)
class Work:
    """A draw or a fill as its job sees it."""

    member: Member
    ticket: int
    epoch: int
    indices: Ids
    forms: NDArray[np.uint8]
    offsets: Ids
    lengths: Ids
    keep: NDArray[np.uint8]
    waits: int
    fill: bool = False
    grants: list[tuple[int, int, int, int]] = field(default_factory=list)
    reads: dict[int, Extent] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    updated: bool = False
    stretch: bool = False


class Member:
    """A rank of a job."""

    def __init__(
        self,
        world: World,
        samples: Ids,
        *,
        batch: int = 8,
        sampling: str = "auto",
        eviction: str = "auto",
        keys: tuple[str, str, str] = KEYS,
        budget: int = 1 << 22,
        split: tuple[float, float, float] | None = None,
        body: int = BYTES[Form.AUGMENTED],
        drop_last: bool = False,
        group: str = "",
        rank: int = 0,
        world_size: int = 1,
        dataset: str = "",
        collates: bool = False,
        token: str = "",
        together: int = 1,
        knows: bool = True,
    ) -> None:
        """``together``: batches that it takes at once. ``knows``: where it draws for itself, it tells its order."""
        self.world, self.samples, self.together = world, samples, together
        self.ended: list[tuple[int, int]] = []
        """Stretches that are over, which it has not told, and their rows."""
        self.member = world.next_member()
        self.batch, self.sampling, self.keys, self.drop_last = batch, sampling, keys, drop_last
        self.knows = knows
        self.group, self.rank, self.world_size = group or f"g{self.member}", rank, world_size
        self.epoch, self.step, self.waiting_asks = -1, 0, 0
        self.got: list[Ids] = []
        """The batches of this epoch, in the dataset's own indices."""
        self.steps_of_all: dict[int, Ids] = {}
        self.given = self.company = 0
        self.over = self.gone = self.last = False
        self.work: dict[int, Work] = {}
        self.refused: list[str] = []
        self.ends: list[int] = []
        self.dataset = dataset or samples.tobytes().hex()[:64] + str(len(samples)) + str(samples.sum())
        join = Join(
            name=f"job {self.member}",
            group=self.group,
            rank=rank,
            world_size=world_size,
            dataset=self.dataset,
            label="samples",
            samples=len(samples),
            encoded=keys[0],
            decoded=keys[1],
            augmented=keys[2],
            body=body,
            budget=budget,
            split=split,
            sampling=sampling,
            eviction=eviction,
            batch_size=batch,
            drop_last=drop_last,
            collates=collates,
        )
        world.members.append(self)
        self.token = token or f"token{self.member}"
        answer = world.answer(Came(self.member, self.token, 0, join))
        if isinstance(answer, Joined) and answer.identities:
            answer = world.answer(Named(self.member, identities(samples).tobytes()))
        assert isinstance(answer, Joined | Refused)
        self.answer = answer
        self.number = -1
        if isinstance(answer, Joined):
            self.number = world.state.ranks[self.member][0].number

    def begin(self, epoch: int | None = None, progress: bytes | None = None, step: int = 0) -> None:
        """Begin an epoch: the next one, unless it is said which."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.got, self.steps_of_all, self.step, self.waiting_asks = [], {}, step, 0
        self.over = self.last = False
        explicit = self.sampling == "uniform"
        known = (
            Known(self.member, True, self.batch, 0, 1, self.drop_last) if explicit and self.knows else None
        )
        begin = Begin(self.epoch, explicit=explicit, step=step, known=known)
        self.world.tell(Began(self.member, begin, progress))
        self.world.deliver()

    def ask(self, indices: Ids | None = None) -> None:
        """Ask for a batch."""
        self.waiting_asks += 1
        over, self.ended = np.array([ticket for ticket, _ in self.ended], np.int64).tobytes(), []
        self.world.tell(
            Asked(self.member, b"" if indices is None else indices.tobytes(), self.together, over)
        )
        self.world.deliver()

    def tell_ends(self) -> None:
        """Say which stretches are over without asking for more."""
        for ticket, rows in self.ended:
            self.world.tell(Done(self.member, Finished(ticket, 0, rows)))
        self.ended.clear()
        self.world.deliver()

    def go_on(self) -> None:
        """Ask for the next batch, by name where the job draws for itself."""
        if self.sampling != "uniform":
            self.ask()
            return
        order = epoch_order(len(self.samples), self.member, self.epoch)
        start = self.batch * (self.step + self.waiting_asks)
        stop = len(order) // self.batch * self.batch if self.drop_last else len(order)
        if start < stop:
            self.ask(order[start : start + self.batch])
        else:
            self.over = True

    def progress(self, keep: int | None = None) -> bytes:
        """What this rank knows of its epoch, with the last ``keep`` steps as a whole."""
        seen = Bits.empty(len(self.samples))
        for ids in self.steps_of_all.values():
            seen.add(ids)
        steps = dict(sorted(self.steps_of_all.items())[-keep:] if keep else self.steps_of_all)
        return write_progress(seen, steps)

    def finish(self, work: Work, first: int, count: int, publish: Publish) -> None:
        """Be done with rows. ``publish`` says how much of each grant is filled."""
        world = self.world
        rows = [row for row in range(first, first + count) if row in work.open]
        published = []
        made: list[Extent] = []
        kept = []
        for row, form, offset, capacity in work.grants:
            if row not in rows:
                kept.append((row, form, offset, capacity))
                continue
            nbytes = publish(Form(form), capacity)
            if nbytes is not None:
                world.instances += 1
                sample = int(self.samples[work.indices[row]])
                key = self.keys[form - 1]
                stop = offset + aligned(nbytes)
                made.append(Extent(offset, stop, nbytes, Form(form), key, sample, world.instances))
                published.append((row, form, offset, nbytes))
                if form == Form.AUGMENTED and not work.fill:
                    world.note_served(self, world.instances)
        work.grants = kept
        for row in rows:
            work.open.discard(row)
            work.reads.pop(row, None)
        if not work.open:
            self.work.pop(work.ticket, None)
        if work.stretch and (work.open or first == 0):  # told as a whole, or row by row where it is given up
            if not work.open:
                self.ended.append((work.ticket, len(work.forms)))
            return
        for extent in made:
            world.extents[extent.start] = extent
        decoded = int(np.count_nonzero(work.forms[rows] < Form.DECODED))
        world.decodes += decoded
        packed = np.array(published, np.int64).tobytes() if published else b""
        spent = Spent(decoded=decoded, fetched=decoded)
        world.tell(Done(self.member, Finished(work.ticket, first, count, packed, spent=spent)))
        world.deliver()

    def idle(self) -> Work | None:
        """A worker has nothing to do."""
        answer = self.world.answer(WasIdle(self.member))
        if answer is None:
            return None
        assert isinstance(answer, Fill)
        order = answer.order
        forms = np.frombuffer(order.forms, np.uint8)
        keep = np.frombuffer(order.keep, np.uint8)
        indices = np.frombuffer(order.indices, np.int64)
        offsets, lengths = np.frombuffer(order.offsets, np.int64), np.frombuffer(order.lengths, np.int64)
        work = Work(
            self, order.ticket, -1, indices, forms, offsets, lengths, keep, order.rows, fill=True,
            open=set(range(order.rows)),
        )  # fmt: skip
        self.work[work.ticket] = work
        self.world.reading(work, range(order.rows))
        free = {form: [row for row in range(order.rows) if keep[row] >> form & 1] for form in range(4)}
        grants = np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()
        self.world.granted(work, [(free[form].pop(0), form, offset, size) for form, offset, size in grants])
        self.world.deliver()
        return work

    def leave(self) -> None:
        """The process is gone; its workers may still read what they were to, and write to what they were granted."""
        self.gone = True
        self.world.tell(Gone(self.member))
        self.world.deliver()

    def bury(self) -> None:
        """Nothing of it runs any more."""
        assert self.gone
        self.work.clear()
        self.world.tell(Buried(self.member))

    # -- what it is told -----------------------------------------------------------------------------------

    def drawn(self, drawn: Drawn) -> None:
        """See ``Drawn``."""
        self.waiting_asks -= 1
        self.company = drawn.company
        assert drawn.epoch == self.epoch and drawn.step == self.step and not self.last
        indices = np.frombuffer(drawn.indices, np.int64)
        rows = len(indices)
        work = Work(
            self,
            drawn.ticket,
            drawn.epoch,
            indices,
            np.frombuffer(drawn.forms, np.uint8).copy(),
            np.frombuffer(drawn.offsets, np.int64).copy(),
            np.frombuffer(drawn.lengths, np.int64).copy(),
            np.frombuffer(drawn.keep, np.uint8).copy(),
            drawn.waits,
            open=set(range(rows)),
            updated=drawn.waits == rows,
            stretch=bool(drawn.stretch),
        )
        if drawn.stretch:
            assert len(drawn.stretch) <= self.together and sum(drawn.stretch) == rows
            assert drawn.waits == rows and not drawn.grants and not work.keep.any() and work.forms.all()
            assert all(count == self.batch for count in drawn.stretch[:-1]), "only the last may be smaller"
            assert 0 < drawn.stretch[-1] <= self.batch
            self.world.stretches += 1
        assert rows and (indices >= 0).all() and (indices < len(self.samples)).all()
        assert drawn.ticket not in self.world.tickets, "tickets are never used again"
        self.world.tickets.add(drawn.ticket)
        self.work[work.ticket] = work
        self.given, self.last = drawn.given, drawn.last
        for part in np.split(indices, np.cumsum(drawn.stretch)[:-1]) if drawn.stretch else [indices]:
            self.got.append(part)
            self.steps_of_all[self.step] = (
                np.frombuffer(drawn.of_all_ranks, np.int64) if drawn.of_all_ranks else part
            )
            self.step += 1
        self.world.reading(work, range(drawn.waits))
        self.world.granted(work, unpacked(drawn.grants))

    def update(self, update: Update) -> None:
        """See ``Update``."""
        work = self.work[update.ticket]
        assert not work.updated, "a draw is updated once"
        first = work.waits
        for name, kind in (
            ("forms", np.uint8),
            ("offsets", np.int64),
            ("lengths", np.int64),
            ("keep", np.uint8),
        ):
            getattr(work, name)[first:] = np.frombuffer(getattr(update, name), kind)
        work.updated = True
        self.world.reading(work, [row for row in range(first, len(work.forms)) if row in work.open])
        self.world.granted(work, unpacked(update.grants))

    def check_epoch(self) -> None:
        """The epoch of a job of one rank is over: everything came once."""
        ids = np.concatenate([*self.got, np.zeros(0, np.int64)]).tolist()
        if self.drop_last:
            assert len(set(ids)) == len(ids) == len(self.samples) // self.batch * self.batch
        else:
            assert sorted(ids) == list(range(len(self.samples)))


class World:
    """A commons, its members, and the memory that they share."""

    def __init__(self, span: int = 1 << 36, nonce: int = 7) -> None:
        self.commons = Commons(instance=1, nonce=nonce, span=span)
        self.state = self.commons.state
        self.now = 0.0
        self.out: list[Answer] = []
        self.members: list[Member] = []
        self.extents: dict[int, Extent] = {}
        self.tickets: set[int] = set()
        self.served: dict[str, set[int]] = {}
        self.hits: Counter[Form] = Counter()
        self.instances = self.decodes = self.stretches = 0
        self._members = 0

    def next_member(self) -> int:
        """A number for a new member."""
        self._members += 1
        return self._members

    def note_served(self, member: Member, instance: int) -> None:
        """A job gets an augmented sample: never the same one twice."""
        served = self.served.setdefault(member.group, set())
        assert instance not in served, f"job {member.group} gets augmented instance {instance} again"
        served.add(instance)

    def reading(self, work: Work, rows: range | list[int]) -> None:
        """Rows enter: what lies there has to be what they are told."""
        member = work.member
        for row in rows:
            form = Form(work.forms[row])
            self.hits[form] += not work.fill
            if form == Form.NONE:
                continue
            extent = self.extents.get(int(work.offsets[row]))
            assert extent is not None, f"nothing lies at {work.offsets[row]}"
            assert extent.sample == member.samples[work.indices[row]]
            assert (extent.form, extent.key) == (form, member.keys[form - 1])
            assert extent.nbytes == work.lengths[row]
            if form == Form.AUGMENTED:
                self.note_served(member, extent.instance)
            work.reads[row] = extent

    def granted(self, work: Work, grants: list[tuple[int, int, int, int]]) -> None:
        """Blocks to write to: nobody else writes or reads there."""
        for row, form, offset, capacity in grants:
            stop = offset + capacity
            assert 0 <= offset < stop <= self.state.pool.rooms[Tier.ARENA].space.span
            assert work.keep[row] >> form & 1 and row in work.open
            for other in (other for member in self.members for other in member.work.values()):
                for _, _, taken, size in other.grants:
                    assert stop <= taken or taken + size <= offset, "granted twice"
                for extent in other.reads.values():
                    assert stop <= extent.start or extent.stop <= offset, "granted what is being read"
            for start in [at for at, e in self.extents.items() if offset < e.stop and e.start < stop]:
                del self.extents[start]
            work.grants.append((row, form, offset, capacity))

    def tell(self, event: Event) -> None:
        """Something happens."""
        self.out += self.commons.handle(event, self.now)

    def answer(self, event: Event) -> Reply | GiveBack | None:
        """What is said to something that is answered at once."""
        answers = self.commons.handle(event, self.now)
        return answers[0][1] if answers else None

    def deliver(self) -> None:
        """Tell the members what there is to tell."""
        by_number = {member.member: member for member in self.members}
        while self.out:
            out, self.out = self.out, []
            for member, reply in out:
                member = by_number[member]
                if member.gone:
                    continue
                if isinstance(reply, Drawn):
                    member.drawn(reply)
                elif isinstance(reply, Update):
                    member.update(reply)
                elif isinstance(reply, Over):
                    member.waiting_asks -= 1
                    assert reply.epoch == member.epoch
                    member.over = True
                    member.ends.append(reply.epoch)
                else:
                    assert isinstance(reply, Refused)
                    member.refused.append(reply.reason)
        pool = self.state.pool
        evictable = any(len(shelf.entries()) for shelf in pool.shelves.values())
        assert pool.used <= pool.budget or not evictable

    def check_quiet(self) -> None:
        """Nothing is under way: nothing is held, and the memory is what the shelves say."""
        state = self.state
        assert not state.tickets and not state.waiting and not state.orphans and not state.reads
        assert not any(member.work for member in self.members if not member.gone)
        ranges = []
        for shelf in state.pool.shelves.values():
            assert not shelf.pending.count() and not shelf.owner and not shelf.busy
            entries = shelf.entries()
            assert sorted(entries[:, 0].tolist()) == shelf.cached.ids().tolist()
            assert shelf.bytes == entries[:, 2].sum()
            ranges += [(at, at + aligned(nbytes)) for at, nbytes in entries[:, 1:3].tolist()]
        space = state.pool.rooms[Tier.ARENA].space
        pages = [(space.size_of(at), stop - at) for at, stop in ranges if not space.packs(space.size_of(at))]
        slabs = sum(slab.nbytes for slab in space._slabs.values())
        assert state.pool.used == sum(counted(block, nbytes) for block, nbytes in pages) + slabs
        assert len(space) == len(ranges)
        ranges.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
        assert all(rank.open == 0 for _, rank in state.ranks.values())

    def live(self) -> list[Member]:
        """Members that are here."""
        return [member for member in self.members if not member.gone]

    def settle(self) -> None:
        """Finish whatever is under way; what waits has waited long enough."""
        for _ in range(1000):
            todo = [work for member in self.live() for work in member.work.values()]
            if not todo:
                for member in self.live():
                    member.tell_ends()
                return
            for work in todo:
                if work.ticket in work.member.work:
                    rows = len(work.forms) if work.updated or work.fill else work.waits
                    work.member.finish(work, 0, rows, prepared)
            if all(not w.updated and not w.fill for w in todo if w.ticket in w.member.work):
                self.now += 2 * self.state.patience
                self.tell(Ticked(1))
                self.deliver()
        raise AssertionError("rows wait for ever")

    def drain(self) -> None:
        """Bring every job's epoch to its end."""
        for _ in range(2000):
            self.settle()
            todo = [member for member in self.live() if member.epoch >= 0 and not member.over]
            if not todo:
                return
            for member in todo:
                if not member.waiting_asks:
                    member.go_on()
                assert not member.refused, member.refused
            if any(member.waiting_asks for member in todo):
                self.now += 0.1
                self.tell(Ticked(1))
                self.deliver()
        raise AssertionError("an epoch does not end")


def pair(world: World, **terms: object) -> tuple[Member, Member]:
    """Two jobs of which the second waits for what the first prepares."""
    first, second = (Member(world, np.arange(8), batch=8, **terms) for _ in range(2))  # type: ignore[arg-type]
    first.begin()
    second.begin()
    first.ask()
    return first, second
