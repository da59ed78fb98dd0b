"""Unpacks archives: tar, zip, what is compressed, and tar in what is compressed."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

from headrace.datastore.errors import BadArchive, UnsafeArchive
from headrace.datastore.formats import HEAD, open_stream, plain_errors, read_head, sniff
from headrace.datastore.manifest import Record
from headrace.datastore.tree import Meter, Tree, copy

OBJECT, FILES = "object", "files"
"""How a content's only file is called, or the folder of its files."""
_THREADS = min(8, os.cpu_count() or 1)
_LONGEST_LINK = 4096


def unpack(source: Path, folder: Path, meter: Meter, name: str) -> list[Record]:
    """Unpack a file into a folder: into ``files`` below it, or to ``object`` where it is a single file compressed.

    ``name`` is what the archive is called in errors.
    """
    found = sniff(read_head(source))
    with plain_errors(name):
        if found == "zip":
            return _unzip(source, folder, meter, name)
        with source.open("rb") as file, open_stream(file, found) as stream:
            inner = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)
            if sniff(inner.peek(HEAD)[:HEAD]) == "tar":
                return _untar(cast(BinaryIO, inner), folder, meter, name)
            with (folder / OBJECT).open("wb", buffering=0) as out:
                record = copy(inner.read, out, meter, OBJECT)
                os.fchmod(out.fileno(), 0o444)
            return [record]


def _untar(stream: BinaryIO, folder: Path, meter: Meter, name: str) -> list[Record]:
    tree = Tree(folder, FILES, meter, name)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # (it would keep all of them)
            if member.isdir():
                tree.folder(member.name)
            elif member.isreg():
                data = archive.extractfile(member)
                assert data is not None
                left = member.size

                def read(count: int, data: object = data) -> bytes:
                    nonlocal left
                    piece: bytes = data.read(count)  # type: ignore[attr-defined]
                    left -= len(piece)
                    if left and not piece:
                        raise EOFError
                    return piece

                _filter(member, folder, name)
                tree.file(member.name, read, member.mode, member.mtime)
            elif member.issym():
                tree.link(member.name, member.linkname)
            elif member.islnk():
                tree.same(member.name, member.linkname)
            else:
                raise UnsafeArchive(
                    f"{name} is not unpacked: {member.name!r} in it is a device or a pipe, and not data"
                )
        # Damage may lie behind the last member: what is compressed has its checksum at its end.
        while stream.read(1 << 20):
            meter.take(0)
    return tree.finish()


def _filter(member: tarfile.TarInfo, folder: Path, name: str) -> None:
    """What Python itself has against a member, beside what ``Tree`` has."""
    check = getattr(tarfile, "data_filter", None)  # (from 3.11.4 on)
    if check is None:
        return
    try:
        check(member, str(folder / FILES))
    except tarfile.TarError as error:
        raise UnsafeArchive(f"{name} is not unpacked: {error}") from error
    except (
        NotADirectoryError
    ):  # (later versions look at what lies there; ``Tree`` says what is wrong with it)
        return


def _unzip(source: Path, folder: Path, meter: Meter, name: str) -> list[Record]:
    """Members by several threads: what decompresses and digests them lets others run."""
    tree = Tree(folder, FILES, meter, name)
    with zipfile.ZipFile(source) as archive:
        last = {info.filename: info for info in archive.infolist()}  # (of two with one name, the later)
        members = iter(sorted(last.values(), key=lambda info: info.header_offset))
        lock, over = threading.Lock(), threading.Event()

        def work() -> None:
            try:
                for info in _shared(members, lock):
                    if over.is_set():
                        return
                    _member(archive, info, tree, name)
            except BaseException:
                over.set()
                raise

        with ThreadPoolExecutor(_THREADS, "unzip") as pool:
            for done in [pool.submit(work) for _ in range(_THREADS)]:
                done.result()
    return tree.finish()


def _shared(members: Iterator[zipfile.ZipInfo], lock: threading.Lock) -> Iterator[zipfile.ZipInfo]:
    while True:
        with lock:
            found = next(members, None)
        if found is None:
            return
        yield found


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, tree: Tree, name: str) -> None:
    mode = info.external_attr >> 16
    if info.flag_bits & 1:
        raise BadArchive(
            f"{name} is encrypted; unpack it by yourself and add the folder, or pass --no-unpack"
        )
    if info.is_dir():
        tree.folder(info.filename)
        return
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK):
        raise UnsafeArchive(
            f"{name} is not unpacked: {info.filename!r} in it is a device or a pipe, and not data"
        )
    with archive.open(info) as file:
        if stat.S_ISLNK(mode):
            tree.link(info.filename, os.fsdecode(file.read(_LONGEST_LINK)))
            return
        tree.file(info.filename, file.read, mode, _time(info))


def _time(info: zipfile.ZipInfo) -> float | None:
    try:
        return time.mktime((*info.date_time, 0, 0, -1))
    except (ValueError, OverflowError):
        return None
