"""What user code sees of workers: who they are, when they start and end, what they inherit."""

import os
import threading
import time

import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

from tests.parity import datasets
from tests.parity.datasets import Gate, Mapped, Numbers, Whereabouts, identity, read_inherited
from tests.parity.equality import assert_matches_reference, assert_same, error_from

pytestmark = pytest.mark.parity


def whereabouts(loader):
    return [sample for batch in loader for sample in batch]


def pids(loader):
    return {sample["pid"] for sample in whereabouts(loader)}


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_ended(processes):
    """Workers may take a moment to go, but they go."""
    deadline = time.monotonic() + 20
    while alive := {pid for pid in processes if is_alive(pid)}:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.02)


def test_without_workers_all_happens_here(loader_class):
    called = []
    loader = loader_class(Whereabouts(4), batch_size=2, collate_fn=identity, worker_init_fn=called.append)
    for sample in whereabouts(loader):
        assert sample["pid"] == os.getpid()
        assert sample["info"] is None
        assert sample["torch_threads"] == torch.get_num_threads()
    assert called == [], "worker_init_fn is for workers"
    assert get_worker_info() is None


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_know_themselves(loader_class, num_workers, tmp_path):
    dataset = Whereabouts(12, tmp_path / "meeting", num_workers)
    loader = loader_class(dataset, batch_size=2, num_workers=num_workers, collate_fn=identity)
    samples = []
    for batch in loader:
        assert get_worker_info() is None
        samples += batch
    assert {sample["info"]["id"] for sample in samples} == set(range(num_workers))
    assert len({sample["pid"] for sample in samples} - {os.getpid()}) == num_workers
    assert len({(sample["pid"], sample["info"]["id"]) for sample in samples}) == num_workers
    for sample in samples:
        assert sample["info"]["num_workers"] == num_workers
        assert sample["info"]["dataset"], "info.dataset is the very dataset that is asked for samples"
        assert sample["same_by_module"]
        assert sample["torch_threads"] == 1


def test_one_worker_runs_user_code_in_one_thread(loader_class, tmp_path):
    """Datasets that are not safe for threads, or that keep things per thread, work in workers."""
    local = threading.local()

    def remember(worker_id):
        local.thread = threading.get_ident()

    class Local(Whereabouts):
        def __getitem__(self, index):
            return super().__getitem__(index) | {"initialised_in": getattr(local, "thread", None)}

    loader = loader_class(
        Local(12, tmp_path / "meeting", 2),
        batch_size=2,
        num_workers=2,
        worker_init_fn=remember,
        collate_fn=lambda samples: [*samples, {"thread": threading.get_ident(), "pid": os.getpid()}],
    )
    samples = whereabouts(loader)
    assert len({(sample["pid"], sample["thread"]) for sample in samples}) == 2
    assert all(s["thread"] == s["initialised_in"] for s in samples if "initialised_in" in s)


def test_worker_init_fn_runs_once_in_each_worker(loader_class, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()

    def write(worker_id):
        info = get_worker_info()
        with (notes / f"{worker_id}-{os.getpid()}").open("a") as file:
            file.write(
                f"{worker_id == info.id} {type(worker_id).__name__} {torch.initial_seed() == info.seed}\n"
            )

    dataset = Whereabouts(8, tmp_path / "meeting", 2)
    loader = loader_class(dataset, batch_size=2, num_workers=2, worker_init_fn=write, collate_fn=identity)
    seen = {f"{sample['info']['id']}-{sample['pid']}" for sample in whereabouts(loader)}
    files = list(notes.iterdir())
    assert {file.name for file in files} == seen
    assert {file.read_text() for file in files} == {"True int True\n"}


def test_worker_init_fn_may_change_the_workers_dataset(loader_class):
    def shift(worker_id):
        get_worker_info().dataset.offset = 1000

    dataset = Numbers(4)
    loader = loader_class(dataset, batch_size=2, num_workers=2, worker_init_fn=shift)
    assert_same(list(loader), [torch.tensor([1000, 1001]), torch.tensor([1002, 1003])])
    assert dataset.offset == 0


def test_workers_live_for_one_epoch(loader_class, tmp_path):
    dataset = Whereabouts(8, tmp_path / "first", 2)
    loader = loader_class(dataset, batch_size=2, num_workers=2, collate_fn=identity)
    first = pids(loader)
    dataset.meeting = tmp_path / "second"
    second = pids(loader)
    assert len(first) == len(second) == 2
    assert not first & second
    assert_ended(first | second)


def test_persistent_workers_live_as_long_as_the_loader(loader_class, tmp_path):
    loader = loader_class(
        Whereabouts(8, tmp_path / "meeting", 2),
        batch_size=2,
        num_workers=2,
        persistent_workers=True,
        collate_fn=identity,
    )
    first = pids(loader)
    assert len(first) == 2
    for _ in range(3):
        assert pids(loader) <= first
    assert all(is_alive(pid) for pid in first)
    del loader
    assert_ended(first)


def test_persistent_workers_keep_their_state(loader_class, tmp_path):
    class Counting(Numbers):
        def __getitem__(self, index):
            self.offset += 1
            return self.offset

    def note(worker_id):
        (tmp_path / f"{worker_id}-{time.monotonic_ns()}").touch()

    dataset = Counting(4)
    loader = loader_class(dataset, batch_size=4, num_workers=1, persistent_workers=True, worker_init_fn=note)
    assert_same([*loader, *loader], [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7, 8])])
    assert len(list(tmp_path.iterdir())) == 1, "a worker that stays is initialised once"
    assert dataset.offset == 0


