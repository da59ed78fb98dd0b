"""A table of paths that stays compact at a million entries."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PathTable:
    """Paths below one root, as a single block of bytes and an array of offsets.

    A list of strings would take over a hundred bytes per path, and every look at one would write its
    reference count, which copies the page in each forked worker. Here only the two blocks are ever touched.
    """

    __slots__ = ("_blob", "_offsets", "_prefix", "root")

    def __init__(self, root: str, relative: Iterable[bytes]) -> None:
        parts = list(relative)
        self.root = root
        self._prefix = os.path.join(os.fsencode(root), b"")
        self._blob = b"".join(parts)
        self._offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=self._offsets[1:])

    @classmethod
    def of(cls, paths: Sequence[str | os.PathLike[str]]) -> PathTable:
        """The table of ``paths``, made absolute; what all of them start with is stored once."""
        here = os.path.join(os.fsencode(os.getcwd()), b"")
        full = [os.fsencode(path) for path in paths]
        full = [path if path.startswith(b"/") else here + path for path in full]
        if any(b"/." in path or b"//" in path for path in full):
            full = [os.path.abspath(path) for path in full]
        root = os.path.commonpath({os.path.dirname(min(full)), os.path.dirname(max(full))})
        cut = len(os.path.join(root, b""))
        return cls(os.fsdecode(root), (path[cut:] for path in full))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Memory that the table takes."""
        return len(self._blob) + self._offsets.nbytes

    def many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The full path of each index, as the bytes that the operating system takes."""
        at = np.asarray(indices, np.int64)
        size = len(self)
        if at.size and (int(at.min()) < 0 or int(at.max()) >= size):
            raise IndexError(
                f"sample indices must lie in 0..{size - 1}, got {int(at.min())}..{int(at.max())}"
            )
        prefix, blob = self._prefix, self._blob
        starts, stops = self._offsets[at].tolist(), self._offsets[at + 1].tolist()
        return [prefix + blob[a:b] for a, b in zip(starts, stops, strict=True)]

    def relative(self) -> list[str]:
        """All paths, from the root."""
        ends = self._offsets.tolist()
        return [os.fsdecode(self._blob[start:stop]) for start, stop in itertools.pairwise(ends)]

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self.many([index])[0])

    def digest(self) -> str:
        """A digest of all paths and their order, wherever the common root was cut off."""
        sha = hashlib.sha256(b"paths")
        # Cut at fixed sizes only to bound memory: what is hashed is length, path, length, path, ...
        lengths = (np.diff(self._offsets) + len(self._prefix)).astype("<u4")
        sha.update(lengths.tobytes())
        step = 65536
        for start in range(0, len(self), step):
            sha.update(self._joined(start, min(start + step, len(self))).data)
        return sha.hexdigest()

    def _joined(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The full paths of a range, one after the other. As single strings, a million of them take half a second."""
        prefix = np.frombuffer(self._prefix, np.uint8)
        offsets = self._offsets[start : stop + 1]
        begins = offsets[:-1] - offsets[0] + np.arange(stop - start) * len(prefix)
        out = np.empty(int(offsets[-1] - offsets[0]) + (stop - start) * len(prefix), np.uint8)
        own = np.ones(len(out), np.bool_)
        places = (begins[:, None] + np.arange(len(prefix))).ravel()
        own[places] = False
        out[places] = np.tile(prefix, stop - start)
        out[own] = np.frombuffer(self._blob, np.uint8)[offsets[0] : offsets[-1]]
        return out
