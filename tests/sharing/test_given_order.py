"""Jobs that share and whose order is given by a sampler of the user's: all is as without sharing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

import headrace as hr
from tests.loader.helpers import assert_same, drain
from tests.loader.test_repeats import ORDER, KeptOrder, crops

_seeds = itertools.count()


def drawn() -> RandomSampler:
    """Another order in every process."""
    generator = torch.Generator().manual_seed(next(_seeds))
    return RandomSampler(range(12), replacement=True, generator=generator)


def make(sampler: Any, **options: Any) -> hr.DataLoader:
    options = {"share": True, "cache": "8MiB", "num_workers": 0, **options}
    return hr.DataLoader(crops(), batch_size=2, seed=8, sampler=sampler, **options)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_that_come_again_are_those_of_a_job_by_itself(num_workers: int) -> None:
    with make(ORDER, share=False, cache=None) as loader:
        expected = [drain(loader) for _ in range(2)]
    with make(ORDER, num_workers=num_workers) as loader:
        for epoch in expected:
            assert_same(drain(loader), epoch)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("sampler", [lambda: ORDER, KeptOrder, drawn], ids=["list", "kept", "drawn"])
def test_a_state_goes_on_in_the_samplers_order(sampler: Callable[[], Any]) -> None:
    with make(sampler()) as loader:
        states, whole = [], []
        for batch in loader:
            whole.append([tensor.clone() for tensor in batch])
            states.append(json.loads(json.dumps(loader.state_dict())))
    for done in (1, 3):
        with make(sampler()) as loader:
            loader.load_state_dict(states[done - 1])
            assert_same(drain(loader), whole[done:])


def test_out_of_order_batches_come_once(place: Path) -> None:
    def loader() -> hr.DataLoader:
        return make(range(12), num_workers=2, in_order=False)

    with loader() as first:
        iterator = iter(first)
        found = [label for _ in range(3) for label in next(iterator)[1].tolist()]
        state = json.loads(json.dumps(first.state_dict()))
        del iterator
    with loader() as second:
        second.load_state_dict(state)
        found += [label for _, labels in second for label in labels.tolist()]
    assert sorted(found) == list(range(12))
