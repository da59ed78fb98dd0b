"""Archives that are made to harm, or are damaged: nothing is written outside of the folder, and errors say why."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import MissingExtra
from headrace.datastore import BadArchive, UnsafeArchive
from headrace.datastore.formats import bare_name, sniff, unpacks
from headrace.datastore.manifest import Record, fault, read_manifest, write_manifest
from headrace.datastore.unpack import unpack
from tests.datastore.archives import KINDS, member, members, read_tree, some_files, tar, zipped, zst


class Free:
    """Counts."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, count: int) -> None:
        assert count >= 0
        self.taken += count


def unpacked(data: bytes, tmp_path: Path) -> list[Record]:
    (tmp_path / "archive").write_bytes(data)
    (tmp_path / "out").mkdir()
    try:
        return unpack(tmp_path / "archive", tmp_path / "out", Free(), "archive")
    finally:
        assert sorted(os.listdir(tmp_path)) == ["archive", "out"]
        assert not {"evil", "x"} & set(os.listdir(tmp_path.parent))


def zip_member(name: str, mode: int = 0, data: bytes = b"data") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, data)
    return out.getvalue()


EVIL = {
    "absolute": members(member("/tmp/evil")),
    "up": members(member("../evil")),
    "up inside": members(member("a/../../evil")),
    "link out": members(member("a", tarfile.SYMTYPE, "../../evil")),
    "absolute link": members(member("a", tarfile.SYMTYPE, "/etc")),
    "link out by two": members(
        member("a/b/d", tarfile.SYMTYPE, "../.."), member("e", tarfile.SYMTYPE, "a/b/d/../../x")
    ),
    "device": members(member("a", tarfile.CHRTYPE)),
    "pipe": members(member("a", tarfile.FIFOTYPE)),
    "hard link up": members(member("a", tarfile.LNKTYPE, "../archive")),
    "zip up": zip_member("../evil"),
    "zip absolute": zip_member("/tmp/evil"),
    "zip link": zip_member("a", stat.S_IFLNK | 0o777, b"../../evil"),
    "zip device": zip_member("a", stat.S_IFCHR | 0o666),
    "the folder itself a link": members(member(".", tarfile.SYMTYPE, "/tmp")),
}


@pytest.mark.parametrize("how", EVIL)
def test_evil_archives_are_refused(how: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchive, match=r"archive is not unpacked: .*"):
        unpacked(EVIL[how], tmp_path)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    data = members(member("a", tarfile.SYMTYPE, "/tmp"), member("a/evil"))
    with pytest.raises((BadArchive, UnsafeArchive)):
        unpacked(data, tmp_path)
    assert not os.path.exists("/tmp/evil")


def test_links_within_the_folder_are_made(tmp_path: Path) -> None:
    data = members(
        member("a/one"), member("b", tarfile.SYMTYPE, "a"), member("two", tarfile.LNKTYPE, "a/one")
    )
    records = unpacked(data, tmp_path)
    out = tmp_path / "out" / "files"
    assert os.readlink(out / "b") == "a" and (out / "b" / "one").read_bytes() == b"data"
    assert (out / "two").read_bytes() == b"data"
    assert {record.path for record in records} == {"files/a/one", "files/b", "files/two"}
    assert not any(fault(tmp_path / "out", record) for record in records)


def test_a_member_that_comes_twice_is_the_later_one(tmp_path: Path) -> None:
    first, second = tar({"a": b"first", "b": b""}), tar({"a": b"second"})
    records = unpacked(first[: 512 * 3] + second, tmp_path)
    assert read_tree(tmp_path / "out" / "files") == {"a": b"second", "b": b""}
    assert not any(fault(tmp_path / "out", record) for record in records)


def test_a_file_and_a_folder_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="twice"):
        unpacked(members(member("a"), member("a/b")), tmp_path)


