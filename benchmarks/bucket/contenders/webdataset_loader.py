"""WebDataset over tar shards: a streamed GET for each, through boto3; shards and a buffer of samples are shuffled."""

from __future__ import annotations

import importlib
import os
import random
from typing import Any

import boto3
import webdataset as wds
from benchmarks.bucket.contenders import Iterated, Setup, number_of
from benchmarks.bucket.contenders.work import collate, prepare, start_worker
from webdataset import cache as wds_cache
from webdataset import tariterators

BUFFER, FIRST = 1000, 128
"""Samples that each worker shuffles among each other, and those that are there before the first one leaves."""
_clients: dict[int, Any] = {}


def open_s3(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> Any:
    """A shard as a stream. WebDataset's own way is a pipe from a program that has to be started for each."""
    client = _clients.get(os.getpid())
    if client is None:
        client = _clients[os.getpid()] = boto3.session.Session().client("s3")
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return client.get_object(Bucket=bucket, Key=key)["Body"]


class Prepare:
    """A sample of the shards as a pair of image and number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, sample: dict[str, Any]) -> Any:
        return prepare(sample["jpg"], self.size), number_of(sample["__key__"])


class WebDatasetLoader(Iterated):
    """The loader."""

    def __init__(self, setup: Setup) -> None:
        # (the package has a function of the name of this module)
        importlib.import_module("webdataset.gopen").gopen_schemes["s3"] = open_s3
        urls = [f"{setup.bucket}/{key}" for key in setup.shards]
        if setup.cache_bytes:
            # It looks every half minute whether there is too much; by then these epochs would be over.
            opened: Any = wds_cache.FileCache(
                str(setup.cache), cache_size=setup.cache_bytes, cache_cleanup_interval=0
            )
        else:
            opened = wds_cache.StreamingOpen()
        dataset = wds.DataPipeline(
            wds.SimpleShardList(urls),
            wds.shuffle(len(urls), initial=len(urls), rng=random.Random(setup.seed)),
            wds.split_by_worker,
            opened,
            tariterators.tar_file_expander,
            tariterators.group_by_keys,
            wds.shuffle(BUFFER, initial=FIRST),
            wds.map(Prepare(setup.size)),
            wds.batched(setup.batch, collation_fn=collate, partial=True),
        )
        self.loader = wds.WebLoader(
            dataset,
            batch_size=None,
            num_workers=setup.workers,
            persistent_workers=True,
            worker_init_fn=start_worker,
        )


def open_loader(setup: Setup) -> WebDatasetLoader:
    """The loader."""
    return WebDatasetLoader(setup)
