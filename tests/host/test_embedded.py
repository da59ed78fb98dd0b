"""The host inside a job: credits, delivery, replacement of workers, and what it gives back."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import ATTEMPTS, Coordinator
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order
from headrace.core.errors import LoaderClosed, OutOfSharedMemory, WorkerDied
from headrace.core.forms import CACHEABLE, Form
from headrace.engine.board import Board
from headrace.engine.store import Cache
from headrace.engine.task import RecipeTask
from headrace.host.embedded import ProcessHost
from headrace.host.inline import InlineHost
from headrace.host.slots import SlotPool
from headrace.recipes.compile import compile_recipe
from headrace.sampling import Geometry, UniformEpoch


class Draws:
    """An epoch of the uniform order."""

    seed = 1

    def __init__(self, size=40, batch=8, epoch=0, shuffle=True):
        self._epoch = UniformEpoch(size, Geometry(batch), seed=1, epoch=epoch, shuffle=shuffle)

    def draw(self):
        return self._epoch.draw()


def sleepy(data):
    time.sleep(0.01)
    return np.zeros(4, np.uint8)


class SharedStub:
    """A connection over which a draw has come that is not wanted yet."""

    awaits_draw, has_draws = False, True

    def pump(self):
        pass

    def take_updates(self):
        return []

    def fileno(self):
        return -1


@pytest.fixture(params=["inline", "processes"])
def kind(request):
    return request.param


@pytest.fixture
def build() -> Iterator:
    """Builds hosts, and closes them."""
    hosts = []

    def make(
        kind="processes",
        *,
        size=40,
        batch=8,
        shape=(4,),
        ahead=3,
        workers=2,
        cache=0,
        decode=None,
        on_start=None,
    ):
        source = hr.synthetic.source(size, shape=shape, classes=size)
        recipe = hr.Recipe(source, decode=decode or hr.synthetic.decode())
        program = compile_recipe(recipe, caches_decoded=bool(cache))
        arena = Arena()
        board = Board(arena)
        budgets = {**dict.fromkeys(CACHEABLE, 0), Form.DECODED: cache}
        memory = Cache.make() if cache else None
        directory = Directory(size, budgets, memory.span if memory else 0)
        coordinator = Coordinator(directory, rows_per_order=3)
        layout = program.layout
        slots = SlotPool(arena, layout.nbytes(batch) if layout else 0, keep=ahead + 1)
        task = RecipeTask(recipe, layout, memory, bool(cache), 1, None, on_start)
        if kind == "inline":
            stages = task.stages(arena, board)
            host = InlineHost(
                arena,
                board,
                coordinator,
                slots,
                lambda order: stages.prepare(stages.fetch(order, None), program),
            )
        else:
            context = multiprocessing.get_context("fork")
            host = ProcessHost(
                arena, board, coordinator, slots, ahead=ahead, task=task, workers=workers, context=context
            )
        host.cache = memory
        if layout is not None:
            host.bytes_for = layout.nbytes
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.close()


def deliver(host, count=None):
    """Indices of the batches that come, giving each slot back at once."""
    found = []
    while count is None or len(found) < count:
        batch = host.next_batch(60)
        if batch is None:
            break
        found.append(batch.draw.indices.tolist())
        host.slots.put_back(batch.slot)
    return found


def expected(**options):
    draws = Draws(**options)
    return [drawn.indices.tolist() for drawn in iter(draws.draw, None)]


def test_what_is_fed_is_delivered_in_order(build, kind):
    host = build(kind)
    assert host.next_batch(1) is None, "nothing was fed"
    host.coordinator.feed(Draws())
    host.coordinator.feed(Draws(epoch=1))
    assert deliver(host) == expected() + expected(epoch=1)
    assert host.next_batch(1) is None


def test_rows_stand_in_the_slot(build, kind):
    host = build(kind)
    host.coordinator.feed(Draws())
    source = hr.synthetic.source(40, shape=(4,))
    while (batch := host.next_batch(60)) is not None:
        lease = host.slots.lease(batch.slot)
        rows = np.frombuffer(lease, np.uint8, len(batch.draw.indices) * 4).reshape(-1, 4)
        assert [bytes(row) for row in rows] == [source.content(i) for i in batch.draw.indices.tolist()]
        del rows, lease


def test_no_more_batches_are_drawn_than_are_wanted_ahead(build):
    host = build(ahead=3)
    host.coordinator.feed(Draws())
    for _ in range(3):
        batch = host.next_batch(60)
        assert host.coordinator.outstanding <= 3
        host.slots.put_back(batch.slot)
    assert host.slots.count <= 4


def test_a_timeout_is_kept_and_loses_nothing(build):
    host = build(decode=hr.synthetic.decode(cost=0.05), workers=1)
    host.coordinator.feed(Draws(shuffle=False))
    late = 0
    found = []
    while len(found) < 5:
        try:
            batch = host.next_batch(0.02)
        except TimeoutError:
            late += 1
            continue
        found.append(batch.draw.indices.tolist())
        host.slots.put_back(batch.slot)
    assert late > 0
    assert found == expected(shuffle=False)


def test_an_abandoned_epoch_gives_all_slots_back(build, kind):
    host = build(kind, ahead=4)
    for epoch in range(6):
        host.coordinator.feed(Draws(epoch=epoch))
        deliver(host, 1 + epoch % 3)
        host.abandon()
    host.coordinator.feed(Draws(epoch=9))
    assert deliver(host) == expected(epoch=9)
    # (whoever had one of an epoch that was given up may still be at it)
    if kind == "processes":
        host.wait(lambda: not host.coordinator.open_orders, 60)
    assert host.coordinator.open_orders == []
    assert host.slots.count <= 6


def test_dead_workers_are_replaced_and_their_orders_done(build):
    host = build(size=400, batch=20)
    host.coordinator.feed(Draws(400, 20))
    found = deliver(host, 2)
    pids = [worker.pid for worker in host.workers]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:  # (else the first one's successor may do the rest before the second is missed)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found += deliver(host)
    assert found == expected(size=400, batch=20)
    assert host.totals.restarts == 2
    assert {worker.id for worker in host.workers} == {0, 1}
    assert not {worker.pid for worker in host.workers} & set(pids)


def test_what_a_dead_worker_took_of_the_cache_is_used_again(build):
    host = build(size=64, batch=16, cache=64 * 128)
    for epoch in range(6):
        host.coordinator.feed(Draws(64, 16, epoch))
        deliver(host, 1)
        os.kill(host.workers[0].pid, signal.SIGKILL)
        assert len(deliver(host)) == 3
    assert host.coordinator.directory.bytes[Form.DECODED] <= 64 * 128
    assert host.coordinator.directory.pool.used <= 64 * 128
    assert host.coordinator.directory.samples[Form.DECODED] >= 50


def test_what_is_prepared_before_sizes_are_known_is_cached_all_the_same(build):
    """A sample that might need much finds room only for a few of its kind, so not many go first."""
    host = build(size=600, batch=40, shape=(64, 96), ahead=8, cache=600 * 8192)
    host.coordinator.feed(Draws(600, 40))
    host.fill()
    assert host.coordinator.outstanding < 8
    deliver(host)
    assert host.coordinator.directory.samples[Form.DECODED] == 600


def test_who_never_learns_sizes_does_not_wait_for_them(build, tmp_path):
    """Samples that all fail publish nothing."""
    mark = tmp_path / "from now on"

    def decode(data):
        if mark.exists():
            raise ValueError("no")
        return np.zeros((64, 96), np.uint8)

    host = build(size=200, batch=20, decode=decode, ahead=8, cache=200 * 8192)
    layout = host.probe(probe_order(), 30).result
    host.layout, host.bytes_for = layout, pickle.loads(layout).nbytes
    mark.touch()
    host.coordinator.feed(Draws(200, 20))
    assert deliver(host) == expected(size=200, batch=20)
    assert host.coordinator.directory.samples[Form.DECODED] == 0


def test_a_wake_up_that_a_dead_worker_took_with_it_is_given_again(build):
    host = build(workers=1, ahead=5)
    host.coordinator.feed(Draws())
    worker = host.workers[0].pid
    deadline = time.monotonic() + 20
    os.kill(worker, signal.SIGSTOP)
    while "T" not in Path(f"/proc/{worker}/stat").read_text().split()[2] and time.monotonic() < deadline:
        time.sleep(0.01)
    host.fill()
    host.board.wait()  # as the worker would have done just before it died
    os.kill(worker, signal.SIGKILL)
    assert deliver(host) == expected()


def test_only_an_order_that_ran_alone_is_held_against_its_samples(build, monkeypatch):
    def deadly(data):
        if data[0] == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(4, np.uint8)

    host = build(decode=deadly, workers=1, ahead=3)
    layout = host.probe(probe_order(), 30).result
    host.layout, host.bytes_for = layout, pickle.loads(layout).nbytes
    blamed, real = [], host.coordinator.lost

    def lost(order_id, how, *, alone):
        blamed.append((host.coordinator._orders[order_id].order.index_array().tolist(), alone))
        return real(order_id, how, alone=alone)

    monkeypatch.setattr(host.coordinator, "lost", lost)
    host.coordinator.feed(Draws(shuffle=False))
    batch = host.next_batch(60)
    assert [row for row, _, _ in batch.faults] == [5]
    assert [indices for indices, alone in blamed if alone] == [[5]] * ATTEMPTS
    assert ([3, 4, 5], False) in blamed


def test_workers_that_die_before_they_do_anything_end_in_an_error(build):
    host = build(on_start=lambda link: os._exit(9))
    host.coordinator.feed(Draws())
    with pytest.raises(WorkerDied, match=r"exited with status 9.*in a row"):
        host.next_batch(60)
    assert host.closed
    with pytest.raises(LoaderClosed):
        host.next_batch(1)


def probe_order(index=0):
    return Order(-1, 0, 0, 1, 0, 1, 0, 0, np.array([index], np.int64).tobytes())


def test_a_probe_runs_one_sample_outside_of_any_batch(build, kind):
    host = build(kind, decode=sleepy)
    done = host.probe(probe_order(3), 30)
    assert done.faults == []
    assert done.result
    host.coordinator.feed(Draws())
    assert host.coordinator.outstanding == 0


def test_a_probe_that_kills_its_worker_is_a_fault(build):
    def deadly(data):
        os.kill(os.getpid(), signal.SIGKILL)

    host = build(decode=deadly)
    done = host.probe(probe_order(), 60)
    ((row, reason, _),) = done.faults
    assert row == 0
    assert "SIGKILL" in reason
    assert not host.closed


def test_a_probe_keeps_its_timeout_and_is_not_begun_twice(build, tmp_path):
    def slow(data):
        (tmp_path / str(time.monotonic_ns())).touch()
        time.sleep(0.5)
        return np.zeros(4)

    host = build(decode=slow, workers=1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            host.probe(probe_order(), 0.1)
    assert host.probe(probe_order(), 30).result
    assert len(list(tmp_path.iterdir())) == 1


def test_more_threads_reach_all_workers_and_their_successors(build, tmp_path):
    def sign(data):
        (tmp_path / f"{os.getpid()}-{threading.get_native_id()}").touch()
        return sleepy(data)

    def preparing(pid):
        return len(list(tmp_path.glob(f"{pid}-*")))

    host = build(workers=1, size=8000, decode=sign)
    host.coordinator.feed(Draws(8000, 8))
    deliver(host, 3)
    first = host.workers[0].pid
    assert preparing(first) == 1
    host.set_threads(3)
    while preparing(first) < 3:
        assert deliver(host, 1), "all was prepared by fewer"
    os.kill(first, signal.SIGKILL)
    while host.workers[0].pid == first or preparing(host.workers[0].pid) < 3:
        assert deliver(host, 1), "all was prepared by fewer"
    deliver(host, 10)
    assert preparing(first) == preparing(host.workers[0].pid) == 3


def test_a_worker_more_takes_part(build):
    host = build(workers=1)
    host.add_worker()
    host.coordinator.feed(Draws())
    assert deliver(host) == expected()
    assert [worker.id for worker in host.workers] == [0, 1]


def test_closing_gives_memory_back_but_for_what_is_on_loan(build, kind):
    host = build(kind, size=400, batch=100, shape=(64, 64), cache=400 * 4200)
    host.coordinator.feed(Draws(400, 100))
    kept = host.next_batch(60)
    lease = host.slots.lease(kept.slot)
    rows = np.frombuffer(lease, np.uint8, 409_600).copy()
    deliver(host)
    file = os.dup(host.arena.fd)
    host.close()
    host.close()
    left = os.fstat(file).st_blocks * 512
    os.close(file)
    assert host.closed
    assert (np.frombuffer(lease, np.uint8, 409_600) == rows).all()
    # The board stays, and the one slot; all other slots and the cache do not.
    assert left <= host.board._range[1] + kept.slot.nbytes + 2 * 65536


def test_room_that_runs_out_costs_no_batch(build, monkeypatch):
    host = build(ahead=2, size=80)
    host.coordinator.feed(Draws(80))
    kept = [host.next_batch(60) for _ in range(2)]
    real, full = host.arena.allocate, [True]

    def allocate(nbytes, **options):
        if full[0]:
            raise OutOfSharedMemory("full")
        return real(nbytes, **options)

    monkeypatch.setattr(host.arena, "allocate", allocate)
    found = [batch.draw.indices.tolist() for batch in kept]
    with pytest.raises(OutOfSharedMemory):
        while True:
            kept.append(host.next_batch(60))
            found.append(kept[-1].draw.indices.tolist())
    full[0] = False
    assert found + deliver(host) == expected(size=80)


def test_a_sampler_that_raises_costs_no_batch(build):
    class Failing(Draws):
        left = 4

        def draw(self):
            self.left -= 1
            if self.left == 0:
                raise ArithmeticError("sampler broke")
            return super().draw()

    host = build(ahead=2)
    host.coordinator.feed(Failing())
    found, errors = [], 0
    while len(found) < 5:
        try:
            batch = host.next_batch(60)
        except ArithmeticError:
            errors += 1
            continue
        found.append(batch.draw.indices.tolist())
        host.slots.put_back(batch.slot)
    assert errors == 1
    assert found == expected()


def test_a_forked_child_can_neither_use_nor_disturb_it(build):
    host = build(size=80, ahead=8, workers=1, decode=hr.synthetic.decode(cost=0.005))
    host.coordinator.feed(Draws(80))
    found = deliver(host, 2)
    assert host.coordinator.open_orders, "there is something that could be taken back"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            host.abandon()
            host.close()
            try:
                host.next_batch(1)
            except LoaderClosed:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found + deliver(host) == expected(size=80)
    assert host.totals.restarts == 0


def test_totals_add_up(build, kind):
    host = build(kind)
    host.coordinator.feed(Draws())
    deliver(host)
    assert host.totals.orders == 15, "five batches of eight rows, three rows an order"
    assert host.totals.spent.fetched == 40
    assert host.totals.spent.fetched_bytes == 160
    assert host.totals.waited > 0


def test_a_draw_that_is_not_wanted_yet_is_no_reason_to_hurry(build):
    """What was waited for has come, and as many batches are ahead as should be: so workers are waited for."""
    host = build(workers=1, decode=sleepy, size=400)
    host.coordinator.feed(Draws(400))
    host.fill()
    host.coordinator.later, stub = True, SharedStub()
    assert host.coordinator.outstanding == host.ahead and not host._tend(stub)
    host.ahead += 1
    assert host._tend(stub)
