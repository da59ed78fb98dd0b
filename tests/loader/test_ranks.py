"""Ranks: each takes its share of every step, and together they take every sample once."""

import os
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import headrace as hr
from tests.loader.helpers import Squares, flat, recipe, targets
from tests.prepared import Script


def share(rank, world_size, size=40, **options):
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 0, **options}
    with hr.DataLoader(recipe(size, (2,)), rank=rank, world_size=world_size, **options) as loader:
        batches = targets(loader)
        assert len(batches) == len(loader)
        return batches


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(1, 4), st.booleans())
def test_ranks_get_equal_numbers_of_batches_and_every_sample_once(size, batch_size, world, drop_last):
    shares = [share(rank, world, size, batch_size=batch_size, drop_last=drop_last) for rank in range(world)]
    assert len({len(batches) for batches in shares}) == 1
    seen = Counter(flat(flat(shares)))
    if drop_last:
        assert len(seen) == len(shares[0]) * world * batch_size
        assert set(seen.values()) <= {1}
    elif size >= world:
        assert seen == Counter(range(size))
    else:
        assert set(seen) == set(range(size)), "fewer samples than ranks: some come twice, none is missing"
        assert all(len(batches) == 1 for batches in shares)


def test_the_global_order_does_not_depend_on_the_number_of_ranks():
    alone = flat(share(0, 1, batch_size=8))
    shares = [share(rank, 2, batch_size=4) for rank in range(2)]
    steps = [sorted(a + b) for a, b in zip(*shares, strict=True)]
    assert steps == [sorted(alone[at : at + 8]) for at in range(0, 40, 8)]


def test_rank_is_found_in_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with hr.DataLoader(recipe(40, (2,)), batch_size=4, shuffle=True, seed=3, num_workers=0) as loader:
        assert targets(loader) == share(1, 2)


def test_explicit_ranks_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(flat(share(0, 1))) == 40


def test_a_torch_dataset_is_not_shared_out_by_the_environment(monkeypatch):
    """As in torch, whose users pass a DistributedSampler."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sum(len(batch[0]) for batch in hr.DataLoader(Squares(10), batch_size=4)) == 10


def test_ranks_agree_without_a_seed():
    shares = [share(rank, 2, seed=None) for rank in range(2)]
    assert Counter(flat(flat(shares))) == Counter(range(40))


def test_ranks_agree_over_a_torch_dataset_whatever_each_seeded_torch_with():
    """As training scripts do, so that ranks augment differently."""
    epochs = [Counter(), Counter()]
    orders = []
    for rank in range(2):
        torch.manual_seed(rank)
        dataset = TensorDataset(torch.arange(41))
        loader = hr.DataLoader(dataset, batch_size=4, shuffle=True, rank=rank, world_size=2)
        for got in epochs:
            orders.append([batch.tolist() for (batch,) in loader])
            got.update(flat(orders[-1]))
    assert epochs == [Counter(range(41))] * 2
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [(0, None, "go together"), (None, 2, "go together"), (2, 2, "does not lie"), (-1, 2, "does not lie"),
     (0, 0, "does not lie")],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused(rank, world_size, message):
    with pytest.raises(hr.OptionError, match=message):
        hr.DataLoader(recipe(), rank=rank, world_size=world_size)


def test_an_environment_that_makes_no_sense_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(hr.OptionError, match="RANK='one'"):
        hr.DataLoader(recipe())


def test_a_sampler_shares_by_itself():
    with pytest.raises(hr.OptionError, match="sampler"):
        hr.DataLoader(recipe(), sampler=range(10), rank=0, world_size=2)


_JOB = """
import sys
import torch.distributed as dist
import headrace as hr
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
source = hr.synthetic.source(50, shape=(2,), classes=50)
loader = hr.DataLoader(hr.Recipe(source, decode=hr.synthetic.decode()), batch_size=4, shuffle=True, num_workers=1)
for epoch in range(2):
    for _, labels in loader:
        print(epoch, *labels.tolist())
loader.close()
dist.destroy_process_group()
"""


def test_rank_is_found_in_torch_distributed(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    script = tmp_path / "job.py"
    script.write_text(_JOB)
    meeting = str(tmp_path / "meeting")
    jobs = [Script(script, str(rank), meeting, environment=environment) for rank in range(2)]
    outputs = [job.communicate(timeout=90) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    lines = [[[int(word) for word in line.split()] for line in out.splitlines()] for out, _ in outputs]
    assert len(lines[0]) == len(lines[1])
    for epoch in range(2):
        shares = [
            [label for number, *labels in rank if number == epoch for label in labels] for rank in lines
        ]
        assert Counter(shares[0] + shares[1]) == Counter(range(50))
    epochs = [[labels for number, *labels in lines[0] if number == epoch] for epoch in range(2)]
    assert all(a != b for a, b in pairwise(epochs))
