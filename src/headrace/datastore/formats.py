"""What a file is, by its first bytes, whatever it is called; and how to read what is compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from headrace.core.errors import MissingExtra
from headrace.datastore.errors import BadArchive

Format = Literal["tar", "zip", "gzip", "bzip2", "xz", "zstd", "plain"]
HEAD = 512
"""Bytes that tell."""
_SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".zip", ".gz", ".bz2", ".xz", ".zst")
_KEPT = (".npz", ".pt", ".pth", ".ckpt", ".keras", ".whl", ".jar", ".docx", ".xlsx", ".pptx", ".epub")
"""Names of files that are archives only as to how they are written: nobody wants their parts."""


def sniff(head: bytes) -> Format:
    """The format of what begins so."""
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstd"
    return "tar" if _is_tar(head) else "plain"


def _is_tar(head: bytes) -> bool:
    """A header's sum is right; the word "ustar" is not in all of them."""
    if len(head) < HEAD or not head[0]:
        return False
    try:
        said = int(head[148:156].strip(b" \0"), 8)
    except ValueError:
        return False
    return said == sum(head[:148]) + 8 * ord(" ") + sum(head[156:512])


def unpacks(name: str, found: Format) -> bool:
    """Whether it is something to be unpacked, by what it is; the name can only speak against it."""
    return found != "plain" and not name.lower().endswith(_KEPT)


def bare_name(name: str) -> str:
    """A name without what says that it is packed: ``a.tar.gz`` becomes ``a``.

    >>> bare_name("train-images.idx3-ubyte.gz"), bare_name("a.tar.gz"), bare_name("b.tgz"), bare_name(".zip")
    ('train-images.idx3-ubyte', 'a', 'b', '.zip')
    """
    for _ in range(2):
        for suffix in _SUFFIXES:
            if name.lower().endswith(suffix) and len(name) > len(suffix):
                name = name[: -len(suffix)]
                break
    return name


def open_stream(file: BinaryIO, found: Format) -> BinaryIO:
    """What is in a compressed file, to be read from its beginning to its end."""
    if found == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if found == "bzip2":
        return cast(BinaryIO, bz2.BZ2File(file))
    if found == "xz":
        return cast(BinaryIO, lzma.LZMAFile(file))
    if found == "zstd":
        return _open_zstd(file)
    return file


def _open_zstd(file: BinaryIO) -> BinaryIO:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # from Python 3.14 on

        return cast(BinaryIO, zstd.ZstdFile(file))
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", "zstd", "unpacking .zst") from None
    found: Any = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return cast(BinaryIO, found)


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """What decompressors raise of damaged data, as one error."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise _bad(name, error) from error
    except NotImplementedError as error:  # (of zipfile: a method that it does not know)
        raise BadArchive(f"{name} cannot be unpacked here: {error}; add it with --no-unpack") from error
    except OSError as error:
        if error.errno is None:  # (of bz2)
            raise _bad(name, error) from error
        raise
    except Exception as error:
        if type(error).__name__ in ("ZstdError", "TarError", "ReadError", "HeaderError", "StreamError"):
            raise _bad(name, error) from error
        raise


def _bad(name: str, error: BaseException) -> BadArchive:
    return BadArchive(
        f"{name} is damaged: {error or 'it ends too early'}. It is so at its source; add it with --no-unpack to have "
        "it as it is"
    )


def unpacked_size(file: io.IOBase | BinaryIO, found: Format, size: int) -> int:
    """What will come out, as far as that can be told without reading all of it; else a lower bound.

    Photos and speech hardly become smaller by compression, so for most datasets the bound is near.
    """
    if found == "zip":
        try:
            with zipfile.ZipFile(cast(Any, file)) as archive:
                return sum(info.file_size for info in archive.infolist())
        except (zipfile.BadZipFile, NotImplementedError, EOFError):
            return max(0, size)
    return max(0, size)


class RangeFile(io.RawIOBase):
    """A file elsewhere, read by parts: for the directory at the end of a zip."""

    def __init__(self, size: int, read: Any) -> None:
        """``read(start, length)`` gives bytes."""
        self._size, self._read, self._at = size, read, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where it is."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go there."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = self._read(self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def read_head(path: Path) -> bytes:
    """The bytes that tell what a file is."""
    with path.open("rb") as file:
        return file.read(HEAD)
