"""Workers that run a torch dataset: whatever it returns, collated as its loader says."""

from __future__ import annotations

import contextlib
import pickle
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate

from headrace.coordinate.messages import Command, Order, OrderDone, Run, Stop
from headrace.core import random as rnd
from headrace.engine.link import LARGEST, Link
from headrace.engine.rows import load_order
from headrace.engine.worker import RemoteError
from headrace.loader.codec import SlotMemory, encode
from headrace.loader.collate import Gathering
from headrace.loader.state import Mark
from headrace.loader.stateful import Snapshots, dumps, is_stateful, load
from headrace.planning import Spent
from headrace.recipes.program import Fault

_TRACE = 8192


@dataclass
class ObjectTask:
    """Fetch samples from a dataset and collate them, one batch an order."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    batch_size: int | None
    drop_last: bool
    on_error: str
    num_workers: int
    base_seed: int
    worker_init_fn: Callable[[int], None] | None = None
    persistent: bool = False
    """Workers stay for the next epoch."""
    resume: list[Mark] | None = None
    """Where each worker is to go on, if its dataset keeps its place or a state."""
    snapshot_every: int | None = None
    """Batches of one worker from one state of its dataset to the next; 0: none; None: by its size."""

    @property
    def iterable(self) -> bool:
        """Whether the dataset gives samples one after another, not by key."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def assigned(self) -> bool:
        """Whether it matters which worker runs a batch, because the dataset moves on with each."""
        return self.iterable or is_stateful(self.dataset)

    def start(self, link: Link) -> ObjectRunner:
        """Called in a worker as it starts."""
        begin_worker(link.worker, self.num_workers, self.base_seed, self.dataset, self.worker_init_fn)
        if self.iterable:
            return IterableRunner(link, self)
        return StatefulRunner(link, self) if self.assigned else ObjectRunner(link, self)


def begin_worker(
    worker: int, num_workers: int, base_seed: int, dataset: Any, init: Callable[[int], None] | None
) -> None:
    """Make a process a worker in torch's sense: one thread, seeds of its own, ``get_worker_info``, init function."""
    from torch.utils.data._utils import worker as torch_worker

    torch.set_num_threads(1)
    seed = base_seed + worker
    seed_all(seed)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker, num_workers=num_workers, seed=seed, dataset=dataset
    )
    if init is not None:
        init(worker)


def seed_all(word: int) -> None:
    """Seed the generators that user code draws from."""
    rnd.seed_global(word)
    torch.default_generator.manual_seed(word & 0x7FFFFFFFFFFFFFFF)


def keys_of(order: Any, auto_collation: bool) -> Any:
    """What a batch is made of: keys, or one key where batching is off. Takes an order or what was drawn."""
    if getattr(order, "keys", b""):
        return pickle.loads(order.keys)
    indices = order.indices
    keys = (np.frombuffer(indices, np.int64) if isinstance(indices, bytes) else indices).tolist()
    return keys if auto_collation else keys[0]


Keep = Callable[[Any], Any]
"""Called with each sample as it comes: what is to stand in its place."""


def as_it_is(sample: Any) -> Any:
    """See ``Keep``."""
    return sample


def fetch(dataset: Any, keys: Any, auto_collation: bool, keep: Keep = as_it_is) -> Any:
    """What torch's map-style fetcher does: a list of samples, or one sample where batching is off."""
    if not auto_collation:
        return dataset[keys]
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:
        return dataset.__getitems__(keys)
    return [keep(dataset[key]) for key in keys]


