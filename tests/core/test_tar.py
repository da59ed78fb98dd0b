"""Reading tar archives: as Python's and GNU's tar write them, and as accidents leave them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tar import BLOCK, Damaged, Member, header_of, members, padded

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(items: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, **header: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, pax_headers=header or None) as archive:
        for name, data in items:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def scan(data: bytes) -> list[Member]:
    return list(members(lambda start, length: data[start : start + length], len(data)))


def files(data: bytes) -> list[tuple[str, bytes]]:
    return [
        (one.name.decode("utf-8", "surrogateescape"), data[one.start : one.start + one.length])
        for one in scan(data)
        if not one.link
    ]


def by_tarfile(data: bytes) -> list[tuple[str, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(one.name, one.offset_data, one.size) for one in archive if one.isreg()]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name",
    ["a.jpg", "x/" * 40 + "y.jpg", "ä/ö ü.jpg", "d/" + "n" * 96 + ".jpg", "a b=c\nd.jpg"],
    ids=["short", "in folders", "unicode", "a full field", "strange"],
)
def test_names(form: str, name: str) -> None:
    data = write([("before.txt", b"1"), (name, b"content"), ("after.txt", b"")], FORMATS[form])
    assert files(data) == [("before.txt", b"1"), (name, b"content"), ("after.txt", b"")]
    assert [(one.name.decode(), one.start, one.length) for one in scan(data)] == by_tarfile(data)


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_long_names(form: str) -> None:
    name = "deep/" * 70 + "n" * 300 + ".jpg"
    data = write([(name, b"content"), ("a.cls", b"7")], FORMATS[form])
    assert files(data) == [(name, b"content"), ("a.cls", b"7")]
    first, second = scan(data)
    assert first.head == 0 and first.start > BLOCK, "what says the name belongs to the member"
    assert second.head == padded(first.start + first.length)


def test_headers_for_all_members() -> None:
    data = write([("a.jpg", b"1"), ("b" * 200, b"2")], comment="of no use")
    assert files(data) == [("a.jpg", b"1"), ("b" * 200, b"2")]


def test_pax_headers_say_the_size() -> None:
    """As they do for members of more than 8 GiB."""
    content = bytes(range(200)) * 9
    plain = write([("a.jpg", content), ("b.jpg", b"b")], tarfile.USTAR_FORMAT)
    record = b"13 size=%d\n" % len(content)
    assert len(record) == 13
    extra = tarfile.TarInfo("PaxHeader")
    extra.type, extra.size = tarfile.XHDTYPE, len(record)
    wrong = with_size(plain[:BLOCK], b"%011o\0" % 0)
    data = extra.tobuf(tarfile.USTAR_FORMAT) + record + bytes(BLOCK - len(record)) + wrong + plain[BLOCK:]
    assert files(data) == [("a.jpg", content), ("b.jpg", b"b")]


def with_size(header: bytes, size: bytes) -> bytes:
    """A header that says another size, and has the right checksum."""
    new = header[:124] + size + header[136:148] + b" " * 8 + header[156:]
    return new[:148] + b"%06o\0 " % sum(new) + new[156:]


def test_large_numbers() -> None:
    """GNU's tar writes what has no room in eleven octal digits to base 256."""
    plain = write([("a.jpg", b"content"), ("b.jpg", b"b")], tarfile.GNU_FORMAT)
    data = with_size(plain[:BLOCK], b"\x80" + (7).to_bytes(11, "big")) + plain[BLOCK:]
    assert files(data) == [("a.jpg", b"content"), ("b.jpg", b"b")]
    large = with_size(plain[:BLOCK], b"\x80" + (1 << 40).to_bytes(11, "big"))
    found: list[Member] = []
    with pytest.raises(Damaged, match=f"{1 << 40} bytes from byte 512 on"):
        found += members(lambda start, length: (large + bytes(BLOCK))[start : start + length], 1 << 30)
    (one,) = members(lambda start, length: large if not start else bytes(length), (1 << 40) + 4 * BLOCK)
    assert (one.start, one.length) == (BLOCK, 1 << 40)
    with pytest.raises(Damaged, match="byte 0"):
        scan(with_size(plain[:BLOCK], b"\xff" * 12) + plain[BLOCK:])


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_what_gnu_tar_writes(form: str, tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("there is no tar command")
    long = "n" * (90 if form in ("v7", "ustar") else 150)
    top = tmp_path / "top"
    (top / "cat").mkdir(parents=True)
    for name, content in (("a.jpg", b"a" * 700), (f"cat/{long}.jpg", b"b"), ("cat/ü.txt", b"")):
        (top / name).write_bytes(content)
    os.symlink("a.jpg", top / "link.jpg")
    os.link(top / "a.jpg", top / "same.jpg")
    archive = tmp_path / "x.tar"
    command = ["tar", f"--format={form}", "--sort=name", "-cf", str(archive), "-C", str(top), "."]
    subprocess.run(command, check=True)
    data = archive.read_bytes()
    assert files(data) == [
        ("./a.jpg", b"a" * 700),
        (f"./cat/{long}.jpg", b"b"),
        ("./cat/ü.txt", b""),
    ]
    assert [(one.name, one.link) for one in scan(data) if one.link] == [
        (b"./link.jpg", b"a.jpg"),
        (b"./same.jpg", b"a.jpg"),
    ]


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_sparse_files_are_refused(form: str, tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("there is no tar command")
    with open(tmp_path / "holes.jpg", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    subprocess.run(
        ["tar", f"--format={form}", "--sparse", "-cf", "x.tar", "holes.jpg"], cwd=tmp_path, check=True
    )
    with pytest.raises(Damaged, match=r"byte 0: 'holes.jpg' is a sparse file.*--sparse"):
        scan((tmp_path / "x.tar").read_bytes())


def test_what_is_no_file_is_passed_over() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE):
            member = tarfile.TarInfo(f"none{kind!r}")
            member.type = kind
            archive.addfile(member)
        member = tarfile.TarInfo("a.jpg")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    assert files(out.getvalue()) == [("a.jpg", b"abc")]


def test_links_are_followed_from_where_they_lie() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, target, kind in (
            ("a/b/c.jpg", "../x.jpg", tarfile.SYMTYPE),
            ("a/d.jpg", "./b/../y.jpg", tarfile.SYMTYPE),
            ("a/e.jpg", "a/z.jpg", tarfile.LNKTYPE),
            ("f.jpg", "../../etc/passwd", tarfile.SYMTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    assert [one.link for one in scan(out.getvalue())] == [b"a/x.jpg", b"a/y.jpg", b"a/z.jpg", b"etc/passwd"]


ITEMS = [("a.jpg", b"x" * 600), ("b" * 120 + ".cls", b"3"), ("c.txt", b"")]


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_wherever_an_archive_is_cut_off_it_is_whole_or_refused(form: str) -> None:
    data = write(ITEMS, FORMATS[form])
    whole = scan(data)
    end = whole[-1].start + whole[-1].length
    starts = {one.head for one in whole}
    for size in range(1, end):
        if size in starts:  # nothing tells that something should follow
            assert scan(data[:size]) == [one for one in whole if one.start < size]
            continue
        complete = [one for one in whole if one.start + one.length <= size]
        if complete and size <= padded(complete[-1].start + complete[-1].length):
            assert scan(data[:size]) == complete, "of its last block, the padding alone is missing"
            continue
        with pytest.raises(Damaged, match=f"byte {size}: it ends"):
            scan(data[:size])


def test_damage_is_named_by_its_place() -> None:
    data = bytearray(write(ITEMS))
    second = scan(bytes(data))[1]
    for at in (0, 50, 124, 156, 300, 511):
        broken = bytearray(data)
        broken[second.head + at] ^= 0x15
        with pytest.raises(Damaged, match=f"byte {second.head}: no header"):
            scan(bytes(broken))
    with pytest.raises(Damaged, match="byte 0: no header"):
        scan(b"no archive at all, but as long as a header is" * 20)
    with pytest.raises(Damaged, match="compressed by gzip"):
        scan(b"\x1f\x8b" + bytes(600))


def test_checksums_of_signed_bytes_count() -> None:
    """As some old programs wrote them."""
    header = bytearray(header_of("ü.jpg".encode(), 0))
    header[148:156] = b" " * 8
    signed = sum(byte - 256 * (byte > 127) for byte in header)
    header[148:156] = b"%06o\0 " % signed
    assert [one.name for one in scan(bytes(header))] == ["ü.jpg".encode()]


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=150)


@given(
    items=st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=6),
    form=st.sampled_from(sorted(FORMATS)),
)
def test_members_are_those_that_tarfile_finds(items: list[tuple[str, bytes]], form: str) -> None:
    items = [(name.strip("/") or "x", data) for name, data in items]
    try:
        data = write(items, FORMATS[form])
    except ValueError:  # this format has no room for such a name
        return
    assert [(one.name.decode(), one.start, one.length) for one in scan(data)] == by_tarfile(data)
    assert files(data) == items


@given(name=st.binary(min_size=1, max_size=300), content=st.binary(max_size=700))
def test_headers_that_are_made_are_understood(name: bytes, content: bytes) -> None:
    name = name.replace(b"\0", b"0").strip(b"/") or b"x"
    (one,) = scan(header_of(name, len(content)) + content)
    assert (one.name, one.length) == (name, len(content))


@given(st.binary(max_size=3000))
def test_any_bytes_are_members_or_refused(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        assert all(one.start + one.length <= len(data) for one in scan(data))
