"""Archives as sources: which samples there are, what is read of them, and what is refused."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import sources
from headrace.core import tar
from headrace.core.errors import OptionError
from headrace.sources import identities
from headrace.sources.archives.build import split
from tests.sources.archives.helpers import SIZE, image, members, write_shards, write_tar, write_zip


def contents(source: Any) -> list[bytes]:
    found = source.read_many(range(len(source)))
    assert not any(isinstance(one, BaseException) for one in found), found
    return [bytes(one) for one in found]


def test_samples_and_targets(tmp_path: Path) -> None:
    source = hr.shards(write_shards(tmp_path))
    assert len(source) == SIZE and source.left_out == 0
    assert contents(source) == [image(number) for number in range(SIZE)]
    assert isinstance(source.targets, np.ndarray) and source.targets.dtype == np.int64
    assert source.targets.tolist() == [number % 3 for number in range(SIZE)]
    assert source.name(4) == "train-0001.tar:dog/0004.jpg"
    assert source.root == str(tmp_path)
    assert repr(source) == f"shards({str(tmp_path)!r}: 7 samples in 3 shards)"
    with pytest.raises(IndexError, match=r"0\.\.6"):
        source.read_many([SIZE])


def test_whatever_they_are_asked_for_by(tmp_path: Path) -> None:
    write_shards(tmp_path)
    whole = hr.shards(tmp_path)
    for urls in (
        f"{tmp_path}/train-{{0000..0002}}.tar",
        f"{tmp_path}/train-{{0000,0001,0002}}.tar",
        f"{tmp_path}/train-*.tar",
        f"file://{tmp_path}/train-000[0-2].tar",
        f"{tmp_path}/",
        [tmp_path / "train-0000.tar", f"{tmp_path}/train-{{0001..0002}}.tar"],
    ):
        source = hr.shards(urls)
        assert source.fingerprint() == whole.fingerprint(), urls
        assert source.listing() == whole.listing()
    turned = hr.shards(f"{tmp_path}/train-{{0002..0000}}.tar")
    assert turned.fingerprint() != whole.fingerprint()
    assert sorted(map(bytes, identities(turned))) == sorted(map(bytes, identities(whole)))


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("cls", [0, 1, 2, 0, 1, 2, 0]),
        ("json:label.id", list(range(SIZE))),
        ("json:label.name", [f"n{number}" for number in range(SIZE)]),
        ("json:weight", [0.5] * SIZE),
        ("txt", [f"picture № {number}" for number in range(SIZE)]),
        (None, None),
    ],
)
def test_targets(tmp_path: Path, target: str | None, values: Any) -> None:
    write_shards(tmp_path)
    hr.shards(tmp_path, target=None)  # there are indexes, without this target
    for _ in range(2):
        found = hr.shards(tmp_path, target=target).targets
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == values
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    found = hr.shards(write_shards(fresh), target=target).targets
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == values


def test_classes_by_name(tmp_path: Path) -> None:
    items = [
        (f"{at}.{ext}", data)
        for at, name in enumerate(["owl", "cat", "owl"])
        for ext, data in (("jpg", image(at)), ("cls", name.encode()))
    ]
    source = hr.shards(write_tar(tmp_path / "x.tar", items))
    assert source.classes == ["cat", "owl"] and source.targets.tolist() == [1, 0, 1]
    assert source.class_to_idx == {"cat": 0, "owl": 1}


def test_targets_that_are_missing(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [*members(range(3)), ("dog/0009.jpg", image(9))])
    with pytest.raises(OptionError, match=r"'dog/0009' of 'x.tar' has no 'cls'.*target=None"):
        hr.shards(path)
    assert len(hr.shards(path, target=None)) == 4
    with pytest.raises(OptionError, match=r"'dog/0000' of 'x.tar' has no 'cap'"):
        hr.shards(path, target="cap")
    with pytest.raises(OptionError, match=r"shard .*x.tar.*'dog/0000.json' has no 'json:nothing' \(KeyError"):
        hr.shards(path, target="json:nothing")
    for wrong in ("", ":x", "json:", "cls:x"):
        with pytest.raises(OptionError, match="target="):
            hr.shards(path, target=wrong)
    bare = write_tar(tmp_path / "bare.tar", [("a.jpg", image(1))])
    assert hr.shards(bare).targets is None


def test_which_member_is_read(tmp_path: Path) -> None:
    items = [("a.seg.png", b"mask"), ("a.png", b"2"), ("a.JPG", b"1"), ("b.png", b"3"), ("c.txt", b"4")]
    path = write_tar(tmp_path / "x.tar", items)
    source = hr.shards(path)
    assert contents(source) == [b"1", b"3"] and source.left_out == 1
    assert source.name(0) == "x.tar:a.JPG"
    assert contents(hr.shards(path, image="seg.png")) == [b"mask"]
    assert contents(hr.shards(path, image=".PNG")) == [b"2", b"3"]
    with pytest.raises(OptionError, match=r"image='npy'.*jpg, png, seg\.png, txt"):
        hr.shards(path, image="npy")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("x.y/a.b/c.seg.png", ("x.y/a.b/c", "seg.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("a", None),
        (".hidden.jpg", None),
        ("x/._a.jpg", None),
        ("x.d/a", None),
        ("a.", None),
    ],
)
def test_names_are_split_by_webdatasets_rule(name: str, parts: tuple[str, str] | None) -> None:
    assert split(name.encode()) == (None if parts is None else (parts[0].encode(), parts[1].encode()))


def test_members_of_a_sample_may_lie_apart(tmp_path: Path) -> None:
    """As ``tar`` packs a folder in the order of its directory."""
    items = members(range(4))
    path = write_tar(tmp_path / "x.tar", [*items[::4], *items[1::4], *items[2::4], *items[3::4]])
    assert contents(hr.shards(path)) == [image(number) for number in range(4)]
    assert hr.shards(path).targets.tolist() == [0, 1, 2, 0]


def test_a_key_that_comes_again_is_another_sample(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3"), ("a.cls", b"9")])
    source = hr.shards(path, target=None)
    assert contents(source) == [b"1", b"2", b"3"]
    twice = write_tar(tmp_path / "y.tar", [("a.jpg", b"1"), ("a.jpg", b"2")])
    with pytest.raises(OptionError, match=r"y.tar.*byte 1536: 'a.jpg' is there twice"):
        hr.shards(twice)


def test_notes_of_a_shard_are_no_samples(tmp_path: Path) -> None:
    items = [("__key__.jpg", b"?"), ("__x__/a.jpg", b"?"), ("__a.jpg", b"1"), ("b__/c.jpg", b"2")]
    assert contents(hr.shards(write_tar(tmp_path / "x.tar", items))) == [b"1", b"2"]


def test_links_are_what_they_lead_to(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, data in (("./a/1.jpg", b"one"), ("a/blob", b"blob")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target, kind in (
            ("b/2.jpg", "../a/1.jpg", tarfile.SYMTYPE),
            ("b/3.jpg", "b/2.jpg", tarfile.LNKTYPE),
            ("b/4.jpg", "a/blob", tarfile.LNKTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    source = hr.shards(tmp_path / "x.tar")
    assert contents(source) == [b"one", b"one", b"one", b"blob"]
    assert [source.name(at) for at in range(4)] == [
        f"x.tar:{n}" for n in ("./a/1.jpg", "b/2.jpg", "b/3.jpg", "b/4.jpg")
    ]
    assert source.identity(0) == source.identity(1), "the same bytes are one sample"
    with tarfile.open(tmp_path / "y.tar", "w") as archive:
        member = tarfile.TarInfo("a.jpg")
        member.type, member.linkname = tarfile.SYMTYPE, "/data/b.jpg"
        archive.addfile(member)
    with pytest.raises(OptionError, match=r"'a.jpg' is a link to 'data/b.jpg', which is no member.*tar -h"):
        hr.shards(tmp_path / "y.tar")


# -- folders in archives --------------------------------------------------------------------------------------


def tree(root: Path) -> Path:
    for number, name in enumerate(
        [
            "dog/b.jpg",
            "dog/a.JPEG",
            "cat/x/2.png",
            "cat/1.jpg",
            "cat/x-y/0.jpg",
            "cat-big/0.jpg",
            "owl/.hidden.jpg",
            "owl/z.v2.jpg",
        ]
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"%d" % number)
    (root / "dog" / "notes.txt").write_bytes(b"no image")
    (root / "loose.jpg").write_bytes(b"no class")
    return root


@pytest.mark.parametrize("kind", ["tar", "zip", "deflated"])
@pytest.mark.parametrize("top", ["", "imagenet/train/"])
def test_folders_in_archives_are_as_folders(tmp_path: Path, kind: str, top: str) -> None:
    root = tree(tmp_path / "root")
    there = hr.folder(root)
    items = [
        (f"{top}{one.relative_to(root)}", one.read_bytes())
        for one in sorted(root.rglob("*"))
        if one.is_file()
    ]
    items = items[::-1]
    if kind == "tar":
        write_tar(tmp_path / "x.tar", items[:3])
        write_tar(tmp_path / "y.tar", items[3:])
    else:
        write_zip(tmp_path / "x.zip", items, zipfile.ZIP_STORED if kind == "zip" else zipfile.ZIP_DEFLATED)
    urls = [tmp_path / "x.tar", tmp_path / "y.tar"] if kind == "tar" else tmp_path / "x.zip"
    for inside in ("", top):
        source = hr.shards(urls, layout="folder", inside=inside)
        assert contents(source) == contents(there)
        assert source.classes == there.classes and source.targets.tolist() == there.targets.tolist()
        assert [source.name(at).partition(":")[2] for at in range(len(source))] == [
            top + os.path.relpath(there.name(at), root) for at in range(len(there))
        ]
    assert hr.shards(urls, layout="folder", target=None).targets is None
    only = hr.shards(urls, layout="folder", inside=f"{top}cat")
    assert only.classes == ["x", "x-y"]


def test_a_single_folder_is_a_class(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", [("data/dog/1.jpg", b"1"), ("data/dog/2.jpg", b"2")])
    assert hr.shards(path, layout="folder").classes == ["dog"]


def test_parts_of_archives(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", members())
    source = hr.shards(path, inside="cat/")
    assert contents(source) == [image(1), image(3), image(5)] and source.targets.tolist() == [1, 0, 2]
    assert [source.identity(at) for at in range(3)] == [hr.shards(path).identity(at) for at in (1, 3, 5)]
    with pytest.raises(OptionError, match=r"below inside='bird'"):
        hr.shards(path, inside="bird")


# -- zip ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip(tmp_path: Path, method: int) -> None:
    source = hr.shards(write_zip(tmp_path / "x.zip", members(), method), target="json:label.id")
    assert contents(source) == [image(number) for number in range(SIZE)]
    assert source.targets.tolist() == list(range(SIZE))
    stored = method == zipfile.ZIP_STORED
    assert all((one is not None) == stored for one in source.locate(range(SIZE)))
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.identity(at) for at in range(SIZE)] == [source.identity(at) for at in range(SIZE)]
    assert len({copy.identity(at) for at in range(SIZE)}) == SIZE


def test_zip_of_the_command_and_of_streams(tmp_path: Path) -> None:
    """Those that say sizes behind the members, and have more to say in the members' own headers."""
    for name, data in members():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    try:
        subprocess.run(["zip", "-q", "-r", "x.zip", "cat", "dog"], cwd=tmp_path, check=True)
        assert sorted(contents(hr.shards(tmp_path / "x.zip"))) == sorted(image(at) for at in range(SIZE))
        with open(tmp_path / "y.zip", "wb") as out:
            subprocess.run(["zip", "-q", "-r", "-", "cat", "dog"], cwd=tmp_path, check=True, stdout=out)
        assert sorted(contents(hr.shards(tmp_path / "y.zip"))) == sorted(image(at) for at in range(SIZE))
    except FileNotFoundError:
        pytest.skip("there is no zip command")


