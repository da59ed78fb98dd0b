"""state_dict() and load_state_dict(): what was delivered counts, on any other geometry, at once."""

import json
import time

import numpy as np
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


# -- what users' objects say of themselves --------------------------------------------------------------------


class Told(Stream):
    """Its own iterator, with whatever state a test wants; counts how often it is asked for it."""

    def __init__(self, size, extra=None):
        super().__init__(size)
        self.at, self.extra = 0, extra
        self.asked = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == self.size:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self):
        self.asked += 1
        return {"at": self.at, "extra": self.extra}

    def load_state_dict(self, state):
        self.at, self.extra = state["at"], state["extra"]


ODD = {
    "tensor": torch.arange(4),
    "array": np.arange(4),
    "tuple": (1, (2, 3)),
    "set": {1, 2},
    "keys": {1: "a", (2, 3): "b"},
    "nan": [float("nan"), float("inf")],
    "bytes": b"\0\1",
}


def same(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor | np.ndarray):
        return left.dtype == right.dtype and left.tolist() == right.tolist()
    return left == right or left != left


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_is_not_plain_comes_back_as_it_was(num_workers, tmp_path):
    iterator = iter(first := hr.DataLoader(Told(9, ODD), batch_size=2, num_workers=num_workers))
    next(iterator)
    state = first.state_dict()
    del iterator, first
    with pytest.raises(TypeError, match="UserState is not JSON serializable"):
        json.dumps(state)
    torch.save(state, tmp_path / "state")
    dataset = Told(9)
    loaded = hr.DataLoader(dataset, batch_size=2)
    loaded.load_state_dict(torch.load(tmp_path / "state", weights_only=False))
    assert [batch.tolist() for batch in loaded] == [[2, 3], [4, 5], [6, 7], [8]]
    assert same(dataset.extra, ODD)


def test_a_state_with_tensors_is_loaded_without_trusting_the_file(tmp_path):
    first = hr.DataLoader(Told(9, {"tensor": torch.arange(4)}), batch_size=2)
    torch.save(first.state_dict(), tmp_path / "state")
    dataset = Told(9)
    loaded = hr.DataLoader(dataset, batch_size=2)
    loaded.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    next(iter(loaded))
    assert dataset.extra["tensor"].tolist() == [0, 1, 2, 3]


def test_a_state_is_a_copy():
    dataset = Told(9, [1, 2])
    loader = hr.DataLoader(dataset, batch_size=2)
    state = loader.state_dict()
    dataset.extra.append(3)
    assert state["workers"][0]["iterator"]["extra"] == [1, 2]


def test_nobody_is_asked_for_a_state_that_nobody_wants():
    dataset = Told(40)
    assert len(list(hr.DataLoader(dataset, batch_size=2))) == 20
    assert dataset.asked.item() <= 1, "at the end, as the iterator goes"


@pytest.mark.parametrize(
    ("extra", "every", "most"),
    [(None, None, 22), (list(range(100_000)), None, 4), (None, 5, 6), (None, 0, 2)],
)
def test_workers_take_large_states_seldom(extra, every, most):
    dataset = Told(40, extra)
    loader = hr.DataLoader(dataset, batch_size=2, num_workers=1, snapshot_every_n_steps=every)
    iterator = iter(loader)
    batches = [next(iterator).tolist() for _ in range(13)]
    state = loader.state_dict()
    batches_left = [batch.tolist() for batch in iterator]
    assert len(batches_left) == 7
    assert dataset.asked.item() <= most
    again = hr.DataLoader(Told(40), batch_size=2, num_workers=1)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == batches_left
    assert batches[-1] == [24, 25]


@pytest.mark.parametrize("every", [-1, True, 1.5, "often"])
def test_snapshots_are_a_number_of_batches(every):
    with pytest.raises(hr.OptionError, match="snapshot_every_n_steps="):
        hr.DataLoader(Squares(4), snapshot_every_n_steps=every)


def test_a_state_for_which_there_is_no_use_is_refused():
    iterator = iter(first := hr.DataLoader(Told(9), batch_size=2))
    next(iterator)
    state = first.state_dict()
    loader = hr.DataLoader(Stream(9), batch_size=2)
    loader.load_state_dict(state)
    with pytest.raises(hr.StateError, match="has no load_state_dict"):
        iter(loader)


# -- order ----------------------------------------------------------------------------------------------------


class Uneven(Squares):
    """Some samples take their time, so that batches overtake each other."""

    def __getitem__(self, index):
        if index % 12 == 0:
            time.sleep(0.05)
        return super().__getitem__(index)


@pytest.mark.parametrize("sampler", [None, list(range(47, -1, -1))])
def test_out_of_order_batches_come_once(sampler):
    def loader():
        return hr.DataLoader(Uneven(48), batch_size=4, sampler=sampler, num_workers=2, in_order=False)

    for done in (1, 3, 6, 9):
        iterator = iter(first := loader())
        found = flat(next(iterator)[1].tolist() for _ in range(done))
        state = json.loads(json.dumps(first.state_dict()))
        del iterator, first
        second = loader()
        second.load_state_dict(state)
        assert sorted(found + flat(batch[1].tolist() for batch in second)) == list(range(48))


