"""Fetching, sharing, evicting: what a store does, against a real web server."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.errors import HeadraceError, OptionError
from headrace.datastore import (
    DataError,
    FetchFailed,
    NoRoom,
    NoSuchDataset,
    Progress,
    SourceChanged,
    Store,
    evict,
    overview,
    pin,
    repair,
    set_quota,
    stored,
    verify,
)
from headrace.datastore.care import Dataset
from headrace.sources.local import FileReader
from tests.datastore.archives import KINDS, SINGLE, read_tree, some_files, tar, zipped
from tests.datastore.looks import check_still, disk
from tests.datastore.server import Web

PART = 64 << 10


def info(store: Store, name: str) -> Dataset:
    return next(one for one in overview(store).datasets if one.name == name)


def gets(server: Web, path: str) -> int:
    """Requests for more than a look at it."""
    return sum(1 for asked, span in server.log if asked == path and span not in ("bytes=0-0", "bytes=0-511"))


@pytest.mark.parametrize("kind", KINDS)
def test_archives_are_known_by_what_is_in_them(kind: str, root: Path, server: Web) -> None:
    if "zst" in kind:
        pytest.importorskip("zstandard")
    files = some_files()
    server.files["download"] = KINDS[kind](files)
    with Store(root) as store:
        path = store.add("some", [server.url("download")])
        assert read_tree(path) == files
        assert all(stat.S_IMODE(one.stat().st_mode) == 0o444 for one in path.rglob("*.bin"))
        assert info(store, "some").files == len(files)
    check_still(root)


@pytest.mark.parametrize("kind", SINGLE)
def test_a_single_file_is_decompressed(kind: str, root: Path, server: Web) -> None:
    if kind == "zst":
        pytest.importorskip("zstandard")
    server.files[f"train.idx.{kind}"] = SINGLE[kind](b"numbers" * 5000)
    with Store(root) as store:
        assert read_tree(store.add("one", [server.url(f"train.idx.{kind}")])) == {
            "train.idx": b"numbers" * 5000
        }
    check_still(root)


def test_files_of_a_zip_kind_that_nobody_wants_unpacked_are_kept(root: Path, server: Web) -> None:
    server.files["model.pt"] = data = zipped({"data.pkl": b"x"})
    with Store(root) as store:
        assert read_tree(store.add("model", [server.url("model.pt")])) == {"model.pt": data}


def test_a_folder_of_shards_is_kept_and_unpacked_when_asked(root: Path, tmp_path: Path) -> None:
    shards = {f"train/{n:05}.tar": tar(some_files(4, seed=n)) for n in range(3)}
    for name, data in shards.items():
        (tmp_path / "bucket" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bucket" / name).write_bytes(data)
    with Store(root) as store:
        assert read_tree(store.add("shards", [str(tmp_path / "bucket")])) == shards
        unpacked = store.add("open", [str(tmp_path / "bucket")], unpack=True)
        assert (unpacked / "train" / "00001" / "class_0" / "0000.bin").exists()
        assert len([at for at, _, names in os.walk(unpacked, followlinks=True) for _ in names]) == 12
        assert read_tree(store.use("shards")) == shards
    check_still(root)


def test_several_urls_are_one_dataset(root: Path, server: Web) -> None:
    server.files.update({"a.csv": b"1,2\n", "b.tar": tar(some_files(3))})
    with Store(root) as store:
        path = store.add("both", [server.url("a.csv"), server.url("b.tar")], unpack=True)
        assert (path / "a.csv").read_bytes() == b"1,2\n"
        assert read_tree(path / "b") == some_files(3)
    check_still(root)


@pytest.mark.parametrize("how", ["no ranges", "no etags", "no lengths", "nothing"])
def test_servers_that_know_less_are_read_all_the_same(how: str, root: Path, server: Web) -> None:
    server.ranges = how not in ("no ranges", "nothing")
    server.etags = how not in ("no etags", "nothing")
    server.lengths = how not in ("no lengths", "nothing")
    files = some_files(40, 10_000)
    server.files["some.tar.gz"] = KINDS["tar.gz"](files)
    with Store(root, part=PART) as store:
        assert read_tree(store.add("some", [server.url("some.tar.gz")])) == files
    check_still(root)


def test_what_is_cut_off_or_busy_is_asked_for_again(root: Path, server: Web) -> None:
    server.files["some.tar"] = tar(some_files(40, 10_000))
    server.cut_after, server.cuts, server.busy = 20_000, 6, 4
    with Store(root, part=PART) as store:
        assert read_tree(store.add("some", [server.url("some.tar")])) == some_files(40, 10_000)
    check_still(root)


def interrupt(root: Path, server: Web, name: str = "some") -> None:
    """Begin to fetch ``some.tar``, and end by Ctrl-C when five parts have come."""
    server.gate, server.free = threading.Event(), server.begun + 6 * PART

    def show(now: Progress) -> None:
        if now.done >= 5 * PART:
            assert server.gate is not None
            server.gate.set()
            raise KeyboardInterrupt

    with Store(root, part=PART) as store, pytest.raises(KeyboardInterrupt):
        store.add(name, [server.url("some.tar")], show=show)
    with Store(root) as store:
        assert info(store, name).state == "interrupted"


def test_an_interrupted_download_goes_on_where_it_was(root: Path, server: Web) -> None:
    server.files["some.tar"] = data = tar(some_files(64, 16_000))
    interrupt(root, server)
    before = len(server.log)
    with Store(root, part=PART) as store:
        assert read_tree(store.use("some")) == some_files(64, 16_000)
    asked = [span for _, span in server.log[before:] if span != "bytes=0-0"]
    assert 0 < len(asked) <= -(-len(data) // PART) - 5
    check_still(root)


def test_an_object_that_changed_meanwhile_is_begun_anew(root: Path, server: Web) -> None:
    server.files["some.tar"] = tar(some_files(64, 16_000))
    server.free = 5 * PART
    server.then = lambda: server.files.update({"some.tar": tar(some_files(64, 16_000, seed=2))})
    with Store(root, part=PART) as store:
        assert read_tree(store.add("some", [server.url("some.tar")])) == some_files(64, 16_000, seed=2)
    check_still(root)


def test_a_local_file_that_changed_meanwhile_is_begun_anew(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files and buckets it is seen in the end only: what is there is read, whichever version it is."""
    source, read = tmp_path / "some.tar", FileReader.read
    source.write_bytes(tar(some_files(64, 16_000)))
    calls = []

    def change(self: FileReader, locations: Any) -> Any:
        calls.append(locations)
        if len(calls) == 5:
            source.write_bytes(tar(some_files(64, 16_000, seed=2)))
            os.utime(source, (1, 1))
        return read(self, locations)

    monkeypatch.setattr(FileReader, "read", change)
    with Store(root, part=PART) as store:
        assert read_tree(store.add("some", [str(source)])) == some_files(64, 16_000, seed=2)
    check_still(root)


