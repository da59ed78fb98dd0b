"""Samples so large that they are laid into the batch's memory one by one, as they come."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.parity.datasets import Mapped
from tests.parity.equality import assert_matches_reference, assert_same, error_from

pytestmark = pytest.mark.parity

SIDE = 80
"""6400 elements: of one byte each too few to be laid, of four enough."""
Pair = namedtuple("Pair", "image label")


def tensor(index, dtype=torch.float32, side=SIDE):
    """Differs from one index to the next, in each element."""
    return (torch.arange(side * side).view(side, side) * 7 + index * 13).remainder(97).to(dtype)


def array(index, dtype=np.float32):
    return tensor(index).numpy().astype(dtype)


SHAPES = {
    "tensor": tensor,
    "array": array,
    "pair": lambda i: (tensor(i), i),
    "list": lambda i: [tensor(i), array(i + 1), str(i)],
    "record": lambda i: {"image": tensor(i), "mask": tensor(i + 1, torch.uint8), "name": f"sample {i}"},
    "nested": lambda i: {"views": [tensor(i), tensor(i + 1)], "more": ({"deep": array(i)}, 0.5 * i)},
    "named tuple": lambda i: Pair(tensor(i), i),
    "ordered": lambda i: OrderedDict(b=tensor(i), a=i),
    "the same tensor twice": lambda i: (lambda one: (one, one))(tensor(i)),
    "transposed": lambda i: (tensor(i).t(), i),
    "a part of a larger one": lambda i: (torch.cat([tensor(i), tensor(i)], 1)[:, 10 : SIDE + 10], i),
    "expanded": lambda i: (torch.tensor([float(i)]).expand(SIDE, SIDE), i),
    "conjugate": lambda i: torch.complex(tensor(i), tensor(i + 1)).conj(),
    "bfloat16": lambda i: tensor(i, torch.bfloat16, 2 * SIDE),
    "bool": lambda i: tensor(i, torch.float32, 2 * SIDE) > 40,
    "with a gradient": lambda i: tensor(i).requires_grad_(),
    "float64 array": lambda i: array(i, np.float64),
    "int16 array": lambda i: array(i, np.int16).repeat(2, 0),
    "fortran array": lambda i: np.asfortranarray(array(i)),
    "read-only array": lambda i: _frozen(array(i)),
}
SLICES = {"fewer than wait": 3, "some wait": 32, "one": 1}


def _frozen(made):
    made.flags.writeable = False
    return made


ONLY_OURS = ("conjugate", "with a gradient")
"""Torch's own workers stack into memory of their own, and fail where that may not be."""


class Stream(torch.utils.data.IterableDataset):
    """So many samples, one after the other."""

    def __init__(self, sample, count):
        self.sample, self.count = sample, count

    def __iter__(self):
        return (self.sample(index) for index in range(self.count))


def is_torchs(loader_class):
    return loader_class is torch.utils.data.DataLoader


def assert_like_torch_in_one_process(loader_class, dataset):
    """The same batches, or the same kind of error. (Torch's own workers go another way there.)"""
    if is_torchs(loader_class):
        pytest.skip("torch's workers raise another error, or one where its loader without workers does not")
    expected, failed = None, None
    try:
        expected = list(torch.utils.data.DataLoader(dataset, batch_size=32))
    except Exception as error:
        failed = error
    if failed is None:
        assert_same(list(loader_class(dataset, batch_size=32, num_workers=1)), expected)
        return
    found = error_from(lambda: list(loader_class(dataset, batch_size=32, num_workers=1)))
    assert type(found) is type(failed)
    assert str(failed).splitlines()[0] in str(found)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("batch_size", SLICES.values(), ids=SLICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(loader_class, shape, batch_size):
    if shape in ONLY_OURS and is_torchs(loader_class):
        pytest.skip("torch's own workers fail")
    dataset = Mapped(SHAPES[shape], 40)
    assert_matches_reference(loader_class, dataset, batch_size=batch_size, num_workers=1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_that_ends_within_a_batch(loader_class, drop_last):
    dataset = Stream(lambda i: (tensor(i), i), 70)
    options = {"batch_size": 32, "drop_last": drop_last}
    loader = loader_class(dataset, num_workers=1, persistent_workers=True, **options)
    for _ in range(3):
        expected = list(torch.utils.data.DataLoader(dataset, **options))
        assert len(expected) == (2 if drop_last else 3)
        assert_same(list(loader), expected)


UNLIKE = {
    "shape": lambda i: tensor(i, side=SIDE + 1),
    "fewer dimensions": lambda i: tensor(i).flatten(),
    "array": array,
    "number": float,
}


@pytest.mark.parametrize("at", [0, 1, 2, 20, 31])
@pytest.mark.parametrize("unlike", UNLIKE)
def test_one_that_is_unlike_the_others_is_what_torch_says(loader_class, unlike, at):
    def sample(index):
        return {"image": UNLIKE[unlike](index) if index == at else tensor(index)}

    assert_like_torch_in_one_process(loader_class, Mapped(sample, 32))


@pytest.mark.parametrize("at", [0, 1, 2, 20])
def test_other_types_are_promoted(loader_class, at):
    dataset = Mapped(lambda i: tensor(i, torch.float64 if i == at else torch.float32), 32)
    assert_like_torch_in_one_process(loader_class, dataset)


@pytest.mark.parametrize("change", ["shorter", "longer", "no key", "another key", "another kind"])
def test_containers_that_are_unlike(loader_class, change):
    def sample(index):
        one = {"a": (tensor(index), index), "b": tensor(index)}
        if index == 20:
            if change == "shorter":
                one["a"] = (tensor(index),)
            elif change == "longer":
                one["a"] = (tensor(index), index, index)
            elif change == "no key":
                del one["b"]
            elif change == "another key":
                one["c"] = 0
            else:
                one["a"] = [tensor(index), index]
        return one

    assert_like_torch_in_one_process(loader_class, Mapped(sample, 32))


def test_other_rules_for_tensors_are_honoured(loader_class, monkeypatch):
    def largest(samples, *, collate_fn_map=None):
        return torch.stack(list(samples)).amax(0)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, largest)
    dataset = Mapped(lambda i: (tensor(i), array(i), i), 40)
    assert_matches_reference(loader_class, dataset, batch_size=32, num_workers=1)


def test_what_a_dataset_keeps_stays_its_own(loader_class):
    class Keeping:
        def __init__(self):
            self.records = [{"image": tensor(i), "parts": [tensor(i), i]} for i in range(32)]

        def __len__(self):
            return 32

        def __getitem__(self, index):
            return self.records[index]

    dataset = Keeping()
    loader = loader_class(dataset, batch_size=32, num_workers=1, persistent_workers=True)
    for _ in range(3):
        assert_same(list(loader), list(torch.utils.data.DataLoader(dataset, batch_size=32)))
