"""A bucket in trouble: what an epoch's loop gets before, during and after it, and when it has its speed again.

``python -m benchmarks.bucket.faults``. For ten seconds a fifth of requests is answered by 503, one in a hundred is
cut in the midst of the answer, and one in a thousand stands still for 30 s.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.bucket.server import Server
from benchmarks.common.report import Target, target
from tests.sources.fault_proxy import fault_proxy
from tests.sources.s3_server import s3_server

import headrace as hr

_BIN, _OVER = 0.25, 2.0
"""Seconds in which things are counted together, and over which a rate has to hold."""


def decode(data: Any) -> np.ndarray:
    """The number that an object begins with, as a sample."""
    return np.frombuffer(data, np.int64, 1).copy()


def measure(
    *,
    samples: int = 2000,
    size: int = 20_000,
    latency: float = 0.03,
    calm: float = 12.0,
    trouble: float = 10.0,
    after: float = 12.0,
    num_workers: int = 2,
    busy: float = 0.2,
    drop: float = 0.01,
    stall: float = 0.001,
    bandwidth: float = 8e6,
) -> dict[str, Any]:
    """Rates in samples a second, and the seconds from the end of the trouble until 95% of the rate before."""
    content = {at: np.int64(at).tobytes() + os.urandom(size - 8) for at in range(samples)}
    with tempfile.TemporaryDirectory(prefix="hr-faults-") as place, s3_server() as server:
        os.environ["XDG_CACHE_HOME"] = place
        server.put("bench", {f"class{at % 10}/{at:06}.bin": data for at, data in content.items()})
        with fault_proxy(server.port) as proxy:
            proxy.faults.latency, proxy.faults.bandwidth = latency, bandwidth
            options = {**server.options, "endpoint": proxy.endpoint}
            source = hr.folder("s3://bench", extensions=[".bin"], storage_options=options)
            recipe = hr.Recipe(source, decode=decode)
            bins: Counter[int] = Counter()
            answered: Counter[int] = Counter()
            wrong = epochs = 0
            phases = {"start": 0.0, "end": 0.0}

            def storm() -> None:
                time.sleep(calm)
                phases["start"] = time.monotonic()
                proxy.faults.busy, proxy.faults.drop, proxy.faults.stall = busy, drop, stall
                time.sleep(trouble)
                proxy.faults.busy = proxy.faults.drop = proxy.faults.stall = 0.0
                phases["end"] = time.monotonic()

            def watch() -> None:
                last = proxy.bytes
                while not over.wait(_BIN):
                    now, last_ = proxy.bytes, last
                    answered[int((time.monotonic() - begun) / _BIN)] += now - last_
                    last = now
                    under_way.append(proxy.under_way)

            over = threading.Event()
            under_way: list[int] = []
            loader = hr.DataLoader(recipe, batch_size=32, num_workers=num_workers, shuffle=True)
            with loader:
                next(iter(loader))  # (workers are there)
                begun = time.monotonic()
                for work in (storm, watch):
                    threading.Thread(target=work, daemon=True).start()
                while time.monotonic() - begun < calm + trouble + after:
                    seen: Counter[int] = Counter()
                    for numbers, targets in loader:
                        bins[int((time.monotonic() - begun) / _BIN)] += len(targets)
                        seen.update(numbers[:, 0].tolist())
                    wrong += sum(abs(seen[at] - 1) for at in range(samples))
                    epochs += 1
            over.set()
            counts = dict(proxy.counts)
    start, end = phases["start"] - begun, phases["end"] - begun
    return {
        "samples a second": _summary(bins, start, end, after, 1.0),
        "megabytes a second from the bucket": _summary(answered, start, end, after, 1e6),
        "under way": under_way[::4],
        "epochs": epochs,
        "left out, or given twice": wrong,
        "requests": counts,
    }


def _summary(bins: Counter[int], start: float, end: float, after: float, unit: float) -> dict[str, Any]:
    before = _rate(bins, 4.0, start)
    times = [at * _BIN for at in range(int(end / _BIN), int((end + after - _OVER) / _BIN))]
    back = next((time for time in times if _rate(bins, time, time + _OVER) >= 0.95 * before), None)
    return {
        "before": round(before / unit, 2),
        "during": round(_rate(bins, start, end) / unit, 2),
        "from 5 s after": round(_rate(bins, end + 5, end + after - 1) / unit, 2),
        "seconds until 95%": None if back is None else round(max(0.0, back - end), 2),
        "each second after": [round(_rate(bins, end + at, end + at + 1) / unit, 2) for at in range(8)],
    }


def _rate(bins: Counter[int], start: float, stop: float) -> float:
    first, last = int(start / _BIN), max(int(start / _BIN) + 1, int(stop / _BIN))
    return sum(bins[at] for at in range(first, last)) / ((last - first) * _BIN)


def targets(server: Server, data: Path, quick: bool) -> list[Target]:
    """What headrace promises of a bucket in trouble. It has a server of its own, behind a proxy that makes it."""
    found = measure(calm=10.0 if quick else 25.0, after=15.0 if quick else 30.0)
    rates = found["samples a second"]
    return [
        target(
            "a bucket in trouble: photos that an epoch left out, or gave twice",
            [found["left out, or given twice"]],
            "<=",
            0,
        ),
        target(
            "a bucket in trouble: images/s from 5 s after it over before",
            [rates["from 5 s after"] / rates["before"]],
            ">=",
            0.95,
            f"95% over 2 s after {rates['seconds until 95%']} s",
        ),
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--bandwidth", type=float, default=8e6)
    parser.add_argument("--all", action="store_true", help="all requests are refused in the trouble")
    given = parser.parse_args()
    more = {"busy": 1.0, "drop": 0.0, "stall": 0.0} if given.all else {}
    print(
        json.dumps(
            measure(num_workers=given.workers, latency=given.latency, bandwidth=given.bandwidth, **more),
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
