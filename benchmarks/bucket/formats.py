"""The photos in every contender's own format, as files; runs in ``.venv-bucket``.

    python -m benchmarks.bucket.formats PHOTOS INTO

The photos go into shards in a seeded random order, as all of these formats ask for. Files that are there stay.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bucket.contenders import number_of

SHARDS = 24
"""How many a dataset is divided into: enough to be shuffled and evicted, few enough to save requests."""
SEED = 1
Photos = list[Path]


def divide(sizes: list[int], shard_bytes: int) -> list[slice]:
    """Consecutive samples for each shard: one is full when it has ``shard_bytes`` or more."""
    found, begin, held = [], 0, 0
    for index, size in enumerate(sizes):
        held += size
        if held >= shard_bytes:
            found.append(slice(begin, index + 1))
            begin, held = index + 1, 0
    return [*found, slice(begin, len(sizes))] if begin < len(sizes) else found


def write_tar(photos: Photos, into: Path, shard_bytes: int) -> None:
    """WebDataset's layout: the name of a member before its first dot is the sample, the rest is the field."""
    for number, part in enumerate(divide([photo.stat().st_size for photo in photos], shard_bytes)):
        with tarfile.open(into / f"{number:05d}.tar", "w") as shard:
            for photo in photos[part]:
                shard.add(photo, f"{number_of(photo.name):06d}.jpg", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def read_sample(path: str) -> dict[str, Any]:
    """What LitData's and MDS's samples are."""
    return {"number": number_of(path), "jpeg": Path(path).read_bytes()}


def write_litdata(photos: Photos, into: Path, shard_bytes: int) -> None:
    """LitData's chunks."""
    import litdata

    litdata.optimize(
        fn=read_sample,
        inputs=[str(photo) for photo in photos],
        output_dir=str(into),
        chunk_bytes=shard_bytes,
        num_workers=1,
    )


def write_mds(photos: Photos, into: Path, shard_bytes: int) -> None:
    """MosaicML's shards."""
    from streaming import MDSWriter

    columns = {"number": "int", "jpeg": "bytes"}
    with MDSWriter(columns=columns, out=str(into), size_limit=shard_bytes) as writer:
        for photo in photos:
            writer.write(read_sample(str(photo)))


WRITERS: dict[str, Callable[[Photos, Path, int], None]] = {
    "shards": write_tar,
    "litdata": write_litdata,
    "mds": write_mds,
}


def make(photos: Path, into: Path) -> dict[str, str]:
    """Write each format unless it is there; why, for each that could not be written."""
    found = sorted(photos.rglob("*.jpg"))
    shard_bytes = -(-sum(path.stat().st_size for path in found) // SHARDS)
    random.Random(SEED).shuffle(found)
    failed = {}
    for name, write in WRITERS.items():
        done = into / name
        if done.exists():
            continue
        partial = into / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            write(found, partial, shard_bytes)
        except Exception as error:  # one that cannot be written takes nobody else with it
            failed[name] = f"{type(error).__name__}: {error}"
        else:
            partial.rename(done)
    return failed


def main() -> None:
    """Write them, and print what failed as JSON."""
    from benchmarks.common.rounds import take_stdout

    out = take_stdout()
    failed = make(Path(sys.argv[1]), Path(sys.argv[2]))
    with out:
        json.dump(failed, out)


if __name__ == "__main__":
    main()