def test_out_of_order_batches_need_the_same_batch_size():
    state = {**hr.DataLoader(Squares(20), batch_size=4).state_dict(), "position": 4, "early": [12]}
    kept = hr.DataLoader(Squares(20), batch_size=4, in_order=False)
    kept.load_state_dict(state)
    assert flat(batch[1].tolist() for batch in kept) == [4, 5, 6, 7, *range(12, 20)]
    with pytest.raises(hr.StateError, match="batch size and number of ranks must stay"):
        hr.DataLoader(Squares(20), batch_size=5, in_order=False).load_state_dict(state)


class TwoSpeeds(IterableDataset):
    """The second worker has to wait until the first has read all of its part."""

    def __init__(self):
        self.read = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self):
        slow = get_worker_info().id == 1
        for number in range(20):
            assert not slow or wait_until(lambda: self.read[0] == 20, 20)
            self.read[0] += not slow
            yield 100 * slow + number


def test_a_fast_worker_does_not_wait_for_a_slow_one_where_order_does_not_matter():
    loader = hr.DataLoader(TwoSpeeds(), batch_size=2, num_workers=2, in_order=False)
    found = [batch.tolist() for batch in loader]
    assert found[:8] == [[n, n + 1] for n in range(0, 16, 2)]
    assert sorted(flat(found)) == [*range(20), *range(100, 120)]


def test_what_an_epoch_that_was_left_still_finds_is_not_the_next_ones():
    """Workers that stay may come to the end of the old epoch when the new one has begun."""
    loader = hr.DataLoader(
        Stream(12), batch_size=2, num_workers=2, persistent_workers=True, prefetch_factor=3
    )
    whole = [batch.tolist() for batch in loader]
    for _ in range(5):
        next(iter(loader))
        assert [batch.tolist() for batch in loader] == whole


def test_a_state_before_and_after_an_epoch_settles_the_next_order():
    def loader():
        return hr.DataLoader(Squares(20), batch_size=4, shuffle=True)

    first = loader()
    states, orders = [first.state_dict()], []
    for _ in range(3):
        orders.append(flat(batch[1].tolist() for batch in first))
        torch.rand(7)  # a training loop draws, too
        states.append(first.state_dict())
    for done in range(3):
        torch.manual_seed(done)
        second = loader()
        second.load_state_dict(json.loads(json.dumps(states[done])))
        for order in orders[done:]:
            assert flat(batch[1].tolist() for batch in second) == order


# -- old states -----------------------------------------------------------------------------------------------


def test_states_of_the_first_version_are_read():
    common = {"version": 1, "epoch": 0, "size": None, "shuffle": False, "sampler": None, "seen": None}
    uniform = {**common, "sampling": "uniform", "seed": 8, "position": 8, "size": 20, "workers": None}
    loader = hr.DataLoader(Squares(20), batch_size=4)
    loader.load_state_dict(uniform)
    assert flat(batch[1].tolist() for batch in loader) == list(range(8, 20))

    sampler = {**common, "sampling": "sampler", "seed": 8, "position": 2, "workers": None}
    loader = hr.DataLoader(Squares(20), batch_size=3, sampler=[3, 1, 4, 15, 9, 2, 6, 5])
    loader.load_state_dict(sampler)
    assert flat(batch[1].tolist() for batch in loader) == [6, 5]

    workers = [[2, {"at": 6}], [1, {"at": 3}]]
    stream = {**common, "sampling": "iterable", "seed": 8, "position": 3, "workers": workers}
    loader = hr.DataLoader(StatefulStream(26), batch_size=3, num_workers=2)
    whole = [batch.tolist() for batch in loader]
    loader.load_state_dict(stream)
    assert [batch.tolist() for batch in loader] == whole[3:]

    with pytest.raises(hr.StateError, match="not the state"):
        loader.load_state_dict({**stream, "workers": [3]})


class Counted:
    """A map-style dataset that keeps a state."""

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.asked += 1
        return index

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        self.asked = state["asked"]


def test_epochs_of_a_dataset_with_a_state_follow_one_another_in_workers_that_stay():
    options = {"batch_size": 2, "shuffle": True, "seed": 3}
    with hr.DataLoader(Counted(), **options) as loader:
        expected = [[batch.tolist() for batch in loader] for _ in range(3)]
    with hr.DataLoader(Counted(), **options, num_workers=2, persistent_workers=True) as loader:
        assert [[batch.tolist() for batch in loader] for _ in range(3)] == expected
        asked = [worker["dataset"]["asked"] for worker in loader.state_dict()["workers"]]
        assert sum(asked) == 36, "nothing was read ahead of its epoch"
