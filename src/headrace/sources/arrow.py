"""Datasets of Hugging Face: the encoded images of a column, read where they lie in its Arrow files.

Neither ``datasets`` nor ``pyarrow`` is imported here: whoever has such a dataset has both. Samples are read without
them, from the columns' own memory, so that workers that were forked need nothing of their threads.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.sources.local import MAX_BYTES, FileReader, read_files
from headrace.sources.location import Location
from headrace.sources.mapped import Maps, bring_in
from headrace.sources.source import as_targets
from headrace.sources.versions import versions

_OFFSETS = {"binary": np.int32, "string": np.int32, "large_binary": np.int64, "large_string": np.int64}
_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float", "double")


class Cells:
    """The cells of one chunk of a column of bytes or text."""

    def __init__(self, array: Any) -> None:
        _, offsets, data = array.buffers()
        dtype = np.dtype(_OFFSETS[str(array.type)])
        rows = slice(array.offset, array.offset + len(array) + 1)
        self.offsets = np.frombuffer(offsets, dtype)[rows] if len(array) else np.zeros(1, dtype)
        self._offsets = int(self.offsets.__array_interface__["data"][0])
        self.data = memoryview(b"" if data is None else data).cast("B")
        self.address = 0 if data is None else int(data.address)
        self.nulls = None
        if array.null_count:
            self.nulls = ~np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def span(self, at: int) -> tuple[int, int] | None:
        """From where to where a cell's bytes lie in the data; None if it has none."""
        if self.nulls is not None and self.nulls[at]:
            return None
        return int(self.offsets[at]), int(self.offsets[at + 1])

    def read(self, at: int) -> memoryview | OSError | None:
        """A cell's bytes where they lie, once they are in memory, or why they do not get there; None: it has none."""
        each = self.offsets.itemsize
        failed = bring_in(self._offsets + at * each, 2 * each)
        span = None if failed is not None else self.span(at)
        if span is None:
            return failed
        return bring_in(self.address + span[0], span[1] - span[0]) or self.data[span[0] : span[1]]