def test_large_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 5)
    path = write_zip(tmp_path / "x.zip", members())
    assert b"PK\x06\x06" in path.read_bytes(), "zip64"
    assert contents(hr.shards(path)) == [image(number) for number in range(SIZE)]


def test_zips_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", members())
    data = path.read_bytes()
    (tmp_path / "cut.zip").write_bytes(data[:-100])
    with pytest.raises(OptionError, match=r"cut.zip.*no directory of a zip archive"):
        hr.shards(tmp_path / "cut.zip")
    at = data.index(b"PK\x01\x02")
    (tmp_path / "secret.zip").write_bytes(data[: at + 8] + b"\x01" + data[at + 9 :])
    with pytest.raises(OptionError, match=r"secret.zip.*'dog/0000.jpg' is encrypted"):
        hr.shards(tmp_path / "secret.zip")
    (tmp_path / "odd.zip").write_bytes(data[: at + 10] + b"\x5d" + data[at + 11 :])
    with pytest.raises(OptionError, match=r"packed by method 93"):
        hr.shards(tmp_path / "odd.zip")
    wrong = data.replace(b"PK\x03\x04", b"PK\x03\x05", 1)
    (tmp_path / "wrong.zip").write_bytes(wrong)
    with pytest.raises(OptionError, match=r"byte 0: no header of a member"):
        hr.shards(tmp_path / "wrong.zip")