class Stream:
    """One reading of an iterable dataset, in batches.

    ``iter()`` is asked for once: an iterator may well return itself from ``__iter__`` and start over there.
    """

    def __init__(
        self, dataset: Any, size: int | None, *, drop_last: bool, resume: Mark | None = None
    ) -> None:
        """``size``: samples of a batch; None: samples come one by one."""
        resume = resume or Mark()
        self._size, self._drop_last = size, drop_last
        self._dataset = dataset
        load(dataset, resume.dataset, "dataset")
        self.iterator: Iterator[Any] = iter(dataset)
        load(self.iterator, resume.iterator, "dataset's iterator")
        if resume.ended:
            self.iterator = iter(dataset)
        self._over = resume.over
        self.stateful = is_stateful(dataset) or is_stateful(self.iterator)
        for _ in range(resume.since):
            with contextlib.suppress(Exception):  # a batch that failed was met before, and is gone
                self.gather()

    def states(self) -> tuple[Any, Any, bool]:
        """The states of dataset and iterator as they are now, and whether it is over."""
        own = None if self.iterator is self._dataset else _state_of(self._dataset)
        return own, _state_of(self.iterator), self._over

    def gather(self, keep: Keep = as_it_is) -> tuple[Any, bool]:
        """The samples of the next batch, and whether there is one."""
        if self._over:
            return None, False
        samples: list[Any] = []
        try:
            if self._size is None:
                return next(self.iterator), True
            while len(samples) < self._size:
                samples.append(keep(next(self.iterator)))
        except StopIteration:
            self._over = True
            return samples, bool(samples) and not self._drop_last
        return samples, True


def _state_of(owner: Any) -> Any:
    return owner.state_dict() if is_stateful(owner) else None


class ObjectRunner:
    """Runs batches of a map-style dataset."""

    def __init__(self, link: Link, task: ObjectTask) -> None:
        self._link = link
        self._task = task
        self._into_slot = task.auto_collation and task.collate_fn is default_collate

    def on_command(self, command: Command) -> None:
        """Nothing to be told: orders come from the board."""

    def serve(self) -> None:
        """Run orders until stopped."""
        while True:
            begun = time.perf_counter()
            claim = self._link.claim()
            if claim is None:
                return
            waited = time.perf_counter() - begun
            order = load_order(self._link.arena, claim)
            memory = SlotMemory(self._link.arena, self._link.board, claim)
            done = self._run(order, memory)
            done.spent.wait_order = waited
            self._link.send(done)

    def _run(self, order: Order, memory: SlotMemory) -> OrderDone:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        done = OrderDone(order.id, [], spent=Spent())
        try:
            self._prepare(order, memory, done)
        except Exception as error:
            done.error = RemoteError(error, f"in DataLoader worker process {self._link.worker}").dumps()
        memory.report(done)
        done.spent.fetch = time.perf_counter() - begun
        done.spent.fetch_cpu = time.process_time() - begun_cpu
        return done

    def _prepare(self, order: Order, memory: SlotMemory, done: OrderDone) -> None:
        # Whoever runs a batch draws the same random numbers for it, so results do not depend on which worker
        # happened to be free.
        seed_all(rnd.key(order.seed, order.epoch, order.step))
        keys = keys_of(order, self._task.auto_collation)
        gathering = self._gathering(memory, keys)
        self._encode(self._samples(keys, done, gathering), gathering, memory, done)

    def _gathering(self, memory: SlotMemory, keys: Any) -> Gathering | None:
        """What lays samples into the slot, if their collation is torch's own."""
        return Gathering(memory, len(keys)) if self._into_slot else None

    def _samples(self, keys: Any, done: OrderDone, gathering: Gathering | None = None) -> Any:
        task, keep = self._task, as_it_is if gathering is None else gathering.take
        if not task.auto_collation:
            return fetch(task.dataset, keys, False)
        if task.on_error == "raise":
            return fetch(task.dataset, keys, True, keep)
        good: list[Any] = []
        rows: list[int] = []
        for row, key in enumerate(keys):
            try:
                sample = task.dataset[key]
            except Exception as error:
                fault = Fault.of(error)
                done.faults.append((row, fault.reason, fault.traceback[-_TRACE:]))
            else:
                good.append(keep(sample))
                rows.append(row)
        if task.on_error == "substitute" and good and done.faults:
            by_row = dict(zip(rows, good, strict=True))
            return [by_row.get(row, good[row % len(good)]) for row in range(len(keys))]
        return good

    def _encode(
        self,
        samples: Any,
        gathering: Gathering | None,
        memory: SlotMemory,
        done: OrderDone,
        state: bytes = b"",
    ) -> None:
        if self._task.auto_collation and len(samples) == 0 and done.faults:
            return
        batch = self._task.collate_fn(samples) if gathering is None else gathering.collate(samples)
        done.result, done.has_state = encode((batch, state) if state else batch, memory), bool(state)


