"""A sampler that names a sample more than once in an epoch: it is augmented anew each time, and always alike."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

import headrace as hr
from headrace.core.errors import StateError
from headrace.core.random import again
from headrace.loader.repeats import Repeats
from tests.loader.helpers import assert_same, drain, images

ORDER = [3, 7, 3, 1, 3, 0, 7, 3, 5, 3, 2, 7]
"""Sample 3 five times, also within a batch of four; sample 7 three times."""


def noisy(value):
    """A step of the user's that draws from a global generator."""
    return value + np.random.randint(0, 1 << 20, value.shape)


def crops(size=12):
    source = hr.synthetic.source(size, shape=(24, 24, 3), classes=size)
    return hr.Recipe(source, hr.synthetic.decode(), [hr.image.random_crop(6), hr.image.random_erasing(p=1.0)])


def make(recipe=None, **options):
    options = {"batch_size": 4, "seed": 8, "num_workers": 0, "sampler": ORDER, **options}
    return hr.DataLoader(recipe if recipe is not None else crops(), **options)


def by_sample(batches):
    """What came of each sample, in its order."""
    found = {}
    for values, labels in batches:
        for value, label in zip(values, labels.tolist(), strict=True):
            found.setdefault(label, []).append(value)
    return found


def assert_all_differ(values):
    assert len({value.numpy().tobytes() for value in values}) == len(values)


@pytest.mark.parametrize("step", ["crop", "function", "target"])
def test_a_sample_that_comes_again_is_augmented_anew(step):
    recipe = crops()
    if step == "function":
        recipe = hr.Recipe(recipe.source, hr.synthetic.decode(), [noisy])
    if step == "target":
        recipe = hr.Recipe(
            recipe.source, hr.synthetic.decode(), target_transform=lambda label: noisy(np.array([label]))
        )
    with make(recipe) as loader, make(recipe, sampler=range(12)) as plain:
        epochs = [drain(loader) for _ in range(2)]
        once = drain(plain)
    if step == "target":
        rows = torch.cat([batch[1] for batch in epochs[0]])
        assert rows.unique().numel() == len(ORDER)
        return
    firsts = by_sample(once)
    for sample, values in by_sample(epochs[0]).items():
        assert torch.equal(values[0], firsts[sample][0]), "the first time is as ever"
        assert_all_differ(values + by_sample(epochs[1])[sample])


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2},
        {"cache": "8MiB"},
        {"cache": "8MiB", "num_workers": 2},
        {"sampler": None, "batch_size": 1, "batch_sampler": BatchSampler(ORDER, 4, False)},
    ],
    ids=lambda options: ", ".join(options),
)
def test_how_samples_are_prepared_makes_no_difference(options):
    with make() as loader:
        expected = [drain(loader) for _ in range(2)]
    with make(**options) as loader:
        for epoch in expected:
            assert_same(drain(loader), epoch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collated_and_single_samples_are_the_same(num_workers):
    with make() as loader:
        values = torch.cat([batch[0] for batch in drain(loader)])
    with make(
        collate_fn=lambda samples: [torch.as_tensor(s[0]) for s in samples], num_workers=num_workers
    ) as loader:
        assert torch.equal(torch.stack([value for batch in loader for value in batch]), values)
    with make(batch_size=None, num_workers=num_workers) as loader:
        assert torch.equal(torch.stack([value.clone() for value, _ in loader]), values)


@pytest.mark.parametrize("replacement", ["random", "weighted"])
def test_images_drawn_with_replacement(replacement, folder):
    generator = torch.Generator().manual_seed(3)
    if replacement == "random":
        sampler = RandomSampler(range(24), replacement=True, num_samples=60, generator=generator)
    else:
        sampler = WeightedRandomSampler([1.0, 5.0, 5.0] + [0.1] * 21, 60, generator=generator)
    with make(images(folder), batch_size=8, sampler=sampler) as loader:
        values = torch.cat([batch[0] for batch in drain(loader)])
    assert_all_differ(list(values))


class KeptOrder:
    """A sampler with a state, which names samples again and again."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < len(ORDER):
            self.at += 1
            yield ORDER[self.at - 1]
        self.at = 0

    def __len__(self):
        return len(ORDER)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_a_state_at_every_batch_counts_on(num_workers, kept):
    def loader():
        sampler = KeptOrder() if kept else ORDER
        return make(batch_size=2, num_workers=num_workers, sampler=sampler)

    states = []
    with loader() as first:
        whole = [[]]
        for batch in first:
            whole[0].append([tensor.clone() for tensor in batch])
            states.append(json.loads(json.dumps(first.state_dict())))
        whole.append(drain(first))
    for done, state in enumerate(states, 1):
        with loader() as second:
            second.load_state_dict(state)
            assert second.state_dict() == state
            if done < len(whole[0]):
                assert_same(drain(second), whole[0][done:])
                assert_same(drain(second), whole[1])


def test_out_of_order_batches_count_as_they_were_drawn():
    with make(batch_size=2) as loader:
        whole = drain(loader)
    with make(batch_size=2, num_workers=2, in_order=False) as loader:
        iterator = iter(loader)
        found = [[tensor.clone() for tensor in next(iterator)] for _ in range(3)]
        state = loader.state_dict()
        del iterator
    with make(batch_size=2, num_workers=2, in_order=False) as loader:
        loader.load_state_dict(state)
        found += drain(loader)
    seen = sorted(batch[0].numpy().tobytes() for batch in found)
    assert seen == sorted(batch[0].numpy().tobytes() for batch in whole)


def test_in_a_loader_that_is_none_of_ours():
    dataset = hr.DataLoader(crops()).dataset
    samples = dataset.__getitems__([3, 3, 1, 3])
    assert_all_differ([samples[row][0] for row in (0, 1, 3)])


@given(st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=6), st.integers(0, 6))
def test_counting(batches, cut):
    repeats, came = Repeats(7), dict.fromkeys(range(7), 0)
    for number, batch in enumerate(batches):
        if number == cut:
            repeats = Repeats.unpack(repeats.pack(), 7)
        indices = np.array(batch, np.int64)
        ahead = repeats.copy()
        ahead.count(indices)
        ahead.uncount(indices)
        assert ahead.pack() == repeats.pack()
        times = []
        for index in batch:
            times.append(came[index])
            came[index] += 1
        words = repeats.count(indices)
        assert (indices if words is None else words).tolist() == again(indices, np.array(times)).tolist()
        assert (words is None) == (not any(times))


def test_counts_of_a_dataset_that_has_grown_and_of_no_dataset():
    repeats = Repeats(3)
    repeats.count(np.array([2, 2]))
    grown = Repeats.unpack(repeats.pack(), 5)
    words = grown.count(np.array([2, 4]))
    assert words is not None and words.tolist() == again(np.array([2, 4]), np.array([2, 0])).tolist()
    assert Repeats.unpack(repeats.pack(), 2).count(np.array([0, 1])) is None
    for text in ("?", "AAAA"):
        with pytest.raises(StateError, match="how often"):
            Repeats.unpack(text, 3)
