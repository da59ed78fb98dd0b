"""What default collation and default conversion make of every kind of sample."""

import numpy as np
import pytest
import torch

from tests.parity.datasets import Mapped
from tests.parity.equality import assert_matches_reference, assert_same, error_from, reference
from tests.parity.samples import REFUSED, SAMPLES

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
]

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
ARRAY_DTYPES = ["?", "u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("kind", SAMPLES)
def test_collated_in_this_process(loader_class, kind):
    assert_matches_reference(loader_class, Mapped(SAMPLES[kind], 7), batch_size=3)


@pytest.mark.parametrize("kind", SAMPLES)
def test_converted_in_this_process(loader_class, kind):
    assert_matches_reference(loader_class, Mapped(SAMPLES[kind], 5), batch_size=None)


@pytest.mark.parametrize("kind", SAMPLES)
def test_collated_in_workers(loader_class, kind):
    assert_matches_reference(loader_class, Mapped(SAMPLES[kind], 7), batch_size=3, num_workers=1)


# Conversion in workers is one code path for all samples, so a few kinds stand for the others.
@pytest.mark.parametrize(
    "kind",
    [
        "tensor_transposed",
        "tensor_0d",
        "ndarray",
        "numpy_float32",
        "int",
        "str",
        "tuple",
        "dict_user",
        "nested",
    ],
)
def test_converted_in_workers(loader_class, kind):
    assert_matches_reference(loader_class, Mapped(SAMPLES[kind], 5), batch_size=None, num_workers=1)


@pytest.mark.parametrize("batch_size", [4, None])
def test_every_tensor_dtype_is_kept(loader_class, batch_size):
    dataset = Mapped(lambda i: [torch.tensor([i, 1, 0]).to(dtype) for dtype in DTYPES], 9)
    assert_matches_reference(loader_class, dataset, batch_size=batch_size)
    assert_matches_reference(loader_class, dataset, batch_size=batch_size, num_workers=1)


@pytest.mark.parametrize("batch_size", [4, None])
def test_every_array_dtype_is_kept(loader_class, batch_size):
    dataset = Mapped(lambda i: {dtype: np.array([i, 1, 0]).astype(dtype) for dtype in ARRAY_DTYPES}, 9)
    assert_matches_reference(loader_class, dataset, batch_size=batch_size)
    assert_matches_reference(loader_class, dataset, batch_size=batch_size, num_workers=1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_python_numbers_become_the_widest_dtypes(loader_class, num_workers):
    dataset = Mapped(lambda i: (i, i / 2, i > 1, np.float32(i)), 4)
    (batch,) = loader_class(dataset, batch_size=4, num_workers=num_workers)
    assert [column.dtype for column in batch] == [torch.int64, torch.float64, torch.bool, torch.float32]
    assert [column.tolist() for column in batch] == [
        [0, 1, 2, 3],
        [0.0, 0.5, 1.0, 1.5],
        [False, False, True, True],
        [0.0, 1.0, 2.0, 3.0],
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_huge_texts_and_arrays_arrive_whole(loader_class, num_workers):
    dataset = Mapped(
        lambda i: ("ä" * (4 << 20) + str(i), bytes([i]) * (4 << 20), torch.full((1 << 20,), i)), 3
    )
    batches = list(loader_class(dataset, batch_size=2, num_workers=num_workers))
    assert_same(batches, reference(dataset, batch_size=2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sizes_may_differ_from_batch_to_batch(loader_class, num_workers):
    dataset = Mapped(lambda i: (torch.full((i // 2 * 50,), float(i)), "x" * i), 10)
    assert_matches_reference(loader_class, dataset, batch_size=2, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_structure_may_differ_from_batch_to_batch(loader_class, num_workers):
    kinds = ["tensor", "dict", "named_tuple", "str", "int", "nested"]
    dataset = Mapped(lambda i: SAMPLES[kinds[i // 2]](i), 2 * len(kinds))
    assert_matches_reference(loader_class, dataset, batch_size=2, num_workers=num_workers)


def test_dtype_may_differ_inside_a_batch_of_arrays(loader_class):
    dataset = Mapped(lambda i: np.full((2,), i, np.float64 if i % 2 else np.float32), 4)
    assert_matches_reference(loader_class, dataset, batch_size=2)


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_in_this_process(loader_class, kind):
    sample, error, text = REFUSED[kind]
    caught = error_from(lambda: list(loader_class(Mapped(sample, 2), batch_size=2)))
    assert type(caught) is error
    assert text in str(caught)


@pytest.mark.parametrize("kind", ["none", "ragged_tensors", "missing_key", "sparse", "negative_stride"])
def test_refused_in_workers(loader_class, kind):
    sample, error, text = REFUSED[kind]
    caught = error_from(lambda: list(loader_class(Mapped(sample, 2), batch_size=2, num_workers=1)))
    assert type(caught) is error
    assert text in str(caught)
    assert "collate" in str(caught), "the text names the function that failed"


def test_what_is_refused_in_a_batch_is_left_alone_without_batches(loader_class):
    for kind in ("none", "none_inside", "object", "complex", "object_array", "string_array", "sparse"):
        assert_matches_reference(loader_class, Mapped(REFUSED[kind][0], 3), batch_size=None)
