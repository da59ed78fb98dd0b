"""Batches are memory on loan: intact for as long as anybody holds them, and returned after."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import headrace as hr
from tests.descriptors import none_left_open
from tests.loader.helpers import Squares, assert_same, drain, recipe


def make(size=64, **options):
    options = {"batch_size": 4, "num_workers": 2, "shuffle": True, "seed": 1, **options}
    return hr.DataLoader(recipe(size, (16, 16, 3)), **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_kept_stay_intact(num_workers):
    with make(num_workers=num_workers) as loader:
        expected = drain(loader)
    with make(num_workers=num_workers) as loader:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(3)]
        for _ in iterator:
            pass
        for _ in range(4):
            for batch in loader:
                batch[0].fill_(77)
        assert_same(kept, expected[:3])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_whole_epoch_can_be_kept(num_workers):
    with make(num_workers=num_workers) as loader:
        expected = drain(loader)
        loader.set_epoch(0)
        everything = list(loader)
        assert loader.stats().leased == len(everything)
        for batch in loader:
            batch[0].zero_()
        assert_same(everything, expected)
        assert len({batch[0].data_ptr() for batch in everything}) == len(everything)


def test_batches_outlive_the_loader():
    loader = make()
    everything = list(loader)
    loader.close()
    again = make()
    assert_same(everything, drain(again))
    again.close()
    del loader
    gc.collect()
    everything[0][0].add_(1)
    assert_same(everything[1:], everything[1:])


def test_many_batches_take_no_descriptors():
    with make(1200, batch_size=1) as loader:
        next(iter(loader))
        with none_left_open(but=2):
            everything = list(loader)
        assert len(everything) == 1200


def test_memory_comes_back_when_batches_are_dropped():
    with make(256, batch_size=32, num_workers=1) as loader:
        drain(loader)
        file = loader._epochs.session.host.arena.fd
        rows = 32 * 16 * 16 * 3
        used = loader.stats().arena_bytes
        everything = [batch for _ in range(32) for batch in loader]  # (far more than there are ahead)
        peak = os.fstat(file).st_blocks * 512
        assert peak > len(everything) * rows
        assert loader.stats().arena_bytes > used + len(everything) // 2 * rows
        del everything
        gc.collect()
        for _ in range(2):
            drain(loader)
        assert loader.stats().leased == 0
        assert os.fstat(file).st_blocks * 512 < peak / 2
        assert loader.stats().arena_bytes < peak / 2


def test_a_view_keeps_its_batch():
    with make() as loader:
        iterator = iter(loader)
        images, _ = next(iterator)
        expected = images[1, 2].clone()
        view = images[1, 2].numpy()
        del images, _
        gc.collect()
        for batch in iterator:
            batch[0].fill_(3)
        for batch in loader:
            batch[0].fill_(4)
        assert np.array_equal(view, expected.numpy())


def test_one_tensor_of_a_batch_keeps_it():
    with make() as loader:
        iterator = iter(loader)
        labels = next(iterator)[1]
        expected = labels.clone()
        for _ in range(3):
            for batch in loader:
                batch[1].fill_(-1)
        assert torch.equal(labels, expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_tensors_are_the_users_to_write(num_workers):
    with make(num_workers=num_workers) as loader:
        for images, labels in loader:
            images += 1
            labels.mul_(2)
            images.numpy()[:] = 5
            assert int(images.sum()) == 5 * images.numel()
        clean = drain(loader)
    assert clean[0][1].max() < 64


def test_writing_to_a_batch_does_not_reach_the_cache():
    with make(num_workers=1, cache="4MiB", shuffle=False) as loader:
        expected = drain(loader)
        for _ in range(2):
            for images, labels in loader:
                images.zero_()
                labels.zero_()
        assert_same(drain(loader), expected)


def test_batches_of_torch_datasets_are_on_loan_too():
    loader = hr.DataLoader(Squares(64), batch_size=4, num_workers=2, persistent_workers=True)
    everything = list(loader)
    for batch in loader:
        batch[0].fill_(-1)
    assert [batch[0].tolist() for batch in everything] == [
        [i * i for i in range(at, at + 4)] for at in range(0, 64, 4)
    ]
    loader.close()
    assert everything[3][1].tolist() == [12, 13, 14, 15]


def test_slots_are_used_again_and_not_piled_up():
    with make(400, batch_size=4) as loader:
        most = 0
        for _ in loader:
            most = max(most, loader.stats().slots)
        assert most <= loader._epochs.session.host.ahead + 3


def test_a_batch_can_cross_to_another_process():
    """As torch's own tensors do: by multiprocessing's shared memory."""
    with make() as loader:
        images, labels = next(iter(loader))
        queue = torch.multiprocessing.get_context("fork").SimpleQueue()
        queue.put((images, labels))
        copied = queue.get()
        assert torch.equal(copied[0], images)
        assert torch.equal(copied[1], labels)


class Sizes:
    """Batches of many sizes: no two in a row fit into the same slot."""

    def __init__(self, count):
        draw = np.random.default_rng(0)
        self.batches = [[0] * int(size) for size in draw.integers(1, 40, count)]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.zeros(1000)


@pytest.mark.slow
def test_collated_batches_that_are_kept_for_a_while_take_no_more_and_more_addresses():
    found = []
    with hr.DataLoader(Rows(), batch_sampler=Sizes(900), num_workers=1) as loader:
        kept = []
        for number, batch in enumerate(loader):
            kept = [] if number % 50 == 0 else [*kept, batch]
            if number % 300 == 299:
                arena = loader._epochs.session.host.arena
                (worker,) = loader._epochs.session.host.workers
                mapped = [maps(pid, arena.fd) for pid in (os.getpid(), worker.process.pid)]
                found.append((os.fstat(arena.fd).st_size, len(arena._free), *mapped))
    first, _, last = found
    assert last[0] <= 1.5 * first[0]
    assert last[1] <= 100 and last[2] <= 120 and last[3] <= 260


def maps(pid, fd):
    """How many mappings of a file a process has."""
    inode = f" {os.fstat(fd).st_ino} "
    return Path(f"/proc/{pid}/maps").read_text().count(inode)
