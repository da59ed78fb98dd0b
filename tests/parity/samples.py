"""One function per kind of sample that the default collation understands, and per kind it refuses."""

import collections
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.parity.datasets import Pair, Tagged, TaggedList


class Colour(enum.IntEnum):
    """An integer that is more than an integer."""

    RED = 0
    GREEN = 1


def _tagged(index: int) -> Tagged:
    sample = Tagged(image=torch.full((2,), float(index)), label=index)
    sample.tag = f"sample {index}"
    return sample


def _tagged_list(index: int) -> TaggedList:
    sample = TaggedList([index, float(index)])
    sample.tag = f"sample {index}"
    return sample


def _read_only(index: int) -> np.ndarray:
    made = np.full((2,), index, np.int16)
    made.flags.writeable = False
    return made


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": lambda i: torch.full((2, 3), float(i)),
    "tensor_0d": lambda i: torch.tensor(i),
    "tensor_empty": lambda i: torch.empty(0, 3),
    "tensor_transposed": lambda i: (torch.arange(6).reshape(2, 3) + i).t(),
    "tensor_sliced": lambda i: (torch.arange(12) + i)[::3],
    "tensor_expanded": lambda i: torch.tensor([float(i)]).expand(3, 2),
    "tensor_channels_last": lambda i: (torch.arange(24.0).reshape(1, 2, 3, 4) + i).to(
        memory_format=torch.channels_last
    )[0],
    "tensor_nan": lambda i: torch.tensor([float("nan"), float("inf"), -0.0, i]),
    "ndarray": lambda i: np.full((3, 2), i, np.float32),
    "ndarray_0d": lambda i: np.array(i),
    "ndarray_empty": lambda i: np.empty((0, 4), np.uint8),
    "ndarray_fortran": lambda i: np.asfortranarray(np.arange(6).reshape(2, 3) + i),
    "ndarray_sliced": lambda i: (np.arange(12) + i)[::4],
    "ndarray_read_only": _read_only,
    "numpy_float32": lambda i: np.float32(i) / 3,
    "numpy_float64": lambda i: np.float64(i) / 3,
    "numpy_int8": lambda i: np.int8(i),
    "numpy_bool": lambda i: np.bool_(i % 2),
    "int": lambda i: i,
    "int_large": lambda i: 2**62 + i,
    "int_negative": lambda i: -i - 2**40,
    "float": lambda i: i / 3,
    "float_nan": lambda i: float("nan") if i % 2 else float("-inf"),
    "bool": lambda i: i % 2 == 0,
    "int_enum": lambda i: Colour(i % 2),
    "str": lambda i: f"sample {i}",
    "str_unicode": lambda i: "ένα δύο \U0001f41f\x00" * i,
    "bytes": lambda i: bytes([i % 256]) * i,
    "numpy_str": lambda i: np.str_(f"n{i}"),
    "tuple": lambda i: (torch.full((2,), i), i),
    "tuple_of_str": lambda i: (f"a{i}", b"b%d" % i, i),
    "tuple_empty": lambda i: (),
    "tuple_single": lambda i: (i,),
    "list": lambda i: [np.full((2,), i), f"text {i}"],
    "list_of_lists": lambda i: [[i, i + 1], [float(i)]],
    "named_tuple": lambda i: Pair(i, torch.tensor([i])),
    "dict": lambda i: {"image": torch.full((1, 2), float(i)), "label": i, "path": f"/data/{i}.jpg"},
    "dict_empty": lambda i: {},
    "dict_odd_keys": lambda i: {i % 1: i, ("a", 1): i, None: f"{i}"},
    "dict_key_order": lambda i: {"b": i, "a": i} if i % 2 == 0 else {"a": i, "b": i},
    "dict_ordered": lambda i: collections.OrderedDict(z=i, a=float(i)),
    "dict_default": lambda i: collections.defaultdict(list, x=i, y=f"{i}"),
    "dict_user": lambda i: collections.UserDict(input_ids=torch.arange(3) + i, mask=np.ones(3, bool)),
    "dict_subclass": _tagged,
    "list_subclass": _tagged_list,
    "list_user": lambda i: collections.UserList([i, i + 1]),
    "deque": lambda i: collections.deque([i, f"{i}"]),
    "range": lambda i: range(i, i + 3),
    "nested": lambda i: {
        "views": [torch.full((2,), float(i)), torch.full((2,), -float(i))],
        "target": {"boxes": np.arange(4) + i, "pair": Pair((i, f"{i}"), {"deep": [i, (i / 2, b"x")]})},
        "id": (i, (i, (i, Pair([i], {})))),
    },
}

# A sample, the type of the error that collating two of them raises, and what its message says.
REFUSED: dict[str, tuple[Callable[[int], Any], type[Exception], str]] = {
    "none": (lambda i: None, TypeError, "default_collate: batch must contain tensors, numpy arrays, numbers"),
    "none_inside": (lambda i: {"a": (i, None)}, TypeError, "found <class 'NoneType'>"),
    "object": (lambda i: {i}, TypeError, "found <class 'set'>"),
    "complex": (lambda i: complex(i), TypeError, "found <class 'complex'>"),
    "object_array": (lambda i: np.array([None, i], object), TypeError, "found object"),
    "string_array": (lambda i: np.array(["a", "bc"]), TypeError, "found <U2"),
    "ragged_tensors": (
        lambda i: torch.zeros(i + 1),
        RuntimeError,
        "stack expects each tensor to be equal size",
    ),
    "ragged_arrays": (
        lambda i: np.zeros((2, i + 1)),
        RuntimeError,
        "stack expects each tensor to be equal size",
    ),
    "ragged_lists": (
        lambda i: [0] * (i + 1),
        RuntimeError,
        "each element in list of batch should be of equal",
    ),
    "ragged_tuples": (
        lambda i: (0,) * (i + 1),
        RuntimeError,
        "each element in list of batch should be of equal",
    ),
    "missing_key": (lambda i: {"a": i} if i else {"a": i, "b": i}, KeyError, "b"),
    "first_number_then_text": (lambda i: f"{i}" if i else 0, TypeError, "str"),
    "huge_int": (lambda i: 2**70, ValueError, "Overflow"),
    "sparse": (
        lambda i: torch.eye(3).to_sparse(),
        RuntimeError,
        "Batches of sparse tensors are not currently",
    ),
    "sparse_csr": (lambda i: torch.eye(3).to_sparse_csr(), RuntimeError, "Batches of sparse tensors are not"),
    "negative_stride": (lambda i: np.arange(4)[::-1], ValueError, "stride"),
}
