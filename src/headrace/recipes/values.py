"""Values between steps: images of other libraries, and how any value is taken apart into arrays and back.

torch and PIL are never imported for their own sake: a tensor is known by its type's module, and PIL is
needed only by those who already use it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.layout import BFLOAT16
from headrace.recipes.origins import module_of

_TAGS = ("PIL", "torch", "bytes", "numpy")
_PIL_ARRAYS: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
    "RGB": (np.dtype(np.uint8), (3,)),
    "RGBA": (np.dtype(np.uint8), (4,)),
    "L": (np.dtype(np.uint8), ()),
    "I": (np.dtype(np.int32), ()),
    "F": (np.dtype(np.float32), ()),
}
"""By the mode of an image, the dtype of its array and what comes after height and width."""
_TENSORS = frozenset(map(np.dtype, ("?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D")))
"""Of dtypes, those that tensors have."""


class Unpackable(TypeError):
    """A value that cannot be stored as arrays."""


def is_tensor(value: Any) -> bool:
    """Whether the value is a torch tensor (or a subclass, as torchvision's are)."""
    return any(
        module_of(cls).partition(".")[0] == "torch" and cls.__name__ == "Tensor"
        for cls in type(value).__mro__
    )


def is_pil(value: Any) -> bool:
    """Whether the value is a PIL image."""
    return any(cls.__module__ == "PIL.Image" and cls.__name__ == "Image" for cls in type(value).__mro__)


def tensor_array(value: Any) -> tuple[NDArray[Any], str]:
    """A tensor's numbers as they lie in memory, and its dtype's name (bfloat16 lies as uint16)."""
    plain = value.detach().cpu()
    if str(plain.dtype) == "torch.bfloat16":
        return plain.view(sys.modules["torch"].int16).numpy().view(np.uint16), BFLOAT16
    array = plain.resolve_conj().resolve_neg().numpy()
    return array, str(array.dtype)


def to_tensor(array: NDArray[Any]) -> Any:
    """A torch tensor of the array; torch is loaded already wherever a tensor has come from."""
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def pil_array(value: Any) -> NDArray[Any]:
    """A PIL image as height by width, or height by width by channels."""
    return np.asarray(value)


def to_pil(array: NDArray[Any], mode: str | None = None) -> Any:
    """A PIL image of a uint8 array: height by width by channels, or without the last."""
    from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    image = Image.fromarray(array)
    return image if mode is None or image.mode == mode else image.convert(mode)


def as_image(value: Any) -> NDArray[np.uint8]:
    """The value as a C-contiguous uint8 array of height, width, channels, for steps that work on images."""
    if is_pil(value):
        value = pil_array(value if value.mode in ("RGB", "L") else value.convert("RGB"))
    elif is_tensor(value):
        value = tensor_array(value)[0]
        value = value.transpose(1, 2, 0) if value.ndim == 3 else value
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        if value.ndim == 2:
            value = value[..., None]
        if value.ndim == 3 and value.shape[2] in (1, 3) and value.size:
            return np.ascontiguousarray(value)
    what = (
        f"an array of {value.dtype}{list(value.shape)}"
        if isinstance(value, np.ndarray)
        else repr(type(value))
    )
    raise ValueError(
        f"an image step got {what}; the step before it must return uint8 pixels of height x width x channels, "
        "1 or 3 of the latter"
    )


def leaf_array(value: Any) -> tuple[NDArray[Any], str] | None:
    """A leaf of a sample as an array and the name of its dtype; None for what only a collate can handle."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return (array, str(array.dtype)) if array.dtype.kind in "biufc" else None
    if isinstance(value, bool | int | float):
        array = np.asarray(value)
        return (array, str(array.dtype)) if array.dtype.kind in "bif" else None
    if is_tensor(value):
        return tensor_array(value)
    if is_pil(value):
        array = pil_array(value)
        return array, str(array.dtype)
    return None


def pack(value: Any) -> Any:
    """The value as arrays and plain values, nested in str-keyed dicts, lists and tuples; see ``unpack``.

    A leaf of another type becomes a dict of one entry whose key says what it was. So a decoded form can be
    cached, shared and read back without pickle. Arrays inside are copies: user code may still change its own.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise Unpackable(f"an array of {value.dtype} cannot be cached")
        return value.copy()
    if isinstance(value, np.generic):
        return {"numpy": pack(np.asarray(value))}
    if is_pil(value):
        if value.mode not in _PIL_ARRAYS:
            raise Unpackable(f"a PIL image of mode {value.mode} cannot be cached")
        return {f"PIL:{value.mode}": pil_array(value).copy()}
    if is_tensor(value):
        array, dtype = tensor_array(value)
        return {"torch:bfloat16" if dtype == BFLOAT16 else "torch": array.copy()}
    if isinstance(value, bytes):
        return {"bytes": np.frombuffer(value, np.uint8)}
    if value is None or type(value) in (bool, float, str):
        return value
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if type(value) is dict:
        if not all(isinstance(name, str) and name.partition(":")[0] not in _TAGS for name in value):
            raise Unpackable("a dict can be cached if its keys are strings, and not names of types")
        return {name: pack(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(item) for item in value)
    raise Unpackable(f"{type(value).__name__} cannot be cached")


def is_packed(value: Any) -> bool:
    """Whether ``pack`` can have given this."""
    if isinstance(value, Mapping):
        if len(value) == 1:
            ((name, item),) = value.items()
            tag, _, detail = name.partition(":")
            if tag in _TAGS:
                return isinstance(item, np.ndarray) and _may_be_tagged(tag, detail, item)
        return all(map(is_packed, value.values()))
    return not isinstance(value, list | tuple) or all(map(is_packed, value))


def _may_be_tagged(tag: str, detail: str, item: NDArray[Any]) -> bool:
    if tag == "PIL":
        form = _PIL_ARRAYS.get(detail)
        return form is not None and (item.dtype, item.shape[2:]) == form and item.ndim >= 2 and item.size > 0
    if tag == "bytes":
        return not detail and item.dtype == np.uint8 and item.ndim == 1
    if tag == "numpy":
        return not detail and item.ndim == 0
    return item.dtype in _TENSORS and (not detail or (detail == BFLOAT16 and item.dtype == np.uint16))


def unpack(value: Any) -> Any:
    """What ``pack`` was given. Nothing in it is shared with the cache, so user code may change it."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        if len(value) == 1:
            ((name, item),) = value.items()
            tag, _, detail = name.partition(":")
            if tag in _TAGS:
                return _untagged(tag, detail, item)
        return {name: unpack(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(unpack(item) for item in value)
    return value


def _untagged(tag: str, detail: str, item: NDArray[Any]) -> Any:
    if tag == "PIL":
        return to_pil(item.copy(), detail)
    if tag == "bytes":
        return item.tobytes()
    if tag == "numpy":
        return item[()]
    tensor = to_tensor(item.copy().view(np.int16) if detail else item.copy())
    return tensor.view(sys.modules["torch"].bfloat16) if detail else tensor
