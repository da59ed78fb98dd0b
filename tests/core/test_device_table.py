"""Tables of images in the memory of devices: what a word says, and that nobody can take a table away."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.device_table import (
    CHUNKS,
    LONGEST,
    UNIT,
    DeviceTable,
    check_table,
    make_table,
    next_chunk,
    read_words,
    word_of,
)
from headrace.core.errors import ProtocolError


@given(
    st.lists(
        st.tuples(
            st.integers(1, CHUNKS - 1),
            st.integers(0, (1 << 20) - 1),
            st.integers(1, LONGEST),
            st.integers(1, LONGEST),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_words_say_where_an_image_lies(images: list[tuple[int, int, int, int]]) -> None:
    words = np.array([word_of(chunk, unit * UNIT, high, wide) for chunk, unit, high, wide in images])
    assert words.dtype == np.int64 and (words != 0).all()
    chunks, offsets, sides = read_words(words)
    found = zip(chunks.tolist(), (offsets // UNIT).tolist(), *sides.T.tolist(), strict=True)
    assert list(found) == images


def test_numbers_are_given_once_whoever_asks() -> None:
    fd = make_table(3)
    table, other = DeviceTable(fd, 3), DeviceTable(fd, 3)
    assert [next_chunk(fd) for _ in range(3)] == [1, 2, 3]
    table.use(2, 4096)
    table.words[1] = 7
    assert other.used(2) == 4096 and other.used(1) == 0 and other.words.tolist() == [0, 7, 0]
    os.pwrite(fd, (CHUNKS - 2).to_bytes(8, "little"), 0)
    assert [next_chunk(fd), next_chunk(fd)] == [CHUNKS - 1, None]
    os.close(fd)


def test_what_is_no_table() -> None:
    fd = make_table(3)
    check_table(fd, 3)
    with pytest.raises(ProtocolError):
        check_table(fd, 4)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 8)
    os.close(fd)
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.ftruncate(plain, 8 * (CHUNKS + 3))
    with pytest.raises(ProtocolError):
        DeviceTable(plain, 3)
    os.close(plain)
    read, write = os.pipe()
    with pytest.raises(ProtocolError):
        check_table(read, 3)
    os.close(read)
    os.close(write)
