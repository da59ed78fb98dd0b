"""``headrace.table``: Parquet and Arrow files as a source."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import MissingExtra, OptionError
from headrace.sources.archives.patterns import Url, find, public
from headrace.sources.archives.table_source import TableSource
from headrace.sources.local import MAX_BYTES
from headrace.sources.storage import is_url

_ENDINGS = (".parquet", ".arrow", ".feather", ".ipc")


def table(
    paths: Url | Sequence[Url],
    image: str = "image",
    target: str | None = "label",
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> TableSource:
    """A source of the images in a column of Parquet or Arrow files.

    ``paths``: a path or URL, a list of them, a pattern as of ``shards``, or a folder that the files lie below, as
    Hugging Face has them, or as ``dataset.save_to_disk()`` wrote it. ``image``: the column of encoded images, bytes
    or what Hugging Face has for them; ``target``: the column of targets, or None for samples without.

    Arrow files are read where they lie. A single cell of a Parquet file cannot be, nor one of a file that is
    compressed or elsewhere than here: the two columns are written to an Arrow file below ``~/.cache/headrace/tables``
    once.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtra("pyarrow", "table", "table()") from None
    if target == image:
        raise OptionError(f"table(image={image!r}, target={target!r}): these are one column")
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    storage, entries, _ = find(
        [file for one in listed for file in _saved(os.fspath(one))],
        _ENDINGS,
        what="table",
        max_bytes=MAX_BYTES,
        storage_options=storage_options,
    )
    given = [os.fspath(one) for one in listed]
    given = [public(name) if is_url(name) else os.path.abspath(name) for name in given]
    return TableSource(storage, entries, image, target, given)


def _saved(name: str) -> list[str]:
    """The files of a folder that ``save_to_disk`` wrote, in their order; any other name as it is."""
    state = os.path.join(name, "state.json")
    if is_url(name) or not os.path.isfile(state):
        if not is_url(name) and os.path.isfile(os.path.join(name, "dataset_dict.json")):
            raise OptionError(f"table({name!r}): it has several splits; name one of its folders")
        return [name]
    try:
        with open(state, encoding="utf-8") as file:
            found = [os.path.join(name, one["filename"]) for one in json.load(file)["_data_files"]]
    except (ValueError, LookupError, TypeError) as error:
        raise OptionError(f"table({name!r}): its state.json cannot be understood ({error!r})") from None
    if not found:
        raise OptionError(f"table({name!r}): the dataset is empty")
    return found