class ArrowSource:
    """See ``hf``."""

    encoded = True

    def __init__(self, dataset: Any, image: str, target: str | None) -> None:
        self._dataset, self._column, self._target = dataset, image, target
        self._open()
        self._check()
        features = dataset.features
        names = getattr(features[target], "names", None) if target is not None else None
        self.classes = None if names is None else list(names)

    def _open(self) -> None:
        table, indices = self._dataset.data, self._dataset._indices
        self._rows: NDArray[np.int64] | None = None
        if indices is not None:
            self._rows = np.asarray(indices.column(0).to_numpy(), np.int64)
        if len(self) != len(self._dataset):
            raise OptionError(
                f"hf(): the dataset says that it has {len(self._dataset)} samples, and its table has {len(self)}; "
                "write dataset.flatten_indices()"
            )
        self._bytes: list[Cells] = []
        self._paths: list[Cells | None] = []
        for chunk in table.column(self._column).chunks:
            data, paths = parts_of(chunk, self._column)
            self._bytes.append(Cells(data))
            self._paths.append(None if paths is None else Cells(paths))
        self._starts = np.cumsum([0, *map(len, self._bytes)])
        self.targets = targets_of(table, self._target, self._rows)

    def _check(self) -> None:
        """Which rows of its table a dataset has is no part of its public interface: it is asked for two of them."""
        ends = [0, len(self) - 1]
        cells = self._dataset.with_format("arrow")[ends].column(self._column).to_pylist()
        for (chunk, at), cell in zip(self._find(ends), cells, strict=True):
            found = self._bytes[chunk].read(at)
            wanted = cell["bytes"] if isinstance(cell, dict) else cell
            if not isinstance(found, OSError) and found != wanted:
                raise OptionError(
                    "hf(): this version of datasets keeps its rows in a way that is not known here"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_dataset", "_column", "_target", "classes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._dataset.data.num_rows) if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        return f"hf({len(self)} samples, image={self._column!r}, target={self._target!r})"

    @property
    def root(self) -> str:
        """What people call the data: the folder of its files, or its name."""
        found = [file["filename"] for file in self._dataset.cache_files]
        return (
            os.path.dirname(found[0])
            if found
            else str(getattr(self._dataset.info, "dataset_name", None) or "")
        )

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[Any]:
        """The bytes of each sample as they lie in memory, or the error that kept them from being read."""
        out: list[Any] = []
        for index, (chunk, at) in zip(indices, self._find(indices), strict=True):
            found = self._bytes[chunk].read(at)
            if isinstance(found, OSError):
                found.filename = f"{self._column}[{index}]"
            out += self._read_file(chunk, at) if found is None else [found]
        return out

    def _read_file(self, chunk: int, at: int) -> list[bytes | BaseException]:
        path = self._path(chunk, at)
        if path is None:
            return [ValueError(f"column {self._column!r} has neither bytes nor a path for it")]
        if b"://" in path:
            text = "no local file: have the dataset embed its images, or download them"
            return [OSError(errno.ENOENT, text, os.fsdecode(path))]
        return read_files([path], MAX_BYTES)

    def _path(self, chunk: int, at: int) -> bytes | None:
        cells = self._paths[chunk]
        found = None if cells is None else cells.read(at)
        return bytes(found) if isinstance(found, memoryview) and found else None

    def _find(self, indices: Sequence[int] | NDArray[Any]) -> Iterator[tuple[int, int]]:
        """The chunk of each sample, and the cell in it."""
        at = np.asarray(indices, np.int64)
        size = len(self)
        if at.size and not 0 <= int(at.min()) <= int(at.max()) < size:
            raise IndexError(f"sample indices must lie in 0..{size - 1}, got {at.min()}..{at.max()}")
        rows = at if self._rows is None else self._rows[at]
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        return zip(chunks.tolist(), (rows - self._starts[chunks]).tolist(), strict=True)

    def name(self, index: int) -> str:
        """The column, the sample's number, and its file's name if there is one."""
        path = self._path(*next(self._find([index])))
        return f"{self._column}[{index}]" + (f" ({os.fsdecode(path)})" if path else "")

    def locate(self, indices: Sequence[int] | NDArray[Any]) -> list[Location | None]:
        """See ``Locating``: the part of the dataset's file, or the file of its own. What is of no file has none."""
        maps = Maps()
        places = [maps.find(cells.address) for cells in self._bytes]
        out: list[Location | None] = []
        for chunk, at in self._find(indices):
            span, place = self._bytes[chunk].span(at), places[chunk]
            path = self._path(chunk, at) if span is None else None
            if path is not None and b"://" not in path:
                ((size, changed),) = versions([path]).tolist()
                out.append(Location(os.path.abspath(path), b"%x.%x" % (size, changed)))
            elif span is None or place is None:
                out.append(None)
            else:
                out.append(Location(place.path, place.version, place.offset + span[0], span[1] - span[0]))
        return out

    def location_reader(self) -> FileReader:
        """See ``Locating``."""
        return FileReader()

    def identity(self, index: int) -> str:
        """Stable over processes, orders and subsets."""
        return os.fsdecode(self.identity_bytes([index])[0])

    def identity_bytes(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """Which part of which file each sample is, or where its bytes are of no file, a digest of them.

        Where in the file, and not in the table: parts of a dataset are tables that begin in the middle of one.
        """
        maps = Maps()
        places = [maps.find(cells.address) for cells in self._bytes]
        out: list[bytes] = []
        loose: list[int] = []
        for chunk, at in self._find(indices):
            cells, place = self._bytes[chunk], places[chunk]
            span = cells.span(at)
            if span is None:
                loose.append(len(out))
                out.append(self._path(chunk, at) or b"")
            elif place is None:
                out.append(b"content\0" + hashlib.sha256(cells.data[span[0] : span[1]]).digest())
            else:
                part = place.offset + span[0], span[1] - span[0]
                out.append(b"%b\0%b\0%x+%x" % (place.path, place.version, *part))
        if loose:  # as those of ``files``, so that a file is one sample to both
            found = versions([out[row] for row in loose]).tolist()
            for row, version in zip(loose, found, strict=True):
                out[row] = b"%b\0%x.%x" % (os.path.abspath(out[row]) if out[row] else b"", *version)
        return out

    def listing(self) -> str:
        """A digest of how many samples there are, and in which files."""
        names = [file["filename"] for file in self._dataset.cache_files]
        text = repr((self._column, len(self), names, len(self._bytes)))
        return hashlib.sha256(b"arrow" + text.encode("utf-8", "surrogatepass")).hexdigest()

    def fingerprint(self) -> str:
        """A digest of which samples there are: of the parts of files that they lie in, else of their bytes."""
        maps = Maps()
        sha = hashlib.sha256(b"arrow samples")
        start = 0
        for cells in self._bytes:
            place = maps.find(cells.address)
            lengths = np.diff(cells.offsets).astype("<i8")
            sha.update(lengths.data)
            if place is None or cells.nulls is not None:
                rows = np.arange(start, start + len(cells))
                sha.update(b"\0".join(self._whole.identity_bytes(rows)))
            else:
                at = place.offset + int(cells.offsets[0])
                sha.update(b"%b\0%b\0%x" % (place.path, place.version, at))
            start += len(cells)
        if self._rows is not None:
            sha.update(b"of which")
            sha.update(self._rows.astype("<i8").data)
        return sha.hexdigest()

    @property
    def _whole(self) -> ArrowSource:
        """The same for all rows of the table."""
        if self._rows is None:
            return self
        whole = object.__new__(ArrowSource)
        whole.__dict__.update(self.__dict__)
        whole._rows = None
        return whole


class NumberedSource(ArrowSource):
    """The same, where a sample's target is its number: what else belongs to it is looked up by that."""

    def _open(self) -> None:
        super()._open()
        self.targets = np.arange(len(self))


def parts_of(chunk: Any, column: str) -> tuple[Any, Any]:
    """The bytes and the paths of a chunk of images; of plain bytes, there are no paths."""
    kind = str(chunk.type)
    if kind in ("binary", "large_binary"):
        return chunk, None
    fields = [field.name for field in chunk.type] if kind.startswith("struct<") else []
    if set(fields) == {"bytes", "path"}:
        parts = dict(zip(fields, chunk.flatten(), strict=True))
        if str(parts["path"].type) == "null":  # as where nothing has one
            parts["path"] = None
        if all(part is None or str(part.type) in _OFFSETS for part in parts.values()):
            return parts["bytes"], parts["path"]
    raise OptionError(f"image={column!r}: a column of {kind} is neither one of images nor of bytes")


def targets_of(table: Any, column: str | None, rows: NDArray[np.int64] | None) -> Any:
    """The targets in a column, of all rows or of some."""
    if column is None:
        return None
    found = table.column(column)
    plain = found.null_count == 0 and str(found.type) in _NUMBERS
    values: Any = np.array(found.to_numpy()) if plain else found.to_pylist()  # a copy: the file may change
    if rows is not None:
        values = values[rows] if plain else [values[row] for row in rows.tolist()]
    return as_targets(values, len(values))


def hf(dataset: Any, image: str = "image", target: str | None = "label") -> ArrowSource:
    """A source of the images in a ``datasets.Dataset`` of Hugging Face, read where they lie in its Arrow files.

    ``image``: the column of encoded images (a feature ``Image()``, or bytes); ``target``: the column of targets, or
    None for samples without. Subsets, shuffled and concatenated datasets are as good as whole ones.
    """
    kinds = {(cls.__module__, cls.__name__) for cls in type(dataset).__mro__}
    if ("datasets.arrow_dataset", "Dataset") not in kinds:
        what = "; choose one of its splits, as in dataset['train']" if isinstance(dataset, dict) else ""
        raise OptionError(f"hf() takes a datasets.Dataset, got a {type(dataset).__name__}{what}")
    for option, column in (("image", image), ("target", target)):
        if column is not None and column not in dataset.column_names:
            raise OptionError(
                f"hf({option}={column!r}): the dataset has the columns {', '.join(dataset.column_names)}"
                + ("; target=None for none of them" if option == "target" else "")
            )
    if dataset.format["type"] == "custom":
        raise OptionError(
            "hf(): the dataset has a transform, which would not be run: give dataset.with_format(None), and write "
            "what the transform does as steps of the recipe"
        )
    if not len(dataset):
        raise OptionError("hf(): the dataset is empty")
    return ArrowSource(dataset, image, target)