def test_workers_end_with_an_iterator_that_is_left_early(loader_class, tmp_path):
    dataset = Whereabouts(40, tmp_path / "meeting", 2)
    iterator = iter(loader_class(dataset, batch_size=2, num_workers=2, collate_fn=identity))
    next(iterator)
    seen = {int(file.name) for file in dataset.meeting.iterdir()}
    assert len(seen) == 2
    del iterator
    assert_ended(seen)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.slow
def test_start_methods(loader_class, method, monkeypatch):
    monkeypatch.setattr(datasets, "inherited", "changed by the test")
    loader = loader_class(
        Mapped(read_inherited, 5),
        batch_size=2,
        num_workers=1,
        collate_fn=identity,
        multiprocessing_context=method,
    )
    samples = whereabouts(loader)
    assert [index for index, _, _ in samples] == [0, 1, 2, 3, 4]
    assert os.getpid() not in {pid for _, _, pid in samples}
    expected = "changed by the test" if method == "fork" else "imported"
    assert {value for _, value, _ in samples} == {expected}


def test_start_method_as_a_context_object(loader_class):
    context = torch.multiprocessing.get_context("fork")
    loader = loader_class(Numbers(3), batch_size=2, num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context
    assert_same(list(loader), [torch.tensor([0, 1]), torch.tensor([2])])


@pytest.mark.parametrize("options", [{"prefetch_factor": 1}, {"prefetch_factor": 7}, {"timeout": 60}])
def test_prefetching_and_timeout_change_no_batch(loader_class, options):
    loader = loader_class(Numbers(20), batch_size=3, num_workers=2, **options)
    assert [batch.tolist() for batch in loader] == [list(range(i, min(i + 3, 20))) for i in range(0, 20, 3)]


def test_a_batch_that_is_late_times_out(loader_class, tmp_path):
    gate = tmp_path / "open"
    iterator = iter(loader_class(Gate(4, gate, closed=0), batch_size=2, num_workers=1, timeout=0.5))
    caught = error_from(lambda: next(iterator))
    gate.touch()
    assert type(caught) is RuntimeError
    assert "DataLoader timed out after 0.5 seconds" in str(caught)


def test_batches_arrive_in_order_when_made_out_of_order(loader_class, tmp_path):
    dataset = Gate(8, tmp_path / "open", closed=0, opener=1)
    loader = loader_class(dataset, batch_size=1, num_workers=2)
    assert [batch.item() for batch in loader] == list(range(8))


def test_out_of_order_on_request(loader_class, tmp_path):
    gate = tmp_path / "open"
    loader = loader_class(Gate(8, gate, closed=0), batch_size=1, num_workers=2, in_order=False)
    iterator = iter(loader)
    early = [next(iterator).item()]
    gate.touch()
    early += [batch.item() for batch in iterator]
    assert early[0] != 0, "a batch that is ready does not wait for one that is not"
    assert sorted(early) == list(range(8))


def test_out_of_order_without_workers_is_in_order(loader_class):
    assert_matches_reference(loader_class, Numbers(7), batch_size=2, in_order=False)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_out_of_order_loses_and_repeats_nothing(loader_class, persistent_workers):
    loader = loader_class(
        Numbers(50), batch_size=3, num_workers=2, in_order=False, persistent_workers=persistent_workers
    )
    for _ in range(2):
        batches = sorted(batch.tolist() for batch in loader)
        assert batches == [list(range(i, min(i + 3, 50))) for i in range(0, 50, 3)]
