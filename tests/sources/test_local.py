"""Files and folders as sources."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import OptionError
from headrace.sources import Source, files, folder, synthetic
from headrace.sources.paths import PathTable
from headrace.sources.source import as_targets
from tests.descriptors import none_left_open


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def names_of(source: Any) -> list[str]:
    return [os.path.relpath(source.name(index), source.root) for index in range(len(source))]


def image_folder_order(root: Path, extensions: tuple[str, ...]) -> list[tuple[str, int]]:
    """What torchvision's ImageFolder documents, in the plainest way."""
    out = []
    for number, name in enumerate(sorted(entry.name for entry in os.scandir(root) if entry.is_dir())):
        for place, _, found in sorted(os.walk(root / name, followlinks=True)):
            out += [
                (os.path.join(place, file), number)
                for file in sorted(found)
                if file.lower().endswith(extensions)
            ]
    return out


def test_folders_are_classes_in_image_folder_s_order(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        *(
            "dog/b.jpg",
            "dog/a.JPG",
            "dog/sub/z.png",
            "dog/sub-2/y.png",
            "dog/sub/deep/x.webp",
            "dog/notes.txt",
        ),
        *("cat/1.jpeg", "cat/10.jpeg", "cat/2.jpeg", "ant/only.bmp", "loose.jpg"),
    )
    source = folder(root)
    want = image_folder_order(root, (".jpg", ".png", ".webp", ".jpeg", ".bmp"))
    assert [source.name(index) for index in range(len(source))] == [path for path, _ in want]
    assert source.targets.tolist() == [target for _, target in want]
    assert source.targets.dtype == np.int64
    assert source.classes == ["ant", "cat", "dog"]
    assert source.class_to_idx == {"ant": 0, "cat": 1, "dog": 2}
    assert source.read_many([1, 0]) == [b"cat/1.jpeg", b"ant/only.bmp"]


def test_names_that_start_with_a_dot_are_passed_over(tmp_path: Path) -> None:
    root = tree(tmp_path, "a/1.jpg", "a/._1.jpg", ".cache/2.jpg", "a/.thumbs/3.jpg")
    assert names_of(folder(root)) == ["a/1.jpg"]