def test_what_was_left_of_another_version_is_not_used(root: Path, server: Web) -> None:
    server.files["some.tar"] = tar(some_files(64, 16_000))
    interrupt(root, server)
    server.files["some.tar"] = tar(some_files(64, 16_000, seed=3))
    with Store(root, part=PART) as store:
        assert read_tree(store.use("some")) == some_files(64, 16_000, seed=3)
    check_still(root)


def test_damaged_leftovers_are_fetched_again(root: Path, server: Web) -> None:
    server.files["some.tar"] = tar(some_files(64, 16_000))
    interrupt(root, server)
    (left,) = root.glob("incoming/*/data.part")
    with left.open("r+b") as file:  # as after a power cut: the list of parts is there, their bytes are not
        file.seek(100)
        file.write(bytes(2 * PART))
    log = next(root.glob("incoming/*/parts.log"))
    log.write_bytes(log.read_bytes() + b"torn")
    with Store(root, part=PART) as store:
        assert read_tree(store.use("some")) == some_files(64, 16_000)
    check_still(root)


def test_what_was_left_in_the_middle_goes_first_when_room_is_needed(root: Path, server: Web) -> None:
    server.files["some.tar"] = tar(some_files(64, 16_000))
    with Store(root, cooldown=0) as store:
        fill(store, server, "one")
    interrupt(root, server)
    with Store(root, quota="800KiB", cooldown=0) as store:
        fill(store, server, "two", size=400_000)
        states = {one.name: one.state for one in overview(store).datasets}
    assert states == {"one": "here", "some": "evicted", "two": "here"}
    check_still(root, 800 << 10)


