"""Samples that are objects of buckets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size
from headrace.sources.buckets.manifest import Manifest
from headrace.sources.buckets.options import Options
from headrace.sources.buckets.storage import BucketStorage
from headrace.sources.buckets.tables import NamedObjects
from headrace.sources.buckets.urls import join, parse
from headrace.sources.local import MAX_BYTES
from headrace.sources.location import Location
from headrace.sources.paths import PathTable
from headrace.sources.source import as_targets


class _Listed:
    """Objects of a folder that was listed."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.root = manifest.header.url
        self._at = parse(self.root)

    def __len__(self) -> int:
        return len(self.manifest)

    def urls(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        names = self.manifest.names(indices)
        if self._at.kind == "http":
            above = f"{self._at.key}/" if self._at.key else ""
            return [os.fsencode(join(self._at.root, above + os.fsdecode(name))) for name in names]
        prefix = os.fsencode(self.root) + b"/"
        return [prefix + name for name in names]

    def versions(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        return self.manifest.versions(indices)

    known_versions = versions

    def digest(self) -> str:
        return self.manifest.header.listing


class BucketSource:
    """One object per sample: what ``folder`` and ``files`` make of URLs. ``classes`` are the names of the targets
    where these are class numbers.

    An object counts as it was when it was listed. One that has changed since is an error when it is read, never the
    sample that it was.
    """

    def __init__(
        self,
        objects: Manifest | PathTable,
        targets: Any = None,
        *,
        classes: Sequence[str] | None = None,
        encoded: bool = True,
        max_bytes: int | str = MAX_BYTES,
        options: Options | Mapping[str, Any] | None = None,
        listed: Mapping[str, Any] | None = None,
    ) -> None:
        """``listed``: the arguments of ``folder``, where it is that which found the objects."""
        self._max_bytes = parse_size(max_bytes, total=0, option="max_bytes")
        if not self._max_bytes:
            raise OptionError(f"max_bytes={max_bytes!r}: must be positive")
        self._storage = BucketStorage(self._max_bytes, options)
        self._objects: _Listed | NamedObjects
        if isinstance(objects, Manifest):
            self._objects = _Listed(objects)
            self._root = self._objects.root
            targets, classes = objects.targets, objects.header.classes
        else:
            self._objects = NamedObjects(objects, self._storage)
            self._root = objects.root.rstrip("/")
        self._own_targets = None if isinstance(objects, Manifest) else as_targets(targets, len(objects))
        self._targets = targets if isinstance(objects, Manifest) else self._own_targets
        self._listed = listed
        self._fingerprint: str | None = None
        self.encoded = encoded
        self.classes = None if classes is None else list(classes)

    def __getstate__(self) -> dict[str, Any]:
        # (Targets of a manifest lie in its file, which is mapped again where this is read.)
        return {name: value for name, value in self.__dict__.items() if name != "_targets"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        objects = self._objects
        self._targets = objects.manifest.targets if isinstance(objects, _Listed) else self._own_targets

    @property
    def targets(self) -> NDArray[Any] | list[Any] | None:
        """The target of each sample, or None where samples have none."""
        return self._targets

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The class number of each class name."""
        return {name: number for number, name in enumerate(self.classes or ())}

    @property
    def root(self) -> str:
        """The URL that all objects lie below."""
        return self._root

    def __len__(self) -> int:
        return len(self._objects)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        return f"BucketSource({self.root!r}: {len(self)} objects{classes})"

    def definition(self) -> tuple[str, dict[str, Any]]:
        """The function that makes it, and its arguments as plain data. Secret options are left out: whoever makes it
        from that uses credentials of its own."""
        public = {"storage_options": self._storage.options.public or None, "max_bytes": self._max_bytes}
        if self._listed is not None:
            return "folder of a bucket", {**self._listed, **public}
        objects = self._objects
        assert isinstance(objects, NamedObjects)
        arguments = {"targets": self._targets, "encoded": bool(self.encoded)}
        return "files of buckets", {
            "root": objects.table.root,
            "paths": objects.table.relative(),
            **arguments,
            **public,
        }

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """The bytes of each object, or the error that kept it from being read."""
        urls = self._objects.urls(indices)
        if not self.encoded:
            return list(urls)
        versions = self._objects.known_versions(indices)
        return self._storage.read(
            [Location(url, version) for url, version in zip(urls, versions, strict=True)]
        )

    def locate(self, indices: Sequence[int] | NDArray[Any]) -> list[Location | None]:
        """See ``Locating``."""
        urls, versions = self._objects.urls(indices), self._objects.versions(indices)
        return [Location(url, version) for url, version in zip(urls, versions, strict=True)]

    def location_reader(self) -> BucketStorage:
        """See ``Locating``."""
        return self._storage

    def name(self, index: int) -> str:
        """The object's URL."""
        return os.fsdecode(self._objects.urls([index])[0])

    def identity(self, index: int) -> str:
        """The object's URL and version: stable over processes, orders and subsets."""
        return os.fsdecode(self.identity_bytes([index])[0])

    def identity_bytes(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The identity of each sample as the bytes that a digest is taken of; for many samples at once."""
        urls, versions = self._objects.urls(indices), self._objects.versions(indices)
        return [
            url + b"\0" + version if version else url for url, version in zip(urls, versions, strict=True)
        ]

    def listing(self) -> str:
        """A digest of all URLs in order, whatever the objects hold."""
        return self._objects.digest()

    def fingerprint(self) -> str:
        """A digest of all URLs in order, and of the objects' versions as they were listed."""
        if isinstance(self._objects, _Listed):
            return self._objects.manifest.header.fingerprint
        if self._fingerprint is None:
            sha = hashlib.sha256(b"versions")
            sha.update(self.listing().encode())
            for version in self._objects.versions(range(len(self))):
                sha.update(version.ljust(32, b"-"))
            self._fingerprint = sha.hexdigest()
        return self._fingerprint