def test_modes_are_sane(tmp_path: Path) -> None:
    one = member("run")
    one.mode = 0o6777
    unpacked(members(one, member("data")), tmp_path)
    files = tmp_path / "out" / "files"
    assert stat.S_IMODE((files / "run").stat().st_mode) == 0o555
    assert stat.S_IMODE((files / "data").stat().st_mode) == 0o444


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tar", "tar-ustar", "tar-gnu")])
def test_damage_in_the_middle_is_found(kind: str, tmp_path: Path) -> None:
    data = bytearray(KINDS[kind](some_files(8, 30_000)))
    for at in range(len(data) // 2, len(data) // 2 + 40):
        data[at] ^= 0x5A
    with pytest.raises(BadArchive, match="damaged"):
        unpacked(bytes(data), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_too_early_is_found(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind](some_files(8, 30_000))
    with pytest.raises(BadArchive, match="damaged"):
        unpacked(data[: len(data) * 2 // 3], tmp_path)


def test_an_encrypted_zip_says_so(tmp_path: Path) -> None:
    data = bytearray(zip_member("a"))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(BadArchive, match="encrypted"):
        unpacked(bytes(data), tmp_path)


def test_without_zstandard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zst(b"numbers")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    monkeypatch.setitem(__import__("sys").modules, "compression", None)
    with pytest.raises(MissingExtra, match=r"headrace\[zstd\]"):
        unpacked(data, tmp_path)


def test_formats_are_known_by_content() -> None:
    assert {kind: sniff(make({"a": b"b" * 99})[:512]) for kind, make in KINDS.items()} == {
        "tar": "tar", "tar-ustar": "tar", "tar-gnu": "tar", "tar.gz": "gzip", "tar.bz2": "bzip2", "tar.xz": "xz",
        "tar.zst": "zstd", "zip": "zip", "zip-stored": "zip", "zip-lzma": "zip",
    }  # fmt: skip
    assert sniff(b"") == sniff(b"\xff\xd8\xff\xe0" + bytes(600)) == sniff(bytes(1024)) == "plain"
    assert sniff(zipped({})) == "zip"
    assert sniff(b"BZhello") == "plain" and sniff(b"ustar" * 200) == "plain"
    assert unpacks("download", "zip") and not unpacks("weights.npz", "zip") and not unpacks("a.zip", "plain")
    assert bare_name("a.TAR.GZ") == "a" and bare_name("a.tar.gz.gz") == "a.tar"


@given(st.binary(max_size=2000))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for head in (b"", b"\x1f\x8b\x08", b"PK\x03\x04", gzip.compress(tar({"a": b"x"}))[:300]):
            place = Path(folder) / f"{len(head)}"
            (place / "out").mkdir(parents=True)
            (place / "in").write_bytes(head + data)
            try:
                records = unpack(place / "in", place / "out", Free(), "in")
            except (BadArchive, UnsafeArchive):
                continue
            assert not any(fault(place / "out", record) for record in records)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(0, 1 << 50)), max_size=8))
def test_a_manifest_is_read_as_it_was_written(some: list[tuple[bytes, int]]) -> None:
    import tempfile

    records = [Record(os.fsdecode(name.replace(b"\0", b"\n")), size, "ab" * 32, "to") for name, size in some]
    with tempfile.TemporaryDirectory() as folder:
        digest = write_manifest(Path(folder), records)
        assert sorted(read_manifest(Path(folder), digest), key=repr) == sorted(records, key=repr)


def test_what_is_metered_is_what_is_written(tmp_path: Path) -> None:
    for kind in ("tar.gz", "zip"):
        place = tmp_path / kind
        (place / "out").mkdir(parents=True)
        (place / "in").write_bytes(KINDS[kind](some_files(50, 5000)))
        meter = Free()
        unpack(place / "in", place / "out", meter, "in")
        blocks = sum(path.lstat().st_blocks * 512 for path in (place / "out").rglob("*"))
        assert blocks <= meter.taken <= blocks + 50 * 4096
