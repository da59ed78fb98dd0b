"""Workers that run a torch dataset: whatever it returns, collated as its loader says."""

from __future__ import annotations

import pickle
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.utils.data import IterableDataset, default_collate

from headrace.coordinate.messages import Command, Order, OrderDone, Run, Spent, Stop
from headrace.core import random as rnd
from headrace.engine.link import Link
from headrace.engine.rows import load_order
from headrace.engine.worker import RemoteError
from headrace.loader.codec import SlotMemory, encode
from headrace.loader.collate import collate_into
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
    resume: list[tuple[int, Any]] | None = None
    """For iterable datasets: batches that each worker delivered before, and its dataset's state if it has one."""

    def start(self, link: Link) -> ObjectRunner:
        """Called in a worker as it starts."""
        begin_worker(link.worker, self.num_workers, self.base_seed, self.dataset, self.worker_init_fn)
        if isinstance(self.dataset, IterableDataset):
            return IterableRunner(link, self)
        return ObjectRunner(link, self)


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


def fetch(dataset: Any, keys: Any, auto_collation: bool) -> Any:
    """What torch's map-style fetcher does: a list of samples, or one sample where batching is off."""
    if not auto_collation:
        return dataset[keys]
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:
        return dataset.__getitems__(keys)
    return [dataset[key] for key in keys]


class Stream:
    """One reading of an iterable dataset, in batches.

    ``iter()`` is asked for once: an iterator may well return itself from ``__iter__`` and start over there.
    """

    def __init__(self, dataset: Any, size: int | None, *, drop_last: bool) -> None:
        """``size``: samples of a batch; None: samples come one by one."""
        self._size, self._drop_last = size, drop_last
        self._over = False
        self.iterator: Iterator[Any] = iter(dataset)

    def gather(self) -> tuple[Any, bool]:
        """The samples of the next batch, and whether there is one."""
        if self._over:
            return None, False
        samples: list[Any] = []
        try:
            if self._size is None:
                return next(self.iterator), True
            while len(samples) < self._size:
                samples.append(next(self.iterator))
        except StopIteration:
            self._over = True
            return samples, bool(samples) and not self._drop_last
        return samples, True


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
            memory = SlotMemory(self._link.arena, self._link.board, order, claim)
            done = self._run(order, memory)
            done.spent.wait_order = waited
            self._link.send(done)

    def _run(self, order: Order, memory: SlotMemory) -> OrderDone:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        done = OrderDone(order.id, [], spent=Spent())
        # Whoever runs a batch draws the same random numbers for it, so results do not depend on which worker
        # happened to be free.
        seed_all(rnd.key(order.seed, order.epoch, order.step))
        try:
            samples = self._samples(order, done)
            self._encode(samples, memory, done)
        except Exception as error:
            done.error = RemoteError(error, f"in DataLoader worker process {self._link.worker}").dumps()
        done.spent.fetch = time.perf_counter() - begun
        done.spent.fetch_cpu = time.process_time() - begun_cpu
        return done

    def _samples(self, order: Order, done: OrderDone) -> Any:
        keys = pickle.loads(order.keys) if order.keys else order.index_array().tolist()
        task = self._task
        if not task.auto_collation:
            return fetch(task.dataset, keys if order.keys else keys[0], False)
        if task.on_error == "raise":
            return fetch(task.dataset, keys, True)
        good: list[Any] = []
        rows: list[int] = []
        for row, key in enumerate(keys):
            try:
                good.append(task.dataset[key])
                rows.append(row)
            except Exception as error:
                fault = Fault.of(error)
                done.faults.append((row, fault.reason, fault.traceback[-_TRACE:]))
        if task.on_error == "substitute" and good and done.faults:
            by_row = dict(zip(rows, good, strict=True))
            return [by_row.get(row, good[row % len(good)]) for row in range(len(keys))]
        return good

    def _encode(self, samples: Any, memory: SlotMemory, done: OrderDone) -> None:
        if self._task.auto_collation and len(samples) == 0 and done.faults:
            return
        batch = collate_into(samples, memory) if self._into_slot else self._task.collate_fn(samples)
        done.result = encode(batch, memory)
        if memory.moved:
            done.slot_offset, done.slot_bytes = memory.offset, memory.nbytes


class IterableRunner(ObjectRunner):
    """Runs batches of an iterable dataset, whose place in its stream lives in this worker alone."""

    def __init__(self, link: Link, task: ObjectTask) -> None:
        super().__init__(link, task)
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._epoch: int | None = None
        self._step = -1
        self._stream: Stream | None = None
        self._resume = task.resume[link.worker] if task.resume is not None else None

    def on_command(self, command: Command) -> None:
        """Orders come by the link: they are for this worker and no other."""
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
            done = self._next(order, SlotMemory(self._link.arena, self._link.board, order, None))
            done.spent.wait_order = waited
            self._link.send(done)

    def _next(self, order: Order, memory: SlotMemory) -> OrderDone:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        done = OrderDone(order.id, [], spent=Spent())
        try:
            if order.epoch != self._epoch or order.step <= self._step:
                # Steps only grow, so a smaller one is of an epoch that is run again.
                self._epoch, self._stream = order.epoch, None
            self._step = order.step
            stream = self._stream or self._begin()
            samples, found = stream.gather()
            if found:
                self._encode(samples, memory, done)
                done.state = self._state()
            done.exhausted = not found
        except Exception as error:
            done.error = RemoteError(error, f"in DataLoader worker process {self._link.worker}").dumps()
        done.spent.fetch = time.perf_counter() - begun
        done.spent.fetch_cpu = time.process_time() - begun_cpu
        return done

    def _begin(self) -> Stream:
        skip, state = self._resume if self._resume is not None else (0, None)
        self._resume = None
        task = self._task
        if state is not None and hasattr(task.dataset, "load_state_dict"):
            task.dataset.load_state_dict(state)
            skip = 0
        size = task.batch_size if task.auto_collation else None
        self._stream = stream = Stream(task.dataset, size, drop_last=task.drop_last)
        for _ in range(skip):
            stream.gather()
        return stream

    def _state(self) -> bytes:
        if not hasattr(self._task.dataset, "state_dict"):
            return b""
        return msgspec.json.encode(self._task.dataset.state_dict())
