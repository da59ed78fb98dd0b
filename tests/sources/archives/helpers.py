"""What the tests of archives share: archives, and storage that counts."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.sources import Location
from headrace.sources.storage import LocalStorage
from tests.recipes.helpers import jpeg, picture

SIZE = 7
Items = Iterable[tuple[str, bytes]]


def image(number: int) -> bytes:
    return jpeg(picture(20 + number, 30, number))


def members(numbers: Iterable[int] = range(SIZE)) -> list[tuple[str, bytes]]:
    """Samples as WebDataset has them."""
    out = []
    for number in numbers:
        key = f"{'cat' if number % 2 else 'dog'}/{number:04d}"
        out += [
            (f"{key}.jpg", image(number)),
            (f"{key}.cls", b"%d\n" % (number % 3)),
            (f"{key}.json", b'{"label": {"id": %d, "name": "n%d"}, "weight": 0.5}' % (number, number)),
            (f"{key}.txt", f"picture № {number}".encode()),
        ]
    return out


def write_tar(path: Path, items: Items, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in items:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(path: Path, items: Items, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in items:
            archive.writestr(name, data)
    return path


def write_shards(root: Path, count: int = 3) -> Path:
    for shard in range(count):
        numbers = [number for number in range(SIZE) if number * count // SIZE == shard]
        write_tar(root / f"train-{shard:04d}.tar", members(numbers))
    return root


class CountingStorage(LocalStorage):
    """Files under URLs, as if they lay elsewhere: what is asked for is noted."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = os.fsencode(root)
        self.reads: list[tuple[bytes, int, int | None]] = []
        self.failures: list[BaseException] = []

    def _path(self, what: bytes) -> bytes:
        return what.replace(b"s3://bucket", self._root)

    def _url(self, path: bytes) -> bytes:
        return path.replace(self._root, b"s3://bucket")

    def describe(self, names: Sequence[bytes]) -> list[Any]:
        found = super().describe([self._path(name) for name in names])
        return [
            one if isinstance(one, BaseException) else type(one)(self._url(one.what), one.size, one.version)
            for one in found
        ]

    def below(self, prefix: bytes) -> Any:
        for block in super().below(self._path(prefix)):
            yield self.describe([self._url(one.what) for one in block])

    def read(self, locations: Sequence[Location]) -> list[Any]:
        if self.failures:
            return [self.failures.pop() for _ in locations]
        self.reads += [(one.what, one.start, one.length) for one in locations]
        moved = [Location(self._path(one.what), one.version, one.start, one.length) for one in locations]
        return super().read(moved)

    @property
    def bytes_read(self) -> int:
        return sum(length or 0 for _, _, length in self.reads)
