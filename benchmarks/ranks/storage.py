"""Storage that sleeps before it gives a sample: the same seconds for the same sample, whoever reads it.

Samples are many, files are few: sample ``i`` is file ``i`` modulo the number of files. So a run is one epoch, however
many steps it has, and nobody gains or loses by what its loader does between epochs.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20250614
USUAL_S = 2e-3
"""The median of what a sample takes."""
SPREAD = 0.5
"""Of its logarithm."""
RARE, RARE_S = 0.01, (0.05, 0.2)
RARER, RARER_S = 0.001, 0.5
SLOW_CLASS, SLOW_S = 3, 0.04
"""The slow folder, and what each of its files takes."""
SCENARIOS = ("fast", "tails", "directory")


def delays(scenario: str, classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds that storage takes for each sample, of which the classes are given.

    ``fast``: none. ``tails``: about 2 ms, but one in a hundred 50 to 200 ms, and one in a thousand half a second.
    ``directory``: about 2 ms, but all files of one folder 40 ms. A number: so many seconds each.
    """
    count = len(classes)
    if scenario == "fast":
        return np.zeros(count)
    if scenario not in SCENARIOS:
        return np.full(count, float(scenario))
    usual, luck = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    found = USUAL_S * np.exp(SPREAD * usual.standard_normal(count))
    if scenario == "directory":
        return np.where(classes == SLOW_CLASS, SLOW_S, found)
    drawn = luck.random(count)
    rare = np.random.default_rng(SEED + 2).uniform(*RARE_S, count)
    found = np.where(drawn < RARER + RARE, rare, found)
    return np.where(drawn < RARER, RARER_S, found)


class Switch:
    """What changes in mid-run: how many times slower storage is, and which files are read. For all processes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_map": None}

    @classmethod
    def make(cls, path: Path) -> Switch:
        """A new one, for storage as it is."""
        path.write_bytes(bytes([1, 0]))
        return cls(str(path))

    def _open(self) -> mmap.mmap:
        if self._map is None:
            descriptor = os.open(self.path, os.O_RDWR)
            try:
                self._map = mmap.mmap(descriptor, 2)
            finally:
                os.close(descriptor)
        return self._map

    def set(self, slower: int, heavy: bool) -> None:
        """From now on."""
        self._open()[0:2] = bytes([slower, heavy])

    def now(self) -> tuple[int, bool]:
        """Times slower; whether the heavy files are read."""
        slower, heavy = self._open()[0:2]
        return slower, bool(heavy)


class Storage:
    """Samples in files, read with delays. May be pickled."""

    def __init__(
        self,
        root: Path,
        samples: int,
        scenario: str,
        heavy: Path | None = None,
        switch: str | None = None,
    ) -> None:
        """``heavy``: a folder like ``root``, from which is read when the ``switch`` says so."""
        self.paths, labels = find(root)
        self.heavy = self.paths if heavy is None else find(heavy)[0]
        if len(self.heavy) != len(self.paths):
            raise ValueError(f"{root} and {heavy} must have as many files")
        self.labels = np.resize(np.asarray(labels, np.int64), samples)
        self.delays = delays(scenario, self.labels)
        self._switch = None if switch is None else Switch(switch)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> bytes:
        """The bytes of a sample, in its time."""
        slower, heavy = (1, False) if self._switch is None else self._switch.now()
        pause = slower * float(self.delays[index])
        if pause:
            time.sleep(pause)
        path = (self.heavy if heavy else self.paths)[index % len(self.paths)]
        with open(path, "rb", buffering=0) as file:
            return file.read()


def find(root: Path) -> tuple[list[str], list[int]]:
    """Files and classes, in the order that a folder dataset gives them."""
    folders: Sequence[Path] = sorted(entry for entry in root.iterdir() if entry.is_dir())
    pairs = [
        (str(path), label) for label, folder in enumerate(folders) for path in sorted(folder.glob("*.jpg"))
    ]
    return [path for path, _ in pairs], [label for _, label in pairs]
