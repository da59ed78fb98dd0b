"""Saved, and loaded into a new loader over a new dataset: torchdata's StatefulDataLoader and ours, over one grid.

What was delivered before saving and after loading is what an uninterrupted run delivers: in ours everywhere, but for
random numbers of the process' own that were yet to be drawn, and so wherever it is in torchdata's.
"""

import functools
import logging
import pickle
import random

import numpy as np
import pytest
import torch

import headrace as hr

pytest.importorskip("torchdata")

from torchdata.stateful_dataloader import StatefulDataLoader

from tests.parity.resumable import MAPS, SAMPLERS, STREAMS

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

MOMENTS = {"start": (0, 0), "middle": (0, 2), "end": (1, 0), "second": (1, 2), "second end": (2, 0)}
"""Epochs and batches that are delivered before."""
STEPS = 2
WITHOUT, FRESH, KEPT = (0, False), (2, False), (3, True)
"""Workers: none, new ones for each epoch, the same ones for all of them."""


def seed_all(seed):
    """What a training script begins with."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def _quiet():
    """torchdata logs a warning whenever it reads a dataset again."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def values(batch):
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [values(part) for part in batch] if isinstance(batch, list | tuple) else batch


def build(loader_class, dataset, options, workers, more=()):
    made, (num_workers, persistent) = dataset(), workers
    if num_workers:
        more = {**dict(more), "multiprocessing_context": "fork", "persistent_workers": persistent}
    return loader_class(made, num_workers=num_workers, **options(made), **dict(more))


def run(*what, states=None):
    """Three epochs; ``states`` gets the state at every moment."""
    seed_all(3)
    loader = build(*what)
    note = (lambda: None) if states is None else (lambda: states.append(pickle.dumps(loader.state_dict())))
    note()
    epochs = []
    for epoch in range(3):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(values(batch))
            if len(epochs[-1]) == STEPS and epoch < 2:
                note()
        if epoch < 2:
            note()
    return epochs


@functools.cache
def grid(*what, seed=99):
    """For every moment, whether the epoch that goes on there is kept, and whether the next one is.

    ``seed``: what the process is seeded with in which the state is loaded.
    """
    states = []
    whole = run(*what, states=states)
    if what[0] is hr.DataLoader and what[3] is not FRESH:
        assert whole == run(*what), "to save a state changes nothing"
    found = {}
    for (moment, (epoch, steps)), state in zip(MOMENTS.items(), states, strict=True):
        seed_all(seed)
        loader = build(*what)
        loader.load_state_dict(pickle.loads(state))
        this = [values(batch) for batch in loader] == whole[epoch][steps:]
        after = moment != "middle" or [values(batch) for batch in loader] == whole[epoch + 1]
        found[moment] = (this, after)
    return found


def in_twos(data):
    return {"batch_size": 2}


EVERYWHERE = dict.fromkeys(MOMENTS, (True, True))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("workers", [WITHOUT, FRESH, KEPT], ids=str)
def test_iterable_datasets(name, workers):
    found = grid(hr.DataLoader, STREAMS[name], in_twos, workers)
    if name == "noisy generator" and workers is WITHOUT:
        # Before the first batch nobody knows that it draws from generators that are the user's.
        assert found == EVERYWHERE | {"start": (False, True)}
        assert grid(hr.DataLoader, STREAMS[name], in_twos, workers, seed=3) == EVERYWHERE
    else:
        assert found == EVERYWHERE


def test_only_generators_that_are_drawn_from_are_kept_and_touched():
    seed_all(3)
    loader = build(hr.DataLoader, STREAMS["noisy generator"], in_twos, WITHOUT)
    batches = iter(loader)
    next(batches)
    (mark,) = loader.state_dict()["workers"]
    assert sorted(mark["generators"]) == ["numpy", "random", "torch"]
    loader = build(hr.DataLoader, STREAMS["generator"], in_twos, WITHOUT)
    batches = iter(loader)
    random.random(), np.random.rand(), torch.rand(1)  # of the user's own
    next(batches)
    assert "generators" not in str(loader.state_dict())
    for number in ("torch", "numpy", "random"):
        broken = {**loader.state_dict(), "workers": [{"generators": {number: ["no", 1, 2, 3]}}]}
        loader = build(hr.DataLoader, STREAMS["noisy generator"], in_twos, WITHOUT)
        loader.load_state_dict(broken)
        with pytest.raises(hr.StateError, match=f"{number}'s global generator"):
            next(iter(loader))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("workers", [WITHOUT, KEPT], ids=str)
