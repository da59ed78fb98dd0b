"""state_dict() and load_state_dict(): what was delivered counts, on any other geometry, at once."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

import headrace as hr
from tests.loader.helpers import (
    Squares,
    assert_same,
    counting,
    descendants,
    drain,
    flat,
    images,
    recipe,
    targets,
    wait_until,
)


def take(loader, count):
    """The targets of the first batches, and the state after them; the iterator is dropped."""
    iterator = iter(loader)
    found = [next(iterator)[1].tolist() for _ in range(count)]
    return found, json.loads(json.dumps(loader.state_dict()))


def make(source_recipe=None, **options):
    options = {"batch_size": 4, "shuffle": True, "seed": 8, "num_workers": 2, **options}
    return hr.DataLoader(source_recipe or recipe(30), **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_at_every_batch_goes_on_exactly_there(num_workers):
    with make(num_workers=num_workers) as loader:
        whole = [targets(loader) for _ in range(2)]
    states = []
    with make(num_workers=num_workers) as loader:
        states.append(loader.state_dict())
        states += [json.loads(json.dumps(loader.state_dict())) for _ in loader]
        over = loader.state_dict()
    assert len(states) == len(whole[0]) + 1
    for done, state in enumerate(states):
        with make(num_workers=num_workers, prefetch_factor=3 if num_workers else None) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert targets(loader) == whole[0][done:]
            if done in (0, 3, len(whole[0])):
                assert targets(loader) == whole[1]
    with make(num_workers=num_workers) as loader:
        loader.load_state_dict(over)
        assert targets(loader) == whole[1], "an epoch that ended is over"


def test_resumed_images_are_the_same_bit_for_bit(folder):
    with make(images(folder)) as loader:
        whole = drain(loader)
    with make(images(folder)) as loader:
        _, state = take(loader, 2)
    with make(images(folder), num_workers=1, cache="4MiB") as loader:
        loader.load_state_dict(state)
        assert_same(drain(loader), whole[2:])


def test_a_state_counts_what_was_delivered_and_not_what_is_prepared():
    source_recipe, source = counting(60)
    with make(source_recipe, batch_size=4, prefetch_factor=4) as loader:
        iterator = iter(loader)
        first = flat(next(iterator)[1].tolist() for _ in range(2))
        assert wait_until(lambda: source.reads.sum() > 16), "more is prepared than was delivered"
        state = loader.state_dict()
        del iterator
    assert state["position"] == 8
    with make(source_recipe) as loader:
        loader.load_state_dict(state)
        assert sorted(first + flat(targets(loader))) == list(range(60))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_before_the_position_is_read_again(num_workers):
    source_recipe, source = counting(40)
    with make(source_recipe, num_workers=num_workers) as loader:
        delivered, state = take(loader, 6)
    source.reads[:] = 0
    with make(source_recipe, num_workers=num_workers, persistent_workers=False) as loader:
        loader.load_state_dict(state)
        rest = flat(targets(loader))
    assert source.reads[flat(delivered)].tolist() == [0] * 24
    assert source.reads[rest].tolist() == [1] * 16


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_state_goes_on_with_other_batches_and_ranks(data):
    """However often an epoch is interrupted and changed, each sample comes once."""
    size = data.draw(st.integers(10, 60), label="size")
    seen, state, twice = [], None, 0
    while state is None or state["epoch"] == 0:
        world = data.draw(st.integers(1, 3), label="ranks")
        batch = data.draw(st.integers(2, 8), label="batch size")
        steps = data.draw(st.integers(1, 4), label="steps")
        states = []
        # Only where fewer samples than ranks are left must some come twice, for every rank to get a batch.
        left = size - (state["position"] if state else 0)
        twice += max(0, world - left) if left else 0
        for rank in range(world):
            loader = make(recipe(size, (2,)), num_workers=0, batch_size=batch, rank=rank, world_size=world)
            with loader:
                if state is not None:
                    loader.load_state_dict(state)
                for _, (_, labels) in zip(range(steps), loader, strict=False):
                    seen += labels.tolist()
                states.append(loader.state_dict())
        assert states == [states[0]] * world, "ranks agree on where they stand"
        state = states[0]
    assert set(seen) == set(range(size))
    assert len(seen) == size + twice


def test_onto_other_workers_and_batch_size():
    with make(num_workers=2) as loader:
        first, state = take(loader, 3)
    with make(num_workers=1, batch_size=9) as loader:
        loader.load_state_dict(state)
        second, state = take(loader, 1)
    with make(num_workers=0, batch_size=2) as loader:
        loader.load_state_dict(state)
        third = targets(loader)
    with make() as loader:
        whole = flat(targets(loader))
    assert flat(first) + flat(second) + flat(third) == whole


def test_a_state_can_be_loaded_into_a_loader_that_was_used():
    with make() as loader:
        whole = [targets(loader) for _ in range(2)]
        loader.set_epoch(0)
        _, state = take(loader, 2)
        assert targets(loader) == whole[1]
        loader.load_state_dict(state)
        assert targets(loader) == whole[0][2:]
        assert targets(loader) == whole[1]


def test_the_seed_travels_with_the_state():
    with make(seed=None) as loader:
        first, state = take(loader, 3)
    with make(seed=None) as loader:
        loader.load_state_dict(state)
        rest = targets(loader)
    assert sorted(flat(first + rest)) == list(range(30))


def test_loading_in_the_middle_of_an_epoch_is_refused():
    with make() as loader:
        state = loader.state_dict()
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(hr.StateError, match="after iteration began"):
            loader.load_state_dict(state)
        assert len(list(iterator)) == len(loader) - 1, "the running epoch is not disturbed"
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 31}, "dataset of 31 samples"),
        ({"shuffle": False}, "shuffle=False"),
        ({"sampling": "sampler"}, "'sampler' sampling"),
        ({"position": 31}, "outside of an epoch"),
        ({"position": -1}, "outside of an epoch"),
        ({"version": 99}, "version 99"),
        ({"epoch": "one"}, "not the state of a headrace loader"),
        ({"surprise": 1}, "not the state of a headrace loader"),
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_is_refused(changes, message):
    with make(num_workers=0) as loader:
        with pytest.raises(hr.StateError, match=message):
            loader.load_state_dict({**loader.state_dict(), **changes})
        assert len(targets(loader)) == 8


@pytest.mark.parametrize("nothing", [None, {}, [], "state", 3])
def test_what_is_no_state_is_refused(nothing):
    with make(num_workers=0) as loader, pytest.raises(hr.StateError, match="not the state"):
        loader.load_state_dict(nothing)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_datasets_resume_too(num_workers):
    def loader(**options):
        return hr.DataLoader(Squares(22), batch_size=4, shuffle=True, num_workers=num_workers, **options)

    iterator = iter(first := loader())
    found = flat(next(iterator)[1].tolist() for _ in range(2))
    state = first.state_dict()
    del iterator
    second = loader()
    second.load_state_dict(state)
    rest = flat(batch[1].tolist() for batch in second)
    assert sorted(found + rest) == list(range(22))


class Noted(Squares):
    """Writes down what it was asked for."""

    def __init__(self, size):
        super().__init__(size)
        self.asked = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __getitem__(self, index):
        self.asked[index] += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_is_passed_over_and_its_samples_are_not_touched(num_workers):
    dataset = Noted(20)
    order = [3, 1, 4, 15, 9, 2, 6, 5, 8, 7, 0, 10]

    def loader():
        return hr.DataLoader(dataset, batch_size=3, sampler=order, num_workers=num_workers)

    iterator = iter(first := loader())
    next(iterator), next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    del iterator, first
    dataset.asked.zero_()
    second = loader()
    second.load_state_dict(state)
    assert flat(batch[1].tolist() for batch in second) == order[6:]
    assert sorted(dataset.asked.nonzero().flatten().tolist()) == sorted(order[6:])


def test_a_recipe_with_a_sampler_resumes():
    source_recipe, source = counting(20)
    order = [3, 1, 4, 15, 9, 2, 6, 5]
    with hr.DataLoader(source_recipe, batch_size=3, sampler=order, num_workers=1) as loader:
        first, state = take(loader, 1)
    source.reads[:] = 0
    with hr.DataLoader(source_recipe, batch_size=3, sampler=order, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert first + targets(loader) == [[3, 1, 4], [15, 9, 2], [6, 5]]
    assert source.reads.nonzero()[0].tolist() == sorted(order[3:])


class Stream(IterableDataset):
    """Numbers, divided among workers."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id if info else 0, self.size, info.num_workers if info else 1)