def test_links_are_followed_unless_asked_not_to_and_never_in_circles(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", "a/1.jpg")
    elsewhere = tree(tmp_path / "other", "2.jpg")
    (root / "a" / "linked").symlink_to(elsewhere)
    (root / "a" / "up").symlink_to(root / "a")
    (root / "a" / "file.jpg").symlink_to(elsewhere / "2.jpg")
    assert names_of(folder(root)) == ["a/1.jpg", "a/file.jpg", "a/linked/2.jpg"]
    assert names_of(folder(root, followlinks=False)) == ["a/1.jpg", "a/file.jpg"]


def test_folders_without_labels(tmp_path: Path) -> None:
    root = tree(tmp_path, "b.jpg", "a.jpg", "in/c.jpg", "x.txt")
    source = folder(root, labels=False)
    assert names_of(source) == ["a.jpg", "b.jpg", "in/c.jpg"]
    assert source.targets is None
    assert names_of(folder(root, labels=False, extensions=None)) == ["a.jpg", "b.jpg", "x.txt", "in/c.jpg"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "file,label\nb.jpg,dog\na.jpg,cat\n"),
        ("labels.csv", "\ufeffb.jpg,dog\r\na.jpg,cat\r\n"),
        ("labels.tsv", "b.jpg\tdog\na.jpg\tcat\n"),
        ("labels.json", json.dumps({"b.jpg": "dog", "a.jpg": "cat"})),
        ("labels.json", json.dumps([["b.jpg", "dog"], ["a.jpg", "cat"]])),
        ("labels.json", json.dumps([{"file": "b.jpg", "label": "dog"}, {"file": "a.jpg", "label": "cat"}])),
    ],
)
def test_manifests(tmp_path: Path, name: str, text: str) -> None:
    root = tree(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    (root / name).write_text(text, encoding="utf-8")
    source = folder(root, manifest=name)
    assert names_of(source) == ["b.jpg", "a.jpg"]
    assert source.classes == ["cat", "dog"]
    assert source.targets.tolist() == [1, 0]
    assert source.read_many([0]) == [b"b.jpg"]


def test_labels_of_a_manifest_that_are_numbers_are_the_targets(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.jpg", "b.jpg")
    (root / "i.csv").write_text("a.jpg,7\nb.jpg,-2\n")
    (root / "f.json").write_text(json.dumps({"a.jpg": 0.5, "b.jpg": 2}))
    (root / "v.json").write_text(json.dumps({"a.jpg": [0.5, 1.5], "b.jpg": [2, 3]}))
    assert folder(root, manifest="i.csv").targets.tolist() == [7, -2]
    assert folder(root, manifest="f.json").targets.tolist() == [0.5, 2.0]
    assert folder(root, manifest="v.json").targets.tolist() == [[0.5, 1.5], [2, 3]]
    assert folder(root, manifest="i.csv").classes is None


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    def refused(words: str, *args: Any, **options: Any) -> None:
        with pytest.raises(OptionError, match=words):
            folder(*args, **options)

    root = tree(tmp_path / "data", "a/1.jpg", "b/readme.txt")
    refused("does not exist", tmp_path / "nowhere")
    refused("is not a folder", root / "a" / "1.jpg")
    refused("class folder .*b' has no files", root)
    refused("has a file ending in .xyz", root, extensions=[".xyz"], allow_empty=True)
    refused(r"no class folders \(and 1 files", root / "a")
    refused("manifest=", root / "a")
    refused("does not exist", root, manifest="labels.csv")
    refused("must end in", root, manifest="b/readme.txt")
    (root / "empty.csv").write_text("")
    (root / "broken.csv").write_text("a/1.jpg\n")
    (root / "broken.json").write_text('[["a/1.jpg"]]')
    refused("lists no files", root, manifest="empty.csv")
    refused("line 1", root, manifest="broken.csv")
    refused("file name and a label", root, manifest="broken.json")
    refused("labels=False", root / "b", labels=False)
    source = folder(root, allow_empty=True)
    assert (source.classes, len(source)) == (["a", "b"], 1)
    with pytest.raises(OptionError, match="empty list"):
        files([])
    with pytest.raises(OptionError, match="list of paths"):
        files("a.jpg")
    with pytest.raises(OptionError, match="1 targets for 2 samples"):
        files(["a", "b"], [1])


def test_errors_are_per_sample(tmp_path: Path) -> None:
    tree(tmp_path, "good", "gone")
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    source = files([tmp_path / name for name in ("good", "gone", "dir", "empty", "large")])
    (tmp_path / "gone").unlink()
    good, gone, place, empty, large = source.read_many(np.arange(5))
    assert good == b"good"
    assert isinstance(gone, FileNotFoundError)
    assert "gone" in str(gone)
    assert isinstance(place, IsADirectoryError)
    assert "dir" in str(place)
    assert empty == b""
    assert large == b"x" * 3_000_000
    with pytest.raises(IndexError, match=r"0\.\.4"):
        source.read_many([5])
    with pytest.raises(IndexError):
        source.read_many([-1])


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tree(tmp_path, "file") / "file"
    path.write_bytes(bytes(range(200)))
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 7)))
    assert files([path]).read_many([0]) == [bytes(range(200))]


def test_more_files_than_are_open_at_once_keep_their_order(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(100)]
    root = tree(tmp_path, *names)
    source = files([root / name for name in names])
    (tmp_path / "f70").unlink()
    got = source.read_many(range(100))
    assert isinstance(got[70], FileNotFoundError)
    assert [blob for at, blob in enumerate(got) if at != 70] == [
        name.encode() for name in names if name != "f70"
    ]


def test_an_interrupt_closes_what_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, "a", "b", "c")
    source = files([root / name for name in "abc"])

    def interrupted(*args: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "read", interrupted)
    with none_left_open(), pytest.raises(KeyboardInterrupt):
        source.read_many([0, 1, 2])


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    source = files([tree(tmp_path, "a") / "a", tmp_path, tmp_path / "none"])
    with none_left_open():
        for _ in range(20):
            source.read_many([0, 1, 2])


