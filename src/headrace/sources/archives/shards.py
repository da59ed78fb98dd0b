"""``headrace.shards``: archives as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size
from headrace.sources.archives.columns import Wanted
from headrace.sources.archives.patterns import Url, find
from headrace.sources.archives.selection import AUTO, Options
from headrace.sources.archives.source import ShardSource
from headrace.sources.local import MAX_BYTES

_ENDINGS = (".tar", ".zip")
_LAYOUTS = ("samples", "folder")


def shards(
    urls: Url | Sequence[Url],
    *,
    image: str = AUTO,
    target: str | None = AUTO,
    fields: Sequence[str] | None = None,
    layout: str = "samples",
    inside: str = "",
    max_bytes: int | str = MAX_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> ShardSource:
    """A source of samples in tar or zip archives, each read by itself, in any order.

    ``urls``: a path or URL, a list of them, a pattern such as ``"train-{0000..0099}.tar"``, for local files also
    ``"train-*.tar"``, or a folder or prefix that the archives lie below.

    ``layout="samples"``: WebDataset's. Members whose names are equal up to the first dot are one sample, and what
    follows names its fields: ``0001.jpg``, ``0001.cls``. ``image``: the field that is read, by default the one that
    is an image; samples without it are left out. ``fields``: several fields instead, for ``decode=fields(...)``.
    ``target``: the field that has the targets, ``"cls"`` if there is one; ``"txt"``; ``"json:label"`` for a part of a
    JSON member; None for samples without.

    ``layout="folder"``: each image is a sample, and the folder that it lies in its class, as ``folder`` has it: the
    first folder below the one that all images have in common, or below ``inside``.

    ``inside``: only what lies below that folder of the archives. ``max_bytes``: as of ``files``.
    ``storage_options``: for buckets.

    Archives are read through once, for an index which is kept beside them, or where that cannot be, below
    ``~/.cache/headrace``.
    """
    limit = parse_size(max_bytes, total=0, option="max_bytes")
    if not limit:
        raise OptionError(f"max_bytes={max_bytes!r}: must be positive")
    if layout not in _LAYOUTS:
        raise OptionError(f"shards(layout={layout!r}): expected 'samples' or 'folder'")
    if layout == "folder" and (fields is not None or image != AUTO or target not in (AUTO, None)):
        raise OptionError(
            "shards(layout='folder') has one image in each sample, and its folder as its target: image=, fields= and "
            "target= are for layout='samples'"
        )
    if isinstance(fields, str) or (fields is not None and not fields):
        raise OptionError(f"shards(fields={fields!r}): expected a list of names, such as ['jpg', 'json']")
    if fields is not None and image != AUTO:
        raise OptionError("shards(): pass image= or fields=, and not both")
    if not isinstance(image, str) or not image:
        raise OptionError(f"shards(image={image!r}): expected the name of a field, such as 'jpg'")
    if target not in (None, AUTO):
        Wanted.of(target)
    options = Options(
        image.lower().lstrip("."),
        None if fields is None else tuple(field.lower().lstrip(".") for field in fields),
        target,
        layout,
        inside.strip("/") + "/" if inside.strip("/") else "",
    )
    storage, entries, given = find(
        urls, _ENDINGS, what="shards", max_bytes=max(limit, MAX_BYTES), storage_options=storage_options
    )
    return ShardSource(storage, entries, options, given, limit)
