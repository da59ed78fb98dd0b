"""A batch belongs to the user: it may be kept, changed, saved and sent on."""

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch

from tests.parity.datasets import Mapped, Numbers
from tests.parity.equality import assert_same, reference
from tests.parity.samples import SAMPLES

pytestmark = pytest.mark.parity

both = pytest.mark.parametrize("num_workers", [0, 2])


def images(size=24):
    return Mapped(lambda i: (torch.full((3, 8, 8), float(i)), np.full((5,), i, np.int32), i), size)


@both
def test_kept_batches_stay_as_they_were(loader_class, num_workers):
    copies, kept = [], []
    for batch in loader_class(images(60), batch_size=2, num_workers=num_workers):
        copies.append(copy.deepcopy(batch))
        kept.append(batch)
    assert_same(kept, copies)
    assert_same(kept, reference(images(60), batch_size=2))


def test_kept_batches_outlive_iterator_and_loader(loader_class):
    loader = loader_class(images(), batch_size=4, num_workers=2)
    kept = list(loader)
    del loader
    gc.collect()
    again = list(loader_class(images(), batch_size=4, num_workers=2))
    assert_same(kept, again)


def test_one_tensor_of_a_batch_may_outlive_the_others(loader_class):
    kept = [batch[1] for batch in loader_class(images(60), batch_size=2, num_workers=2)]
    assert_same(kept, [batch[1] for batch in reference(images(60), batch_size=2)])


def test_a_view_of_a_batch_may_outlive_it(loader_class):
    views = [batch[0][1:, :, ::2] for batch in loader_class(images(60), batch_size=2, num_workers=2)]
    assert_same(views, [batch[0][1:, :, ::2] for batch in reference(images(60), batch_size=2)])


def test_an_array_of_a_batch_may_outlive_it(loader_class):
    arrays = [batch[1].numpy() for batch in loader_class(images(60), batch_size=2, num_workers=2)]
    assert_same(arrays, [batch[1].numpy() for batch in reference(images(60), batch_size=2)])


@both
def test_batches_are_writable(loader_class, num_workers):
    loader = loader_class(images(12), batch_size=4, num_workers=num_workers)
    expected = reference(images(12), batch_size=4)
    for _ in range(2):
        for (image, array, number), wanted in zip(loader, expected, strict=True):
            assert_same([image, array, number], wanted)
            image.mul_(0).add_(5)
            array.numpy()[:] = -1
            number[0] = 99
            assert image.eq(5).all()
            assert array.eq(-1).all()
            assert number[0] == 99


@both
def test_writing_leaves_the_dataset_alone(loader_class, num_workers):
    table = torch.arange(12.0).reshape(6, 2)
    for batch in loader_class(table, batch_size=2, num_workers=num_workers):
        batch.zero_()
    assert torch.equal(table, torch.arange(12.0).reshape(6, 2))


@both
def test_batches_are_plain_tensors(loader_class, num_workers):
    for batch in loader_class(images(), batch_size=5, num_workers=num_workers):
        for tensor in batch:
            assert type(tensor) is torch.Tensor
            assert tensor.is_contiguous()
            assert tensor.is_leaf
            assert not tensor.requires_grad
            assert tensor.device.type == "cpu"


@both
def test_batches_take_part_in_autograd(loader_class, num_workers):
    weight = torch.ones(3 * 8 * 8, requires_grad=True)
    for image, _, _ in loader_class(images(4), batch_size=2, num_workers=num_workers):
        (image.flatten(1) @ weight).sum().backward()
        image.requires_grad_()
        image.sum().backward()
        assert image.grad.eq(1).all()
    assert weight.grad[0] == 6


@both
def test_batches_can_be_copied_pickled_and_saved(loader_class, num_workers):
    for kind in ("nested", "dict", "named_tuple"):
        expected = reference(Mapped(SAMPLES[kind], 4), batch_size=2)
        for batch, wanted in zip(
            loader_class(Mapped(SAMPLES[kind], 4), batch_size=2, num_workers=num_workers),
            expected,
            strict=True,
        ):
            assert_same(copy.deepcopy(batch), wanted)
            assert_same(pickle.loads(pickle.dumps(batch)), wanted)
            file = io.BytesIO()
            torch.save(batch, file)
            file.seek(0)
            assert_same(torch.load(file, weights_only=False), wanted)


@both
def test_a_saved_tensor_brings_nothing_along(loader_class, num_workers):
    """torch saves the whole storage behind a tensor, so a batch must not sit in a larger one."""
    for image, array, number in loader_class(images(), batch_size=4, num_workers=num_workers):
        for tensor in (image, array, number):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


@both
def test_batches_can_be_put_into_shared_memory(loader_class, num_workers):
    for batch in loader_class(images(8), batch_size=4, num_workers=num_workers):
        shared = [tensor.share_memory_() for tensor in batch]
        assert all(tensor.is_shared() for tensor in shared)
        assert shared[2].tolist() == batch[2].tolist()


def test_no_two_batches_share_memory(loader_class):
    for num_workers in (0, 2):
        batches = list(loader_class(Numbers(40), batch_size=4, num_workers=num_workers))
        for number, batch in enumerate(batches):
            batch.fill_(-number)
        assert_same(batches, [torch.full((4,), -number) for number in range(10)])


def test_no_two_samples_of_a_batch_share_memory(loader_class):
    """Rows are copies even when the dataset gives the same tensor each time."""
    same = torch.zeros(2)
    for num_workers in (0, 1):
        (batch,) = loader_class(Mapped(lambda i: same, 3), batch_size=3, num_workers=num_workers)
        batch[0] = 1
        assert_same(batch, torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