def test_the_same_content_is_stored_once(root: Path, server: Web) -> None:
    server.files["a.tar"] = server.files["mirror.tar"] = tar(some_files(20, 9000))
    with Store(root) as store:
        one = store.add("one", [server.url("a.tar")])
        size = overview(store).bytes
        asked = gets(server, "a.tar")
        two = store.add("two", [server.url("a.tar")])
        assert gets(server, "a.tar") == asked  # nothing was fetched: same URL, same ETag
        three = store.add("three", [server.url("mirror.tar")])
        assert overview(store).bytes == size
        assert one.resolve() == two.resolve() == three.resolve()
        assert info(store, "one").shared == info(store, "one").bytes
    with Store(root) as store:
        assert evict(store, "one", forget=True) == 0
        assert read_tree(store.use("two")) == some_files(20, 9000)
    check_still(root)


def test_a_dataset_that_is_there_is_not_fetched_again(root: Path, server: Web) -> None:
    server.files["a.tar"] = tar(some_files())
    with Store(root) as store:
        store.add("one", [server.url("a.tar")])
        asked = len(server.log)
        assert read_tree(store.add("one", [server.url("a.tar")])) == some_files()
        assert len(server.log) == asked
        with pytest.raises(DataError, match="there is a dataset 'one' already"):
            store.add("one", [server.url("b.tar")])
        with pytest.raises(OptionError, match="name="):
            store.add("../x", [server.url("a.tar")])
        with pytest.raises(NoSuchDataset, match="there are one"):
            store.use("two")


def test_evicted_datasets_are_fetched_again_if_they_are_what_they_were(root: Path, server: Web) -> None:
    server.files["a.tar"] = tar(some_files())
    with Store(root) as store:
        path = store.add("one", [server.url("a.tar")])
    with Store(root) as store:
        assert evict(store, "one") > 0
        assert not path.exists() and disk(root) == 0
        assert info(store, "one").state == "evicted"
        assert read_tree(store.use("one")) == some_files()
    for data in (tar(some_files(seed=5)), tar(some_files(size=4000))):
        with Store(root) as store:
            evict(store, "one")
            server.files["a.tar"] = data
            with pytest.raises(SourceChanged, match="headrace data remove one"):
                store.use("one")
    check_still(root)


def test_files_that_somebody_deleted_are_fetched_again(root: Path, server: Web) -> None:
    server.files["a.tar"] = tar(some_files())
    with Store(root) as store:
        path = store.add("one", [server.url("a.tar")])
        shutil.rmtree(path.resolve().parent)
        assert read_tree(store.use("one")) == some_files()
    check_still(root)


def test_what_a_killed_process_put_in_its_place_before_it_was_in_the_books_goes(
    root: Path, server: Web
) -> None:
    server.files["some"] = data = os.urandom(5 * PART)
    key = f"{hashlib.sha256(data).hexdigest()}.raw"

    def put(name: str) -> None:
        (root / "content" / name).mkdir(parents=True)
        (root / "content" / name / "object").write_bytes(b"half")

    put("0123.raw")
    server.free, server.then = 2 * PART, lambda: put(key)
    with Store(root, part=PART) as store:
        assert read_tree(store.add("some", [server.url("some")])) == {"some": data}
    check_still(root)


def test_a_wrong_url_says_so(root: Path, server: Web, tmp_path: Path) -> None:
    with Store(root) as store:
        with pytest.raises(FetchFailed, match=r"404.*check the URL"):
            store.add("one", [server.url("nothing.tar")])
        with pytest.raises(DataError, match="web servers do not say"):
            store.add("one", [server.url("folder/")])
        with pytest.raises(HeadraceError, match="No such file"):
            store.add("one", [str(tmp_path / "nothing")])
        assert not overview(store).datasets
    check_still(root)


