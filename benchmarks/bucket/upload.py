"""Fill the bucket: a folder's files as objects; runs in ``.venv-bucket``, in the loaders' namespace.

python -m benchmarks.bucket.upload BUCKET PREFIX=FOLDER ...
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 16


def objects(prefix: str, folder: Path) -> list[tuple[str, Path]]:
    """Key and file of each object that a folder becomes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".partial")
    return [(f"{prefix}/{path.relative_to(folder).as_posix()}", path) for path in files]


def main() -> None:
    """Upload, and print the number of objects."""
    import boto3
    from botocore.config import Config

    bucket, *pairs = sys.argv[1:]
    todo = [
        pair
        for prefix, _, folder in (p.partition("=") for p in pairs)
        for pair in objects(prefix, Path(folder))
    ]
    client = boto3.session.Session().client("s3", config=Config(max_pool_connections=AT_ONCE))
    client.create_bucket(Bucket=bucket)

    def put(pair: tuple[str, Path]) -> None:
        key, path = pair
        client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())

    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = sum(1 for _ in pool.map(put, todo))
    print(json.dumps({"objects": done}))


if __name__ == "__main__":
    main()
