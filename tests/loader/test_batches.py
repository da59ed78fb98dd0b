"""The batches of a recipe: the same bit for bit however they are made."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.loader import recipe_depth
from tests.loader.helpers import assert_same, drain, flat, images, recipe, targets


def shuffled(source_recipe, **options):
    options = {"batch_size": 7, "shuffle": True, "seed": 5, **options}
    with hr.DataLoader(source_recipe, **options) as loader:
        return drain(loader) + drain(loader)


@pytest.fixture(scope="module")
def expected(folder):
    return shuffled(images(folder), num_workers=0)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 2, "prefetch_factor": 9},
        {"num_workers": 3, "persistent_workers": False},
        {"num_workers": None},
        {"num_workers": "auto"},
        {"num_workers": 0, "cache": "4MiB"},
        {"num_workers": 2, "cache": "4MiB"},
        {"num_workers": 2, "cache": "4MiB", "split": (1, 0, 0)},
        {"num_workers": 2, "cache": "4MiB", "split": (1, 1, 1)},
        {"num_workers": 2, "cache": 50_000},
    ],
    ids=str,
)
def test_batches_are_the_same_bit_for_bit(folder, expected, options):
    assert_same(shuffled(images(folder), **options), expected)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_batches_do_not_depend_on_the_size_of_orders(folder, expected, rows, monkeypatch):
    monkeypatch.setattr(recipe_depth, "rows_per_order", lambda size, hands: rows)
    assert_same(shuffled(images(folder), num_workers=2), expected)


def test_batches_do_not_depend_on_global_random_numbers(folder, expected):
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert_same(shuffled(images(folder), num_workers=0), expected)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_random_steps_differ_between_samples_and_epochs(expected):
    first, second = expected[: len(expected) // 2], expected[len(expected) // 2 :]
    order = [flat(batch[1].tolist() for batch in epoch) for epoch in (first, second)]
    assert order[0] != order[1]
    assert not torch.equal(
        torch.cat([b[0] for b in first]).mean(0), torch.cat([b[0] for b in second]).mean(0)
    )


def test_images_are_channels_last_tensors(folder):
    with hr.DataLoader(images(folder), batch_size=8, num_workers=1) as loader:
        pictures, labels = next(iter(loader))
    assert pictures.shape == (8, 3, 32, 32)
    assert pictures.dtype == torch.float32
    assert pictures.is_contiguous(memory_format=torch.channels_last)
    assert (labels.dtype, labels.shape) == (torch.int64, (8,))
    assert -2.0 <= pictures.min() < 0 < pictures.max() <= 2.0


def test_images_are_those_of_the_files(folder):
    plain = hr.Recipe(hr.folder(folder), decode=hr.image.decode(), augment=[hr.image.center_crop(40)])
    with hr.DataLoader(plain, batch_size=5, num_workers=2) as loader:
        found = torch.cat([batch[0] for batch in loader])
    alone = torch.stack([loader.dataset[index][0] for index in range(24)])
    assert torch.equal(found, alone)
    assert found.float().std() > 10


def test_without_shuffle_samples_come_in_order():
    with hr.DataLoader(recipe(10), batch_size=4, num_workers=2) as loader:
        assert targets(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert targets(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_values_are_the_sources():
    source = hr.synthetic.source(10, shape=(3, 4), classes=10)
    with hr.DataLoader(
        hr.Recipe(source, decode=hr.synthetic.decode()), batch_size=3, num_workers=2
    ) as loader:
        rows = torch.cat([values for values, _ in loader])
    for index in range(10):
        assert bytes(rows[index].flatten().tolist()) == source.content(index)


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        with hr.DataLoader(recipe(50), batch_size=8, shuffle=True, seed=seed, num_workers=0) as loader:
            loader.set_epoch(epoch)
            return flat(targets(loader))

    assert order(1, 3) == order(1, 3)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6
    assert sorted(order(2, 1)) == list(range(50))


def test_epochs_count_up_and_set_epoch_jumps():
    with hr.DataLoader(recipe(30), batch_size=8, shuffle=True, seed=3, num_workers=2) as loader:
        epochs = [targets(loader) for _ in range(3)]
        loader.set_epoch(1)
        assert targets(loader) == epochs[1]
        assert targets(loader) == epochs[2]
        loader.set_epoch(0)
        assert targets(loader) == epochs[0]
        loader.set_epoch(0)
        assert targets(loader) == epochs[0]
        with pytest.raises(hr.OptionError, match="epochs count from 0"):
            loader.set_epoch(-1)


def test_without_a_seed_loaders_differ_and_epochs_differ():
    def orders():
        with hr.DataLoader(recipe(40), batch_size=8, shuffle=True, num_workers=1) as loader:
            return [tuple(flat(targets(loader))) for _ in range(2)]

    assert len({*orders(), *orders()}) == 4


def test_torch_manual_seed_makes_a_recipe_reproducible():
    def order():
        torch.manual_seed(11)
        with hr.DataLoader(recipe(40), batch_size=8, shuffle=True, num_workers=0) as loader:
            return targets(loader)

    assert order() == order()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.booleans())
def test_every_sample_once_and_len_is_right(size, batch_size, shuffle, drop_last):
    loader = hr.DataLoader(
        recipe(size, (2,)), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, num_workers=0, seed=1
    )
    with loader:
        batches = targets(loader)
    assert len(batches) == len(loader)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    seen = flat(batches)
    assert len(set(seen)) == len(seen)
    assert len(seen) == (size // batch_size * batch_size if drop_last else size)


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_come_in_any_order_only_if_asked(in_order):
    with hr.DataLoader(recipe(60), batch_size=4, num_workers=2, in_order=in_order) as loader:
        found = targets(loader)
    wanted = [list(range(at, at + 4)) for at in range(0, 60, 4)]
    assert (found == wanted) if in_order else (sorted(found) == wanted)


def test_one_sample_at_a_time():
    with hr.DataLoader(recipe(6, (2, 3)), batch_size=None, num_workers=2) as loader:
        samples = list(loader)
        assert len(loader) == 6
    assert [tuple(value.shape) for value, _ in samples] == [(2, 3)] * 6
    assert [int(target) for _, target in samples] == list(range(6))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.slow
def test_other_ways_to_start_workers_give_the_same_batches(method):
    offset = 3

    def make(num_workers, context):
        steps = hr.Recipe(
            hr.synthetic.source(24, shape=(4,), classes=24),
            decode=lambda data: np.frombuffer(data, np.uint8)[:4].astype(np.int16) + offset,
            augment=[lambda value: value + random.randrange(100)],
        )
        loader = hr.DataLoader(
            steps,
            batch_size=5,
            shuffle=True,
            seed=2,
            num_workers=num_workers,
            multiprocessing_context=context,
        )
        with loader:
            return drain(loader) + drain(loader)

    assert_same(make(1, method), make(0, None))


def test_a_loader_can_be_pickled_before_it_is_used():
    loader = pickle.loads(pickle.dumps(hr.DataLoader(recipe(8), batch_size=4, num_workers=0, seed=1)))
    assert targets(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.close()