def test_samplers(name, workers):
    found = grid(hr.DataLoader, MAPS["map"], SAMPLERS[name], workers)
    if name in ("random sampler", "with replacement"):
        # The order of a later epoch is drawn from torch's global generator when that epoch begins.
        assert found == EVERYWHERE | {"middle": (True, False)}
        same = grid(hr.DataLoader, MAPS["map"], SAMPLERS[name], workers, seed=3)
        assert same == EVERYWHERE
    else:
        assert found == EVERYWHERE


@pytest.mark.parametrize("sampler", ["default", "shuffle"])
@pytest.mark.parametrize(
    ("name", "workers"),
    [("stateful map", WITHOUT), ("stateful map", FRESH), ("stateful map", KEPT), ("noisy map", KEPT)],
    ids=str,
)
def test_map_style_datasets(name, workers, sampler):
    assert grid(hr.DataLoader, MAPS[name], SAMPLERS[sampler], workers) == EVERYWHERE


@pytest.mark.parametrize(("every", "workers"), [(0, FRESH), (1, WITHOUT), (3, KEPT), (100, KEPT)], ids=str)
@pytest.mark.parametrize("name", ["stateful dataset", "stateful map"])
def test_however_often_states_are_taken(name, workers, every):
    dataset = (STREAMS | MAPS)[name]
    more = (("snapshot_every_n_steps", every),)
    assert grid(hr.DataLoader, dataset, in_twos, workers, more) == EVERYWHERE


@pytest.mark.parametrize("every", [None, 0])
@pytest.mark.parametrize(
    ("dataset", "options", "workers"),
    [
        *((STREAMS[name], in_twos, KEPT) for name in ("generator", "stateful dataset", "both stateful")),
        (STREAMS["both stateful"], in_twos, WITHOUT),
        (MAPS["stateful map"], SAMPLERS["stateful sampler"], KEPT),
        (MAPS["noisy map"], SAMPLERS["random sampler"], KEPT),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_saved_again_and_again(dataset, options, workers, every):
    """After every batch, into a new loader."""
    what = (hr.DataLoader, dataset, options, workers, (("snapshot_every_n_steps", every),))
    whole = run(*what)[0]
    seed_all(3)
    found, state = [], None
    while len(found) < len(whole):
        loader = build(*what)
        if state is not None:
            loader.load_state_dict(pickle.loads(state))
        found.append(values(next(iter(loader))))
        state = pickle.dumps(loader.state_dict())
    assert found == whole


THEIRS = [
    *((name, kind, in_twos, workers) for name, kind in STREAMS.items() for workers in (WITHOUT, FRESH)),
    *((name, MAPS["map"], options, WITHOUT) for name, options in SAMPLERS.items()),
    *(
        (name, MAPS["map"], SAMPLERS[name], KEPT)
        for name in ("shuffle", "random sampler", "stateful sampler")
    ),
    *(
        (name, MAPS[name], in_twos, workers)
        for name in ("stateful map", "noisy map")
        for workers in (WITHOUT, KEPT)
    ),
]


@pytest.mark.parametrize(
    ("name", "dataset", "options", "workers"), THEIRS, ids=lambda part: "" if callable(part) else str(part)
)
def test_wherever_it_is_in_torchdatas(name, dataset, options, workers):
    """In a process that is seeded as the one that it was saved in; ours mostly also in any other."""
    theirs = grid(StatefulDataLoader, dataset, options, workers, seed=3)
    ours = grid(hr.DataLoader, dataset, options, workers)
    if ours != EVERYWHERE:
        ours = grid(hr.DataLoader, dataset, options, workers, seed=3)
    worse = {moment for moment in theirs for a, b in zip(ours[moment], theirs[moment], strict=True) if a < b}
    assert not worse


def test_torchdata_keeps_most_of_it():
    """Were it not so, the test above would show nothing."""
    for name in set(STREAMS) - {"noisy generator"}:
        assert grid(StatefulDataLoader, STREAMS[name], in_twos, FRESH, seed=3) == EVERYWHERE
    assert grid(StatefulDataLoader, MAPS["map"], SAMPLERS["stateful sampler"], WITHOUT, seed=3) == EVERYWHERE
