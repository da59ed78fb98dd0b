"""Archives of all kinds, made here."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

Files = Mapping[str, bytes]


def some_files(count: int = 12, size: int = 3000, seed: int = 0) -> dict[str, bytes]:
    """Files in folders, which do not compress."""
    dice = random.Random(seed)
    return {f"class_{n % 3}/{n:04}.bin": dice.randbytes(size + n) for n in range(count)}


def tar(files: Files, mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_600_000_000
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def members(*some: tarfile.TarInfo, data: bytes = b"data") -> bytes:
    """A tar of these, whatever they are."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member in some:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


KINDS: dict[str, Callable[[Files], bytes]] = {
    "tar": tar,
    "tar-ustar": lambda files: tar(files, form=tarfile.USTAR_FORMAT),
    "tar-gnu": lambda files: tar(files, form=tarfile.GNU_FORMAT),
    "tar.gz": lambda files: tar(files, "w:gz"),
    "tar.bz2": lambda files: tar(files, "w:bz2"),
    "tar.xz": lambda files: tar(files, "w:xz"),
    "tar.zst": lambda files: zst(tar(files)),
    "zip": zipped,
    "zip-stored": lambda files: zipped(files, zipfile.ZIP_STORED),
    "zip-lzma": lambda files: zipped(files, zipfile.ZIP_LZMA),
}
SINGLE: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zst,
}


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
