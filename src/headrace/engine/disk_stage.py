"""The disk tier in a worker: looked at for what the cache in memory does not have, and given what storage gave.

A sample lies there in one form. Which of the two it is follows from its key, so that all workers and jobs agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cache import extents
from headrace.cache.keyed import KeyTier, OpenTier
from headrace.core.forms import Form
from headrace.planning import Spent
from headrace.planning.moving import Moving
from headrace.recipes.decoded import DecodedForm
from headrace.sources.identity import identities_of
from headrace.sources.source import Source

Found = tuple[Form, memoryview]
_ENDLESS = 1e15
"""Bytes of what cannot be kept at all."""
_AGAIN = 60.0
"""Seconds after which a tier is tried again whose lock another process kept."""


@dataclass(frozen=True)
class DiskUse:
    """How a job uses a disk tier. It travels to workers."""

    tier: KeyTier
    encoded: bool
    """Whether encoded samples are kept there."""
    decoded: float
    """The share of samples that are kept there in decoded form, 0 to 1."""
    decoded_key: str
    """Tells what was decoded in this way from all else."""
    whole: int
    """Samples of the dataset."""
    measured: bool = False
    """Whether decoded samples are kept there only where that is measured to pay: see ``planning/moving.py``."""


class DiskStage:
    """The tier for the workers of one job. Threads share it."""

    def __init__(
        self, use: DiskUse, source: Source, form: DecodedForm | None = None, *, ahead: bool = False
    ) -> None:
        """``form``: what is known of decoded samples; None: nothing. ``ahead``: other threads prepare meanwhile."""
        self._use, self._source, self._form = use, source, form
        self._opening = threading.Lock()
        self._opened: tuple[int, OpenTier | None] = (0, None)
        self._again, self._said = math.inf, False
        self._below = int(use.decoded * (1 << 32))
        self._seen, self._bytes = 0, 0
        self._here = threading.local()
        self._moving, self._measuring = Moving() if use.measured else None, threading.Lock()
        self._ahead = ahead

    @property
    def copies(self) -> bool:
        """Whether encoded samples are kept: those can be copied before they are needed."""
        return self._use.encoded

    def _disk(self) -> OpenTier | None:
        """The tier, for this process; None where it cannot be had: that is no reason to stop."""
        if self._is_to_open:
            with self._opening:
                if self._is_to_open:
                    disk, self._again = None, math.inf
                    try:
                        disk = self._use.tier.open()
                    except OSError as error:
                        if isinstance(error, TimeoutError):
                            self._again = time.monotonic() + _AGAIN
                        self._complain(error)
                    self._opened = os.getpid(), disk
        return self._opened[1]

    @property
    def _is_to_open(self) -> bool:
        return self._opened[0] != os.getpid() or time.monotonic() >= self._again

    def _complain(self, error: OSError) -> None:
        said, self._said = self._said, True
        if not said:
            warnings.warn(f"the tier {self._use.tier.path!r} is not used: {error}", stacklevel=3)

    def close(self) -> None:
        """No more of it is needed here."""
        pid, disk = self._opened
        self._opened = (0, None)
        if disk is not None and pid == os.getpid():
            disk.close()

    @property
    def in_use(self) -> bool:
        """Whether samples may be there, or go there. (Where not, nobody need know what they are called.) What this
        thread has looked ahead is, even if it would not be moved any more."""
        return self._use.encoded or bool(self._looked_ahead) or self._pays(tries=True)

    @property
    def _looked_ahead(self) -> dict[bytes, Found | None] | None:
        """What this thread has found, or not found, and not looked for yet."""
        return getattr(self._here, "ahead", None)

    def names(self, indices: NDArray[np.int64]) -> list[bytes]:
        """What samples are called here."""
        return identities_of(self._source, indices)

    def look_ahead(self, indices: NDArray[np.int64]) -> list[int]:
        """Find what this thread will look for next, order by order: all at once, a tier elsewhere is asked once.
        Returns the places of those that are not there."""
        self._here.ahead = None
        if not self.in_use:
            return list(range(len(indices)))
        names = self.names(indices)
        begun = time.perf_counter()
        found = self.find(names)
        self._here.took = time.perf_counter() - begun
        self._here.ahead = dict(zip(names, found, strict=True))
        return [at for at, one in enumerate(found) if one is None]

    def find(self, names: Sequence[bytes], *, decoded: bool = True) -> list[Found | None]:
        """What is there of each sample. ``decoded``: the decoded form will do, too."""
        ahead = self._looked_ahead
        if not ahead or not decoded:
            return self._find(names, decoded=decoded)
        out = [ahead.get(name) for name in names]
        rest = [at for at, name in enumerate(names) if name not in ahead]
        for name in names:
            ahead.pop(name, None)  # (it is wanted once, and takes memory)
        if rest:
            found = self._find([names[at] for at in rest], decoded=decoded)
            for at, one in zip(rest, found, strict=True):
                out[at] = one
        return out

    def _find(self, names: Sequence[bytes], *, decoded: bool) -> list[Found | None]:
        out: list[Found | None] = [None] * len(names)
        disk = self._disk()
        if disk is None:
            return out
        if decoded and self._use.decoded and self._pays():
            self._look(disk, Form.DECODED, names, range(len(names)), out)
        if self._use.encoded:
            self._look(disk, Form.ENCODED, names, [at for at, one in enumerate(out) if one is None], out)
        return out

    def _look(
        self,
        disk: OpenTier,
        form: Form,
        names: Sequence[bytes],
        rows: Iterable[int],
        out: list[Found | None],
    ) -> None:
        wanted = list(rows)
        found = disk.get_many([self._key(form, names[row]) for row in wanted])
        for row, content in zip(wanted, found, strict=True):
            if content is not None:
                out[row] = form, content

    def open_decoded(self, contents: Mapping[bytes, memoryview]) -> dict[bytes, Any]:
        """Decoded samples, by their names, of what was found of them. What cannot be one (others may have put there
        whatever they like, by mistake, too) is let go, so that the sample takes its place once it was decoded."""
        out: dict[bytes, Any] = {}
        for name, content in contents.items():
            with contextlib.suppress(ValueError):
                value = extents.load(content)
                if self._form is None or self._form.may_be(value):
                    out[name] = value
        disk = self._disk() if len(out) < len(contents) else None
        if disk is not None:
            disk.drop_many([self._key(Form.DECODED, name) for name in contents if name not in out])
        return out

    def _key(self, form: Form, name: bytes) -> bytes:
        of = b"encoded" if form == Form.ENCODED else self._use.decoded_key.encode()
        return hashlib.blake2b(name, digest_size=16, key=of[:64]).digest()

    @property
    def has_room(self) -> bool:
        """Whether it is worth while to make something for it."""
        if not self._pays(tries=True):
            return False
        disk = self._disk()
        return disk is not None and disk.has_room

    def _pays(self, *, tries: bool = False) -> bool:
        """Whether decoded samples are moved. ``tries``: also to see how large they are."""
        moving = self._moving
        if moving is None:
            return True
        with self._measuring:
            return (tries and moving.needs_size()) or moving.pays(time.monotonic())

    def saw(self, spent: Spent) -> None:
        """What an order took."""
        moving, prepared = self._moving, spent.prepared
        if moving is None or not prepared:
            return
        wall = spent.decode + spent.augment
        waited = spent.wait_fetch
        if not self._ahead:
            waited, self._here.took = spent.disk + getattr(self._here, "took", 0.0), 0.0
        with self._measuring:
            moving.fetched(int(spent.fetched), spent.fetched_bytes)
            if spent.decoded:
                cpu = spent.decode * min(1.0, spent.cpu / wall) if wall else 0.0
                seconds = spent.decode + spent.augment * min(1.0, spent.decoded / prepared)
                moving.decoded(int(spent.decoded), cpu, seconds)
            elif spent.from_disk == prepared:
                moving.found(int(prepared), spent.augment + waited, time.monotonic())

    def is_decoded(self, name: bytes) -> bool:
        """Whether a sample is to be kept in its decoded form."""
        return int.from_bytes(name[:4], "little") < self._below

    def keep_encoded(self, names: Sequence[bytes], blobs: Sequence[Any], cached: Sequence[bool]) -> None:
        """Samples as storage gave them. ``cached``: those that memory keeps; the disk does if it has room for all."""
        self._seen += len(blobs)
        self._bytes += sum(len(blob) for blob in blobs)
        disk = self._disk() if self._use.encoded else None
        if disk is None:
            return
        for_all = self._bytes / max(self._seen, 1) * self._use.whole < disk.budget
        samples = [
            (self._key(Form.ENCODED, name), [blob])
            for name, blob, known in zip(names, blobs, cached, strict=True)
            if for_all or not known
        ]
        disk.put_many(samples)

    def missing(self, names: Sequence[bytes]) -> list[int]:
        """Which samples are not there, in any form."""
        disk = self._disk()
        if disk is None:
            return []
        there = np.zeros(len(names), np.bool_)
        if self._use.encoded:
            there |= disk.has_many([self._key(Form.ENCODED, name) for name in names])
        if self._use.decoded:
            there |= disk.has_many([self._key(Form.DECODED, name) for name in names])
        rows: list[int] = np.flatnonzero(~there).tolist()
        return rows

    def has_room_ahead(self, samples: int) -> bool:
        """Whether there is room for so many samples before they are needed, as far as one can tell."""
        disk = self._disk()
        if disk is None or not self._seen:
            return False
        return disk.has_room_ahead(1.2 * samples * self._bytes / self._seen)

    def keep_ahead(self, samples: Sequence[tuple[bytes, Any]]) -> int | None:
        """Samples that will be needed: to stay, if there is room, else until they are released by the number that is
        returned."""
        disk = self._disk()
        if disk is None or not samples:
            return None
        records = [(self._key(Form.ENCODED, name), [blob]) for name, blob in samples]
        if disk.has_room:
            disk.put_many(records)
            there = disk.has_many([key for key, _ in records])
            records = [one for one, known in zip(records, there, strict=True) if not known]
        return disk.put_ahead(records) if records else None

    def release(self, numbers: Sequence[int]) -> None:
        """What was copied ahead of need was used."""
        disk = self._disk() if numbers else None
        if disk is not None:
            disk.release(numbers)

    def keep_decoded(self, values: Mapping[bytes, Any]) -> None:
        """Decoded samples, by their names."""
        disk = self._disk()
        if disk is None or not values:
            return
        samples = []
        for name, value in values.items():
            pieces = extents.dump(value)
            if pieces is not None:
                samples.append((self._key(Form.DECODED, name), pieces))
        if self._moving is not None:
            nbytes = sum(memoryview(piece).nbytes for _, pieces in samples for piece in pieces)
            with self._measuring:
                self._moving.sized(len(values), nbytes + _ENDLESS * (len(values) - len(samples)))
        disk.put_many(samples)