class StatefulStream(Stream):
    """Goes on at its own state; says so if it is asked to pass over anything."""

    def __init__(self, size):
        super().__init__(size)
        self.at = 0
        self.read = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __iter__(self):
        info = get_worker_info()
        step = info.num_workers if info else 1
        start, self.at = self.at, 0
        for number in range(start * step + (info.id if info else 0), self.size, step):
            start += 1
            self.at = start
            self.read[number] += 1
            yield number
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("kind", [Stream, StatefulStream])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("done", [0, 1, 2, 5])
def test_iterable_datasets_resume(kind, num_workers, done):
    def loader(dataset):
        return hr.DataLoader(dataset, batch_size=3, num_workers=num_workers)

    whole = [batch.tolist() for batch in loader(kind(26))]
    iterator = iter(first := loader(kind(26)))
    begun = [next(iterator).tolist() for _ in range(done)]
    state = json.loads(json.dumps(first.state_dict()))
    del iterator, first
    dataset = kind(26)
    second = loader(dataset)
    second.load_state_dict(state)
    assert begun + [batch.tolist() for batch in second] == whole
    if kind is StatefulStream:
        assert dataset.read[flat(begun)].sum() == 0, "a dataset with a state of its own is not read again"
    assert [batch.tolist() for batch in second] == whole, "the next epoch is whole"


def test_an_iterable_dataset_needs_the_same_number_of_workers():
    iterator = iter(first := hr.DataLoader(Stream(20), batch_size=3, num_workers=2))
    next(iterator)
    state = first.state_dict()
    del iterator, first
    with pytest.raises(hr.StateError, match="their number must stay"):
        hr.DataLoader(Stream(20), batch_size=3, num_workers=1).load_state_dict(state)


def test_a_loader_that_resumes_starts_no_second_set_of_workers():
    with make() as loader:
        _, state = take(loader, 2)
        before = set(descendants())
        loader.load_state_dict(state)
        targets(loader)
        assert set(descendants()) == before
