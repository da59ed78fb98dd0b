"""Shuffling, and random numbers drawn by user code: reproducible from a seed, fresh in every epoch."""

import random

import numpy as np
import pytest
import torch

from tests.parity.datasets import Noisy, Numbers, Whereabouts, identity
from tests.parity.equality import assert_same

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])


def order(loader):
    return [index for batch in loader for index in batch.tolist()]


def shuffled(loader_class, seed=None, size=200, **options):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return loader_class(Numbers(size), batch_size=16, shuffle=True, generator=generator, **options)


@both
@pytest.mark.parametrize("seed", [None, 3])
def test_every_epoch_is_another_permutation(loader_class, num_workers, seed):
    loader = shuffled(loader_class, seed, num_workers=num_workers)
    epochs = [order(loader) for _ in range(3)]
    for epoch in epochs:
        assert epoch != list(range(200))
        assert sorted(epoch) == list(range(200))
    assert epochs[0] != epochs[1]
    assert epochs[1] != epochs[2]
    assert epochs[0] != epochs[2]


def test_persistent_workers_shuffle_every_epoch(loader_class):
    loader = shuffled(loader_class, 3, num_workers=2, persistent_workers=True)
    epochs = [order(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(200))] * 2
    assert epochs[0] != epochs[1]


@both
def test_a_generator_fixes_the_order_of_all_epochs(loader_class, num_workers):
    one, two, other = (shuffled(loader_class, seed, num_workers=num_workers) for seed in (3, 3, 4))
    torch.manual_seed(1)
    first = [order(one), order(one)]
    torch.manual_seed(2)
    assert [order(two), order(two)] == first
    assert order(other) != first[0]


@both
def test_the_global_seed_fixes_the_order(loader_class, num_workers):
    def epochs(seed):
        torch.manual_seed(seed)
        loader = shuffled(loader_class, num_workers=num_workers)
        return [order(loader), order(loader)]

    assert epochs(5) == epochs(5)
    assert epochs(5) != epochs(6)


def test_the_global_seed_may_be_set_after_the_loader_is_made(loader_class):
    loader = shuffled(loader_class)
    torch.manual_seed(5)
    first = order(loader)
    assert order(loader) != first
    torch.manual_seed(5)
    assert order(loader) == first


def test_a_generator_may_be_seeded_again(loader_class):
    generator = torch.Generator().manual_seed(1)
    loader = loader_class(Numbers(200), batch_size=16, shuffle=True, generator=generator)
    first = order(loader)
    generator.manual_seed(1)
    assert order(loader) == first


def test_order_does_not_depend_on_the_number_of_workers(loader_class):
    assert (
        order(shuffled(loader_class, 3))
        == order(shuffled(loader_class, 3, num_workers=1))
        == order(shuffled(loader_class, 3, num_workers=2, prefetch_factor=4))
    )


def test_shuffling_leaves_the_generators_of_user_code_alone(loader_class):
    """Only torch's generator may be read; python's and numpy's are the user's."""
    states = random.getstate(), np.random.get_state()[1].tolist()
    order(shuffled(loader_class))
    order(shuffled(loader_class, num_workers=1))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


def test_shuffle_drops_another_rest_each_epoch(loader_class):
    loader = loader_class(Numbers(20), batch_size=8, shuffle=True, drop_last=True)
    rests = {tuple(sorted(set(range(20)) - set(order(loader)))) for _ in range(8)}
    assert {len(rest) for rest in rests} == {4}
    assert len(rests) > 1


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@both
@pytest.mark.parametrize("shuffle", [False, True])
def test_augmentations_repeat_under_one_seed(loader_class, num_workers, shuffle):
    def epochs(seed):
        seed_all(seed)
        loader = loader_class(Noisy(20), batch_size=3, shuffle=shuffle, num_workers=num_workers)
        return [list(loader), list(loader)]

    first, second = epochs(4)
    (other, _) = epochs(9)
    assert_same(epochs(4), [first, second])
    for column in (1, 2, 3):
        drawn = [[batch[column].tolist() for batch in epoch] for epoch in (first, second, other)]
        assert drawn[0] != drawn[1]
        assert drawn[0] != drawn[2]


def test_augmentations_repeat_under_one_generator_in_workers(loader_class):
    def epochs(global_seed):
        seed_all(global_seed)
        generator = torch.Generator().manual_seed(8)
        loader = loader_class(Noisy(12), batch_size=3, num_workers=2, generator=generator)
        return [list(loader), list(loader)]

    assert_same(epochs(1), epochs(2))


def test_augmentations_go_on_in_persistent_workers(loader_class):
    def epochs():
        seed_all(4)
        loader = loader_class(Noisy(12), batch_size=3, num_workers=2, persistent_workers=True)
        return [list(loader), list(loader)]

    first = epochs()
    assert_same(epochs(), first)
    for column in (1, 2, 3):
        assert [b[column].tolist() for b in first[0]] != [b[column].tolist() for b in first[1]]


@both
def test_no_random_number_is_drawn_twice(loader_class, num_workers):
    loader = loader_class(Noisy(24), batch_size=4, num_workers=num_workers)
    batches = [*loader, *loader]
    for column in (1, 2, 3):
        drawn = torch.cat([batch[column] for batch in batches]).tolist()
        assert len(set(drawn)) == len(drawn) == 48


def test_workers_are_seeded_from_one_base_seed(loader_class, tmp_path):
    def seeds(*meetings):
        torch.manual_seed(21)
        dataset = Whereabouts(8, workers=2)
        loader = loader_class(dataset, batch_size=2, num_workers=2, collate_fn=identity)
        epochs = []
        for meeting in meetings:
            dataset.meeting = tmp_path / meeting
            infos = [sample["info"] for batch in loader for sample in batch]
            epochs.append({info["id"]: info["seed"] for info in infos})
        return epochs

    first, second = seeds("a", "b")
    assert first[1] - first[0] == 1
    assert first != second, "another epoch, another seed"
    assert seeds("c", "d") == [first, second]


def test_worker_init_fn_may_seed_from_the_seed_of_its_worker(loader_class):
    """The recipe of torch's notes on reproducibility."""

    def seed_worker(worker_id):
        seed = torch.initial_seed() % 2**32
        np.random.seed(seed)
        random.seed(seed)

    def epochs(global_seed):
        seed_all(global_seed)
        generator = torch.Generator().manual_seed(0)
        loader = loader_class(
            Noisy(16), batch_size=2, num_workers=2, worker_init_fn=seed_worker, generator=generator
        )
        return [list(loader), list(loader)]

    first, second = epochs(1)
    assert_same(epochs(2), [first, second])
    for column in (1, 2, 3):
        drawn = torch.cat([batch[column] for batch in first + second]).tolist()
        assert len(set(drawn)) == len(drawn)
