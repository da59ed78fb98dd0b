"""Samples for tests of the disk tier: the content of each follows from its number. Killed writers import it."""

from __future__ import annotations

import hashlib
import random

from headrace.cache.disk import OpenDisk

OWNER, OTHER = b"o" * 16, b"x" * 16


def key_of(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def content_of(number: int, most: int = 60_000) -> bytes:
    dice = random.Random(number)
    return dice.randbytes(dice.randrange(most))


def put(disk: OpenDisk, *numbers: int) -> int:
    return disk.put_many([(key_of(number), [content_of(number)]) for number in numbers])


def get(disk: OpenDisk, *numbers: int) -> list[bool]:
    """Whether each is there; if it is, it is right."""
    found = disk.get_many([key_of(number) for number in numbers])
    for number, content in zip(numbers, found, strict=True):
        assert content is None or content == content_of(number)
    return [content is not None for content in found]
