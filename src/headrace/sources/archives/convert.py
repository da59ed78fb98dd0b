"""Columns of Parquet and Arrow files as tables in mapped memory: where they lie, or from a copy that is made once.

A Parquet file is compressed piece by piece, thousands of rows in each, so that a single image costs as much as all of
them. Copies lie below ``$XDG_CACHE_HOME/headrace/tables``, can be deleted at any time, and are written as a whole or
not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.core import environment
from headrace.core.bar import Bar
from headrace.core.errors import OptionError
from headrace.core.files import PARTIAL
from headrace.core.sizes import show_size
from headrace.sources.archives.alone import alone
from headrace.sources.archives.patterns import public
from headrace.sources.archives.windows import Windows
from headrace.sources.mapped import Maps
from headrace.sources.storage import Entry, Storage, is_url

_ROWS = 256
"""Rows that are held in memory at a time."""
_SPARE = 1.05
"""What has to be free on the disk, over what is written."""
_SOON = 1.0


def local_tables(storage: Storage, entries: Sequence[Entry], columns: list[str]) -> Iterator[Any]:
    """The columns of each file, as an Arrow table in mapped memory."""
    begun = time.monotonic()
    with Bar("converting tables", every=0.2) as bar:
        for number, entry in enumerate(entries):

            def told(share: float, number: int = number) -> None:
                if time.monotonic() - begun > _SOON:
                    bar(f"{number + 1} of {len(entries)}", (number + share) / len(entries))

            yield _local(storage, entry, columns, told)


def _local(storage: Storage, entry: Entry, columns: list[str], told: Any) -> Any:
    if not _is_parquet(entry) and not is_url(entry.what):
        found = _mapped(entry.what, entry)
        if found is not None:
            return _chosen(found, columns, entry)
    copy = _place(entry, columns)
    if not os.path.exists(copy):
        with alone(copy + b".lock"):
            if not os.path.exists(copy):
                _convert(storage, entry, columns, copy, told)
    found = _mapped(copy, entry)
    assert found is not None
    return found


def _is_parquet(entry: Entry) -> bool:
    return public(os.fsdecode(entry.what)).lower().endswith(".parquet")


def _place(entry: Entry, columns: list[str]) -> bytes:
    """Where the copy lies: by the file, its version and the columns."""
    name = "-".join(
        hashlib.blake2b(part, digest_size=16).hexdigest()
        for part in (entry.what + repr(columns).encode("utf-8", "surrogatepass"), entry.version)
    )
    return os.fsencode(os.path.join(environment.cache_home(), "headrace", "tables", f"{name}.arrow"))


def _mapped(path: bytes, entry: Entry) -> Any:
    """The table of an Arrow file where it lies; None for one whose columns do not lie there as they are read."""
    import pyarrow as pa

    shown = public(os.fsdecode(entry.what))
    try:
        with pa.memory_map(os.fsdecode(path)) as file:
            begin = file.read(6)
            file.seek(0)
            reader = pa.ipc.open_file(file) if begin == b"ARROW1" else pa.ipc.open_stream(file)
            table = reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise OptionError(f"table({shown!r}) cannot be read: {error}") from None
    buffers = [one for column in table.columns for chunk in column.chunks for one in chunk.buffers()]
    first = next((one for one in buffers if one is not None and one.size), None)
    return table if first is None or Maps().find(first.address) is not None else None


def _chosen(table: Any, columns: list[str], entry: Entry) -> Any:
    _check(table.schema.names, columns, entry)
    return table.select(columns)


def _check(names: Sequence[str], columns: list[str], entry: Entry) -> None:
    for option, column in zip(("image", "target"), columns, strict=False):
        if column not in names:
            raise OptionError(
                f"table({option}={column!r}): {public(os.fsdecode(entry.what))!r} has the columns {', '.join(names)}"
                + ("; target=None for none of them" if option == "target" else "")
            )


def _convert(storage: Storage, entry: Entry, columns: list[str], copy: bytes, told: Any) -> None:
    import pyarrow as pa

    shown = public(os.fsdecode(entry.what))
    folder = os.path.dirname(copy)
    os.makedirs(folder, 0o700, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(PARTIAL.encode(), b".", folder)
    os.close(descriptor)
    try:
        schema, rows, needed, batches = _read(storage, entry, columns)
        free = shutil.disk_usage(folder).free
        if needed * _SPARE > free:
            raise OptionError(
                f"table({shown!r}): a copy of {show_size(needed)} has to be written to {os.fsdecode(folder)!r}, "
                f"where {show_size(free)} are free; make room, or set XDG_CACHE_HOME to a folder on a larger disk"
            )
        done = 0
        with pa.OSFile(os.fsdecode(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                done += batch.num_rows
                told(done / max(rows, 1))
        (now,) = storage.describe([entry.what])
        if isinstance(now, BaseException) or now.version != entry.version:
            raise OptionError(f"table({shown!r}) was changed while it was read; wait until it is written")
        os.replace(partial, copy)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(error, pa.ArrowInvalid | OSError):
            raise OptionError(f"table({shown!r}) cannot be read or copied: {error}") from error
        raise
    _forget_others(copy)


def _forget_others(copy: bytes) -> None:
    """Delete the copies of earlier versions. Who has one mapped keeps it."""
    folder, name = os.path.split(copy)
    same = name.partition(b"-")[0] + b"-"
    for other in os.listdir(folder):
        if other.startswith(same) and other.endswith(b".arrow") and other != name:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, other))


def _read(storage: Storage, entry: Entry, columns: list[str]) -> tuple[Any, int, int, Iterator[Any]]:
    """The schema of the columns, how many rows and about how many bytes they have, and the rows in small batches."""
    import pyarrow as pa

    local = not is_url(entry.what)
    file = pa.OSFile(os.fsdecode(entry.what)) if local else pa.PythonFile(_File(storage, entry), "r")
    if _is_parquet(entry):
        from pyarrow import parquet

        opened = parquet.ParquetFile(file)
        _check(opened.schema_arrow.names, columns, entry)
        schema = pa.schema(
            [opened.schema_arrow.field(name) for name in columns], opened.schema_arrow.metadata
        )
        groups = [opened.metadata.row_group(at) for at in range(opened.metadata.num_row_groups)]
        parts = [group.column(at) for group in groups for at in range(group.num_columns)]
        needed = sum(
            part.total_uncompressed_size for part in parts if part.path_in_schema.partition(".")[0] in columns
        )
        batches = (_narrowed(batch, columns, schema) for batch in opened.iter_batches(_ROWS, columns=columns))
        return schema, opened.metadata.num_rows, needed, batches
    begin = file.read(6)
    file.seek(0)
    stream = pa.ipc.open_file(file) if begin == b"ARROW1" else pa.ipc.open_stream(file)
    _check(stream.schema.names, columns, entry)
    schema = pa.schema([stream.schema.field(name) for name in columns], stream.schema.metadata)
    numbers = range(stream.num_record_batches) if begin == b"ARROW1" else None
    whole = (stream.get_batch(at) for at in numbers) if numbers is not None else iter(stream)
    return schema, 0, entry.size, (_narrowed(batch, columns, schema) for batch in whole)


def _narrowed(batch: Any, columns: list[str], schema: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([batch.column(name) for name in columns], schema=schema)


class _File(io.RawIOBase):
    """A file elsewhere, as those who read tables want it."""

    def __init__(self, storage: Storage, entry: Entry) -> None:
        self._windows = Windows(storage, entry)
        self._size, self._at = entry.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """All bytes."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        length = self._size - self._at if size is None or size < 0 else min(size, self._size - self._at)
        data = self._windows.read(self._at, length) if length > 0 else b""
        self._at += len(data)
        return data
