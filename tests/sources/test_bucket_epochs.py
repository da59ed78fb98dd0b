"""Whole epochs over a bucket, on good days and on bad ones: every sample once, and its own bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from tests.sources.fault_proxy import FaultProxy
from tests.sources.s3_server import S3Server

SIZE = 160


def content(at: int) -> bytes:
    return np.random.default_rng(at).integers(0, 256, 400, np.uint8).tobytes()


def decode(data: Any) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()


@pytest.fixture
def url(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = f"tests/epochs-{os.getpid()}"
    s3.put(place, {f"class{at % 4}/{at:04}.bin": content(at) for at in range(SIZE)})
    return f"s3://{place}"


def loader(url: str, options: dict[str, Any], num_workers: int) -> Any:
    source = hr.folder(url, extensions=[".bin"], storage_options=options)
    recipe = hr.Recipe(source, decode=decode)
    return hr.DataLoader(recipe, batch_size=16, num_workers=num_workers, shuffle=True)


def check(loader: Any) -> None:
    """Every sample once, with its bytes and its class."""
    expected = {content(at): at % 4 for at in range(SIZE)}
    seen = [
        (value.numpy().tobytes(), int(target))
        for values, targets in loader
        for value, target in zip(values, targets, strict=True)
    ]
    assert dict(seen) == expected and len(seen) == len(expected)
    assert not loader.bad_samples


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_an_epoch_is_exact_whatever_the_bucket_does(
    num_workers: int, url: str, s3: S3Server, proxy: FaultProxy
) -> None:
    """A fifth of requests is refused, some connections are cut, and some answers do not come."""
    options = {**s3.options, "endpoint": proxy.endpoint}
    with loader(url, options, num_workers) as made:
        proxy.faults.busy, proxy.faults.drop, proxy.faults.stall = 0.2, 0.05, 0.01
        check(made)
        assert proxy.counts["busy"] > 10 and proxy.counts["drop"] > 1
        proxy.faults.busy = proxy.faults.drop = proxy.faults.stall = 0.0
        check(made)


def test_workers_are_forked_from_a_process_that_reads_itself(url: str, s3: S3Server) -> None:
    for num_workers in (0, 2, 0, 1):
        with loader(url, s3.options, num_workers) as made:
            check(made)


def test_a_program_that_ends_while_it_reads_ends_well(url: str, s3: S3Server, proxy: FaultProxy) -> None:
    proxy.faults.latency = 0.2
    script = f"""
import threading, headrace as hr
source = hr.folder({url!r}, extensions=[".bin"], storage_options={ {**s3.options, "endpoint": proxy.endpoint}!r})
for at in range(8):
    threading.Thread(target=source.read_many, args=(range(100),), daemon=True).start()
print(len(source.read_many([0])[0]))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "400\n"), ran.stderr