class AssignedRunner(ObjectRunner):
    """Runs batches that are for this worker and no other: they come by the link."""

    def __init__(self, link: Link, task: ObjectTask) -> None:
        super().__init__(link, task)
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._resume = task.resume[link.worker] if task.resume is not None else None
        self._snapshots = Snapshots(task.snapshot_every)

    def on_command(self, command: Command) -> None:
        """See ``Runner``."""
        if isinstance(command, Run):
            self._orders.put(command.order)
        elif isinstance(command, Stop):
            self._orders.put(None)

    def serve(self) -> None:
        """Run orders until stopped."""
        while True:
            begun = time.perf_counter()
            order = self._orders.get()
            if order is None:
                return
            waited = time.perf_counter() - begun
            done = self._run(order, SlotMemory(self._link.arena, self._link.board, None))
            done.spent.wait_order = waited
            self._link.send(done)


class StatefulRunner(AssignedRunner):
    """Runs batches of a map-style dataset that keeps a state, which lives in this worker alone."""

    def __init__(self, link: Link, task: ObjectTask) -> None:
        super().__init__(link, task)
        self._begun = False

    def _prepare(self, order: Order, memory: SlotMemory, done: OrderDone) -> None:
        resume, self._resume = self._resume, None
        if resume is not None:
            load(self._task.dataset, resume.dataset, "dataset")
            for step, keys in resume.replay:
                seed_all(rnd.key(order.seed, order.epoch, step))
                with contextlib.suppress(Exception):
                    self._samples(keys, OrderDone(order.id, []))
        if not self._begun:
            self._begun = True
            start = dumps((_state_of(self._task.dataset), None, False))
            done.start = start if len(start) <= LARGEST // 2 else b""
        seed_all(rnd.key(order.seed, order.epoch, order.step))
        keys = keys_of(order, self._task.auto_collation)
        gathering = self._gathering(memory, keys)
        samples = self._samples(keys, done, gathering)
        state = self._snapshots.after_batch(lambda: (_state_of(self._task.dataset), None, False))
        self._encode(samples, gathering, memory, done, state)


class IterableRunner(AssignedRunner):
    """Runs batches of an iterable dataset, whose place in its stream lives in this worker alone."""

    def __init__(self, link: Link, task: ObjectTask) -> None:
        super().__init__(link, task)
        self._epoch: int | None = None
        self._step = -1
        self._stream: Stream | None = None
        self._begun = self._ended = False
        self._whole = False
        """The batch before was a whole one."""

    def _prepare(self, order: Order, memory: SlotMemory, done: OrderDone) -> None:
        if order.epoch != self._epoch or order.step <= self._step:
            # Steps only grow, so a smaller one is of an epoch that is run again.
            if self._epoch is not None and self._task.worker_init_fn is None:
                # What an epoch draws must not depend on the epochs before: it may be resumed without them.
                seed_all(order.seed + self._link.worker)
            self._epoch, self._stream = order.epoch, None
            self._begun = self._ended = False
        self._step = order.step
        if not self._begun:
            self._begun = True
            self._stream = self._begin()
            if self._stream.stateful:
                start = dumps(self._stream.states())
                done.start = start if len(start) <= LARGEST // 2 else b""
        stream = self._stream
        if stream is None:  # it could not even begin
            done.exhausted = True
            return
        size = self._task.batch_size or 1
        gathering = Gathering(memory, size) if self._into_slot else None
        # There is room for a batch only if there are whole ones: some say a million to get all there is.
        keep = gathering.take if gathering is not None and self._whole else as_it_is
        samples, found = stream.gather(keep)
        self._whole = found and self._task.auto_collation and len(samples) == size
        done.exhausted = not found
        if found:
            state = self._snapshots.after_batch(stream.states) if stream.stateful else b""
            self._encode(samples, gathering, memory, done, state)
        elif self._task.persistent and stream.stateful and not self._ended:
            # The next epoch begins with the dataset as this one left it.
            self._ended = True
            done.result, done.has_state = encode(dumps(stream.states()), memory), True

    def _begin(self) -> Stream:
        resume, self._resume = self._resume, None
        task = self._task
        size = task.batch_size if task.auto_collation else None
        return Stream(task.dataset, size, drop_last=task.drop_last, resume=resume)
