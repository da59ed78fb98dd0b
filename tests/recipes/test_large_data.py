"""Data that a step uses: read whole where it is small, known by its file where it is mapped, refused where it is
large."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.recipes import Recipe, deterministic
from headrace.recipes.fingerprint import LIMIT, digest
from tests.recipes.helpers import MemorySource


def using(data: Any) -> Any:
    """A step that uses some data."""
    return lambda value: value + data[0]


def large(size: int = LIMIT + 1) -> np.ndarray[Any, Any]:
    """More than is read, of which no page was ever touched."""
    return np.zeros(size, np.uint8)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(large, id="array"),
        pytest.param(lambda: large(2 * LIMIT + 2)[::2], id="strided array"),
        pytest.param(lambda: [large(LIMIT // 2 + 1), large(LIMIT // 2 + 1)], id="two arrays"),
        pytest.param(lambda: torch.zeros(LIMIT + 1, dtype=torch.uint8), id="tensor"),
        pytest.param(lambda: torch.zeros(1).expand(LIMIT), id="expanded tensor"),
        pytest.param(lambda: bytes(LIMIT + 1), id="bytes"),
        pytest.param(lambda: [0] * 1_100_000, id="list"),
        pytest.param(lambda: {(bytes(LIMIT // 2 + 1), 1), (bytes(LIMIT // 2 + 1), 2)}, id="set"),
    ],
)
def test_more_than_the_limit_is_not_read(data: Any) -> None:
    with pytest.raises(OptionError, match=r"256.0 MiB is the limit.*__headrace_fingerprint__"):
        digest(using(data()))


def test_earlier_forms_have_their_keys_all_the_same() -> None:
    source = MemorySource([b"a"])
    late = Recipe(source, None, [deterministic(len), using(large())])
    assert late.share_key(Form.DECODED) == Recipe(source, None, [deterministic(len)]).share_key(Form.DECODED)
    with pytest.raises(OptionError, match="too much data"):
        late.share_key(Form.AUGMENTED)
    early = Recipe(source, None, [deterministic(using(large()))])
    assert early.share_key(Form.ENCODED) == late.share_key(Form.ENCODED)
    with pytest.raises(OptionError, match="too much data"):
        early.share_key(Form.DECODED)


def test_targets_have_no_limit() -> None:
    source = MemorySource([b"a"], large())
    other = MemorySource([b"a"], large())
    other.targets[-1] = 1
    assert Recipe(source).fingerprint(Form.AUGMENTED) != Recipe(other).fingerprint(Form.AUGMENTED)


def test_a_mapped_file_counts_by_its_name_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "features.npy"
    np.save(file, np.arange(20.0))

    def key(part: Any = slice(None)) -> str:
        return digest(using(np.load(file, mmap_mode="r")[part]))

    first = key()
    assert key() == first
    assert key(slice(1, None)) != first
    assert key(slice(0, 10)) != key(slice(10, 20)) != key(slice(0, 20, 2))
    os.utime(file, ns=(1, 1))
    assert key() != first
    assert digest(using(np.asarray(np.load(file, mmap_mode="r")))) != digest(using(np.load(file)))


def test_a_mapped_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    mapped = np.memmap(file, np.uint8, "r")
    assert digest(using(mapped)) == digest(using(np.memmap(file, np.uint8, "r")))
    assert digest(using(mapped[1 << 39 :])) != digest(using(mapped))


def test_what_is_written_to_a_mapping_counts(tmp_path: Path) -> None:
    """A private copy of a file's pages may be anything by now, and so may those of a file that others write to."""
    file = tmp_path / "features.npy"
    np.save(file, np.arange(20.0))
    mapped = np.load(file, mmap_mode="c")
    before = digest(using(mapped))
    mapped[3] = 0.0
    assert digest(using(mapped)) != before