def test_secrets_are_not_kept(root: Path, server: Web) -> None:
    server.files["a.tar"] = tar(some_files())
    url = server.url("a.tar").replace("http://", "http://me:word@") + "?X-Amz-Signature=abc&v=1"
    with Store(root) as store:
        store.add("one", [url])
        assert info(store, "one").urls == [server.url("a.tar") + "?v=1"]
    with Store(root) as store:
        evict(store, "one")
        with pytest.raises(DataError, match="signed URL or a password"):
            store.use("one")
        assert read_tree(store.add("one", [url])) == some_files()
        server.files.clear()
        with pytest.raises(FetchFailed) as failed:
            store.add("two", [url])
    everything = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    for secret in (b"word", b"abc"):
        assert secret not in everything and secret.decode() not in str(failed.value)


# -- room ----------------------------------------------------------------------------------------------------


def fill(store: Store, server: Web, *names: str, size: int = 200_000) -> None:
    for name in names:
        server.files[name] = os.urandom(size)
        store.add(name, [server.url(name)])


def test_what_does_not_fit_is_refused_before_anything_is_fetched(root: Path, server: Web) -> None:
    with Store(root, quota="1MiB", cooldown=0) as store:
        fill(store, server, "used")
        with Store(root, quota="1MiB", cooldown=0) as other:
            fill(other, server, "free")
            fill(other, server, "pinned")
            pin(other, "pinned")
        with Store(root, quota="1MiB", cooldown=600) as patient:
            server.files["big"] = bytes(900_000)
            with pytest.raises(NoRoom) as refused:
                patient.add("big", [server.url("big")])
        text = str(refused.value)
        assert f"in use    used, 216.0 KiB, by process {os.getpid()}" in text
        assert "pinned    pinned" in text and "just used free" in text
        assert "headrace data unpin pinned" in text and "headrace data evict free" in text
        assert gets(server, "big") == 0
        assert [one.name for one in overview(store).datasets] == ["free", "pinned", "used"]
        assert all(one.state == "here" for one in overview(store).datasets)
    check_still(root)


def test_what_was_used_least_goes_first(root: Path, server: Web) -> None:
    def reopened() -> Store:
        return Store(root, quota="700KiB", cooldown=0)

    with reopened() as store:
        fill(store, server, "a", "b", "c")
    with reopened() as store:  # as if it had been in the past
        with store.keeper.books.change() as books:
            for name, days in (("a", 30), ("b", 60), ("c", 0)):
                books.execute(
                    "UPDATE content SET last = last - ?, earlier = earlier - ? WHERE key = "
                    "(SELECT key FROM object WHERE dataset = ?)",
                    (days, days * store.keeper.policy.step, name),
                )
        fill(store, server, "d")
        assert {one.name: one.state for one in overview(store).datasets} == {
            "a": "here", "b": "evicted", "c": "here", "d": "here",
        }  # fmt: skip
    with reopened() as store:
        pin(store, "a")
        lease = reopened()
        lease.use("c")
        fill(store, server, "e")
        states = {one.name: one.state for one in overview(store).datasets}
        assert states["a"] == states["c"] == "here" and states["d"] == "evicted"
        lease.close()
    check_still(root, 700 << 10)


def test_pinned_and_used_datasets_are_not_evicted_by_hand(root: Path, server: Web) -> None:
    with Store(root) as store:
        fill(store, server, "one")
        pin(store, "one")
    with Store(root) as store:
        with pytest.raises(DataError, match="headrace data unpin one"):
            evict(store, "one")
        pin(store, "one", stays=False)
        with Store(root) as job:
            job.use("one")
            with pytest.raises(DataError, match=f"in use, by process {os.getpid()}"):
                evict(store, "one")
        assert evict(store, "one") > 0


def test_an_archive_that_swells_is_bounded_by_the_quota(root: Path, server: Web) -> None:
    server.files["bomb.tar.gz"] = KINDS["tar.gz"]({"zeros": bytes(30 << 20)})
    assert len(server.files["bomb.tar.gz"]) < 100_000
    with Store(root, quota="4MiB", cooldown=0) as store:
        fill(store, server, "one")
        with pytest.raises(NoRoom, match="while it is unpacked"):
            store.add("bomb", [server.url("bomb.tar.gz")])
        assert [one.name for one in overview(store).datasets] == ["one"]
    check_still(root, 4 << 20)


