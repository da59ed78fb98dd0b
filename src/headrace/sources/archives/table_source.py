"""Samples that are cells of Arrow files, mapped into memory. Only who opens them needs ``pyarrow``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.sources.archives.convert import local_tables
from headrace.sources.archives.patterns import above
from headrace.sources.arrow import ArrowSource, Cells, parts_of, targets_of
from headrace.sources.source import as_targets
from headrace.sources.storage import Entry, Storage


class TableSource(ArrowSource):
    """See ``table``."""

    def __init__(
        self,
        storage: Storage,
        entries: Sequence[Entry],
        image: str,
        target: str | None,
        paths: Sequence[str],
    ) -> None:
        """``paths``: as they were given, for whoever writes down how it is made."""
        self._storage, self._entries, self._given = storage, list(entries), list(paths)
        self._column, self._target = image, target
        self._open()

    def _open(self) -> None:
        columns = [self._column] if self._target is None else [self._column, self._target]
        self._rows: NDArray[np.int64] | None = None
        self._bytes: list[Cells] = []
        self._paths: list[Cells | None] = []
        targets: list[Any] = []
        self.classes: list[str] | None = None
        for table in local_tables(self._storage, self._entries, columns):
            for chunk in table.column(self._column).chunks:
                data, paths = parts_of(chunk, self._column)
                self._bytes.append(Cells(data))
                self._paths.append(None if paths is None else Cells(paths))
            targets.append(targets_of(table, self._target, None))
            self.classes = self.classes or class_names(table.schema.metadata, self._target)
        self._starts = np.cumsum([0, *map(len, self._bytes)])
        if not len(self):
            raise OptionError("table(): the files have no rows")
        self.targets = None if self._target is None else as_targets(_joined(targets), len(self))

    def __getstate__(self) -> dict[str, Any]:
        names = ("_storage", "_entries", "_given", "_column", "_target")
        return {name: getattr(self, name) for name in names}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"table({self.root!r}: {len(self)} samples, image={self._column!r}, target={self._target!r})"

    @property
    def root(self) -> str:
        """What people call the data: the folder of its files."""
        return above(self._entries)

    def definition(self) -> tuple[str, dict[str, Any]]:
        """The function that makes it, and its arguments as plain data."""
        return "table", {"paths": self._given, "image": self._column, "target": self._target}

    def listing(self) -> str:
        """A digest of how many samples there are, and in which files."""
        text = repr(("table", self._column, len(self), [os.fsdecode(one.what) for one in self._entries]))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _joined(parts: list[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in (part.tolist() if isinstance(part, np.ndarray) else part)]


def class_names(metadata: Any, column: str | None) -> list[str] | None:
    """The names of the classes in a column, where Hugging Face has noted them in the file."""
    try:
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
        return [str(name) for name in names] if names else None
    except (TypeError, KeyError, ValueError):
        return None