def test_a_deflated_member_that_is_damaged_is_a_bad_sample(tmp_path: Path) -> None:
    path = write_zip(
        tmp_path / "x.zip", [("a.jpg", b"x" * 5000), ("b.jpg", b"y" * 5000)], zipfile.ZIP_DEFLATED
    )
    source = hr.shards(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"a.jpg") + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    first, second = source.read_many([0, 1])
    assert isinstance(first, ValueError) and "inflated" in str(first)
    assert second == b"y" * 5000


# -- what is refused ------------------------------------------------------------------------------------------


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", members())
    for name in ("x.tar.gz", "x.tgz", "x.tar.zst"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(OptionError, match="compressed archive cannot be read; unpack it once"):
            hr.shards(tmp_path / name)
    (tmp_path / "z.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(OptionError, match=r"z.tar.*compressed by gzip.*unpack it once"):
        hr.shards(tmp_path / "z.tar")
    (tmp_path / "empty").mkdir()
    for wrong, message in (
        ({"urls": tmp_path / "none.tar"}, "none.tar.*no such file"),
        ({"urls": f"{tmp_path}/no-*.tar"}, "no file has such a name"),
        ({"urls": tmp_path / "empty"}, r"no \.tar nor \.zip file below it"),
        ({"urls": []}, "empty list"),
        ({"urls": [path, "s3://b/x.tar"]}, "one place"),
        ({"urls": path, "layout": "tree"}, "'samples' or 'folder'"),
        ({"urls": path, "layout": "folder", "image": "jpg"}, "layout='samples'"),
        ({"urls": path, "fields": "jpg"}, "a list of names"),
        ({"urls": path, "fields": ["jpg"], "image": "jpg"}, "not both"),
        ({"urls": path, "image": ""}, "image=''"),
        ({"urls": path, "max_bytes": 0}, "max_bytes"),
    ):
        with pytest.raises(OptionError, match=message):
            hr.shards(**wrong)
    with pytest.raises(OptionError, match=r"byte 700: it ends in the middle of 'dog/0000.jpg'"):
        (tmp_path / "cut.tar").write_bytes(path.read_bytes()[:700])
        hr.shards(tmp_path / "cut.tar")
    assert not list(tmp_path.glob("cut.tar.*")), "no index is left of it"


def test_a_member_that_is_too_large_is_a_bad_sample(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.jpg", bytes(5000)), ("b.jpg", b"1")])
    large, small = hr.shards(path, max_bytes=4096).read_many([0, 1])
    assert isinstance(large, OSError) and "pass max_bytes=" in str(large) and small == b"1"


def test_a_shard_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", members())
    source = hr.shards(path)
    before = source.fingerprint()
    write_tar(path, members(range(3)))
    os.utime(path, ns=(5, 5))
    with pytest.raises(OptionError, match=r"x.tar' was changed since the source was made"):
        source.fingerprint()
    again = hr.shards(path)
    assert len(again) == 3 and again.fingerprint() != before


def test_passwords_are_shown_nowhere(tmp_path: Path) -> None:
    from headrace.sources.archives.patterns import public

    url = "https://user:secret@host/data/x.tar?X-Amz-Signature=abc"
    assert public(url) == "https://host/data/x.tar"
    with pytest.raises(OptionError) as caught:
        hr.shards("https://user:secret@host/data/x.tar.gz?sig=abc")
    assert "secret" not in str(caught.value) and "abc" not in str(caught.value)


# -- several fields -------------------------------------------------------------------------------------------


def test_fields_are_one_piece_of_the_archive(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", members())
    source = hr.shards(path, fields=["json", "jpg"])
    assert sources.locating(source) is source
    for at, (found, place) in enumerate(
        zip(source.read_many(range(SIZE)), source.locate(range(SIZE)), strict=True)
    ):
        assert place is not None, "members of a sample lie together"
        assert path.read_bytes()[place.start : place.start + (place.length or 0)] == found
        with tarfile.open(fileobj=io.BytesIO(found + bytes(1024 + -len(found) % 512))) as piece:
            inner = {one.name.partition(".")[2]: piece.extractfile(one).read() for one in piece}  # type: ignore[union-attr]
        assert inner["jpg"] == image(at) and b'"id": %d,' % at in inner["json"]
    assert source.identity(0) != hr.shards(path).identity(0)
    assert source.fingerprint() != hr.shards(path).fingerprint()


def taken_apart(data: bytes) -> dict[str, bytes]:
    found = tar.members(lambda start, length: data[start : start + length], len(data))
    return {one.name.decode(): data[one.start : one.start + one.length] for one in found}


def test_fields_that_lie_apart_are_put_together(tmp_path: Path) -> None:
    items = [
        *[("a.jpg", b"1" * 700), ("a.cls", b"0"), ("a.json", b"{}")],  # a little in between
        *[("b.jpg", b"2"), ("b.mp4", bytes(100_000)), ("b.json", b"[]")],  # much
        *[("c.jpg", b"3"), ("d.jpg", b"4"), ("c.json", b"null"), ("d.json", b"true")],  # another sample
    ]
    path = write_tar(tmp_path / "x.tar", items)
    source = hr.shards(path, fields=["jpg", "json"], target=None)
    a, b, c, d = source.read_many(range(4))
    assert taken_apart(a) == {"a.jpg": b"1" * 700, "a.cls": b"0", "a.json": b"{}"}
    assert taken_apart(b) == {"b.jpg": b"2", "b.json": b"[]"} and len(b) < 5000
    assert taken_apart(c) == {"c.jpg": b"3", "c.json": b"null"}
    assert taken_apart(d) == {"d.jpg": b"4", "d.json": b"true"}
    assert [one is not None for one in source.locate(range(4))] == [True, False, False, False]
    assert len({source.identity(at) for at in range(4)}) == 4
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read_many(range(4)) == [a, b, c, d]


def test_fields_that_are_links_or_packed_have_headers_made_for_them(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        member = tarfile.TarInfo("a.jpg")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"one"))
        link = tarfile.TarInfo("a.seg.png")
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
        archive.addfile(link)
    (found,) = hr.shards(tmp_path / "x.tar", fields=["jpg", "seg.png"]).read_many([0])
    assert taken_apart(found) == {"a.jpg": b"one", "a.seg.png": b"one"}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = write_zip(tmp_path / "x.zip", [("ä/b.jpg", b"x" * 900), ("ä/b.txt", b"t")], method)
        os.utime(path, ns=(method, method))
        framed, plain = hr.shards(path, fields=["jpg"]), hr.shards(path)
        assert taken_apart(framed.read_many([0])[0]) == {"ä/b.jpg": b"x" * 900}
        assert framed.identity(0) != plain.identity(0), "the same bytes, but not as a sample"


# -- properties -----------------------------------------------------------------------------------------------

KEYS = st.text("ab./", min_size=1, max_size=5)
EXTS = st.sampled_from(["jpg", "png", "cls", "seg.png", "txt"])


@given(
    names=st.lists(st.tuples(KEYS, EXTS), max_size=12),
    contents_=st.randoms(use_true_random=False),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_samples_are_what_the_names_say(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str]], contents_: Any, form: int
) -> None:
    """Against a reading of the rule that is as simple as can be."""
    path = tmp_path_factory.getbasetemp() / "property.tar"
    items = [
        (f"{key}.{ext}".lstrip("/"), contents_.randbytes(contents_.randrange(1200))) for key, ext in names
    ]
    items = [one for one in items if one[0]]
    groups: list[tuple[str, dict[str, bytes]]] = []
    for name, data in items:
        folder, slash, last = name.rpartition("/")
        base, dot, ext = last.partition(".")
        if not base or not dot or not ext:
            continue
        key = folder + slash + base
        mine = [group for group in groups if group[0] == key]
        if mine and ext not in mine[-1][1]:
            mine[-1][1][ext] = data
        elif mine and mine[-1] is groups[-1]:
            return  # is there twice
        else:
            groups.append((key, {ext: data}))
    wanted = [group["jpg"] for _, group in groups if "jpg" in group]
    write_tar(path, items, form)
    path.with_name("property.tar.hridx").unlink(missing_ok=True)
    if not wanted:
        with pytest.raises(OptionError):
            hr.shards(path, image="jpg", target=None)
        return
    assert contents(hr.shards(path, image="jpg", target=None)) == wanted