def test_the_size_of_a_zip_is_known_before_it_is_fetched(root: Path, server: Web) -> None:
    server.files["large.zip"] = zipped({"zeros": bytes(30 << 20)})
    with Store(root, quota="4MiB") as store:
        with pytest.raises(NoRoom, match=r"'large' needs 30\.\d MiB"):
            store.add("large", [server.url("large.zip")])
        assert not overview(store).datasets
    assert not list(root.glob("incoming/*"))


def test_the_quota_is_kept_in_the_books_and_the_environment_counts_more(
    root: Path, server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(root) as store:
        usual = overview(store).quota
        assert set_quota(store, "3MiB") == 3 << 20
    with Store(root) as store:
        assert overview(store).quota == 3 << 20
        monkeypatch.setenv("HEADRACE_DATA_QUOTA", "2MiB")
        assert overview(store).quota == 2 << 20
        monkeypatch.delenv("HEADRACE_DATA_QUOTA")
        assert abs(set_quota(store, None) - usual) < usual // 2
        with pytest.raises(OptionError):
            set_quota(store, "much")


def test_a_full_disk_leaves_nothing_behind(root: Path, server: Web) -> None:
    """A limit on the size of files stands for it: the same call fails. (Python ignores the signal.)"""
    server.files["one.tar"] = tar({"a": os.urandom(3 << 20), "b": b"x"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(root) as store:
        store.keeper.tidy()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
        try:
            with pytest.raises(NoRoom, match="could not be written"):
                store.add("one", [server.url("one.tar")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not overview(store).datasets
    assert disk(root) == 0
    check_still(root)


# -- damage --------------------------------------------------------------------------------------------------


def flip(path: Path, at: int = 7) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_bit_is_found_and_mended(root: Path, server: Web) -> None:
    server.files["a.tar"] = tar(some_files())
    server.files["b"] = bytes(1000)
    with Store(root) as store:
        path = store.add("one", [server.url("a.tar")])
        kept = store.add("two", [server.url("b")])
        assert not verify(store, "one", lambda done, total: None)
        flip(path / "class_1" / "0004.bin")
        (path / "class_2" / "0005.bin").unlink()
        (path / "class_2" / "more.bin").write_bytes(b"stranger")
        flip((kept / "b").resolve())
        faults = verify(store, "one", lambda done, total: None)
        assert {(one.path, one.why) for one in faults} == {
            ("class_1/0004.bin", "its bytes have changed"),
            ("class_2/0005.bin", "it is missing"),
            ("class_2/more.bin", "it was not there when this was written"),
        }
        (other,) = verify(store, "two", lambda done, total: None)
        assert other.path == "b"
        with Store(root) as job:
            job.use("one")
            with pytest.raises(DataError, match="in use"):
                repair(store, faults, lambda now: None)
        repair(store, [*faults, other], lambda now: None)
        assert read_tree(path) == some_files()
        assert (kept / "b").read_bytes() == bytes(1000)
    check_still(root)


def test_a_manifest_that_was_changed_is_found(root: Path, server: Web) -> None:
    server.files["a.tar"] = tar(some_files())
    with Store(root) as store:
        store.add("one", [server.url("a.tar")])
        flip(next(root.glob("content/*/manifest")))
        (fault,) = verify(store, "one", lambda done, total: None)
        assert "is not what was written" in fault.why


# -- from a program ------------------------------------------------------------------------------------------


def test_a_program_has_the_folder_and_holds_it(root: Path, server: Web) -> None:
    server.files["a.zip"] = zipped({f"{c}/{n}.jpg": b"jpeg" for c in "ab" for n in range(3)})
    with Store(root) as store:
        store.add("pictures", [server.url("a.zip")])
    with Store(root) as store:
        evict(store, "pictures")
    source = hr.folder(hr.stored("pictures"))
    assert len(source) == 6 and source.classes == ["a", "b"]
    assert stored("pictures") == root / "datasets" / "pictures"
    with Store(root) as store, pytest.raises(DataError, match="in use"):
        evict(store, "pictures")
