"""Copying into pinned memory, as far as it needs no accelerator."""

import numpy as np
import pytest

from headrace.loader.pinning import copy_bytes


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1000, 65537])
def test_every_byte_is_copied(size, threads):
    source = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    target = np.zeros(size + 1, np.uint8)
    copy_bytes(source, target[:size], threads)
    assert np.array_equal(target[:size], source) and target[-1] == 0