def test_files_are_identified_by_their_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "in/a", "in/b")
    monkeypatch.chdir(tmp_path)
    relative, absolute = (
        files(["in/a", "./in/../in/b"]),
        files([tmp_path / "in" / "a", tmp_path / "in" / "b"]),
    )
    assert relative.fingerprint() == absolute.fingerprint()
    assert relative.identity(1) == absolute.identity(1)
    assert relative.identity(1).startswith(str(tmp_path / "in" / "b") + "\0")
    assert files(["in/b", "in/a"]).fingerprint() != relative.fingerprint()
    assert files(["in/a"]).fingerprint() != relative.fingerprint()
    assert files(["in/a", "in/b"], [1, 2]).fingerprint() == relative.fingerprint()
    assert folder(tmp_path, extensions=None).fingerprint() == relative.fingerprint()


@given(
    st.lists(
        st.text(st.characters(blacklist_characters="\0/"), min_size=1).filter(lambda n: n.strip(".")),
        min_size=1,
    )
)
def test_path_tables_give_back_every_path(parts: list[str]) -> None:
    paths = [
        os.fsdecode(f"/data/{'/'.join(parts[:at])}".encode("utf-8", "surrogatepass").rstrip(b"/"))
        for at in range(1, len(parts) + 1)
    ]
    paths = [os.path.abspath(path) for path in paths]
    table = PathTable.of(paths)
    assert [table[index] for index in range(len(table))] == paths
    assert PathTable("/", (os.fsencode(path[1:]) for path in paths)).digest() == table.digest()


def test_path_tables_are_compact() -> None:
    paths = [f"/datasets/imagenet/train/n{c:08}/n{c:08}_{n}.JPEG" for c in range(50) for n in range(200)]
    assert PathTable.of(paths).nbytes / len(paths) < 40


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=20))
def test_digests_are_of_lengths_and_whole_paths(names: list[bytes]) -> None:
    whole = [b"/d/" + name for name in names]
    lengths = np.array([len(path) for path in whole], "<u4").tobytes()
    assert PathTable("/d", names).digest() == hashlib.sha256(b"paths" + lengths + b"".join(whole)).hexdigest()


def test_digests_tell_where_paths_end() -> None:
    assert PathTable("/d", [b"ab", b"c"]).digest() != PathTable("/d", [b"a", b"bc"]).digest()


@pytest.mark.parametrize(
    ("targets", "want"),
    [
        ([1, 2], np.array([1, 2], np.int64)),
        (np.array([1, 2], np.uint8), np.array([1, 2], np.int64)),
        ([1.5, 2], np.array([1.5, 2.0])),
        (np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)),
        ([True, False], np.array([True, False])),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        (None, None),
    ],
)
def test_targets_are_one_array_where_they_are_numbers(targets: Any, want: Any) -> None:
    got = as_targets(targets, 2)
    assert type(got) is type(want)
    if isinstance(want, np.ndarray):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    else:
        assert got == want


def test_targets_may_be_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    got = as_targets(torch.tensor([3, 4]), 2)
    assert isinstance(got, np.ndarray)
    assert got.tolist() == [3, 4]


def test_sources_conform_and_travel(tmp_path: Path) -> None:
    tree(tmp_path, "a/1.jpg", "b/2.jpg")
    for source in (folder(tmp_path), files([tmp_path / "a" / "1.jpg"]), synthetic(3, classes=2)):
        assert isinstance(source, Source)
        there = pickle.loads(pickle.dumps(source))
        assert there.fingerprint() == source.fingerprint()
        assert there.read_many([0]) == source.read_many([0])
        assert there.identity(0) == source.identity(0)
        assert len(there) == len(source)
    unread = files([tmp_path / "a" / "1.jpg"], encoded=False)
    assert unread.read_many([0]) == [os.fsencode(tmp_path / "a" / "1.jpg")]
