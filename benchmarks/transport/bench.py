"""Rows of 32 KiB to 16 MiB into another machine's memory: TCP, TLS, NIXL. Started by ``make bench-transport``.

KSpeed's figure 9, on what there is here: two network namespaces and the kernel's TCP between them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.bucket.network import NoNetwork, inside
from benchmarks.cluster.network import Lan, address
from benchmarks.common.progress import say
from benchmarks.common.report import header, publish, table, target

REPOSITORY = Path(__file__).resolve().parents[2]
WAYS = ("tcp", "tls", "nixl")
SIZES = (32 << 10, 128 << 10, 512 << 10, 2 << 20, 16 << 20)
WINDOW = 4


def run(lan: Lan, way: str, nbytes: int, total: int) -> dict[str, float] | None:
    """One transfer; MB/s, and CPU seconds of each end per GB."""
    rows = max(WINDOW, total // nbytes)
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "UCX_TLS": "tcp,self", "UCX_LOG_LEVEL": "error",
        "NIXL_LOG_LEVEL": "ERROR",
    }  # fmt: skip
    ends = {}
    for side, node in (("receive", 1), ("send", 0)):
        command = [
            *inside(lan.nodes[node]), sys.executable, "-m", "benchmarks.transport.ends", way, side, address(1),
            str(nbytes), str(rows), str(WINDOW),
        ]  # fmt: skip
        ends[side] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
    out = {}
    for side, process in ends.items():
        try:
            said, error = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            said, error = process.communicate()
        if not said.strip():
            say(f"{way}, {nbytes}: {error.strip().splitlines()[-1] if error.strip() else 'no answer'}")
            return None
        out[side] = json.loads(said.splitlines()[-1])
    gigabytes = rows * nbytes / 1e9
    return {
        "mb_s": rows * nbytes / 1e6 / out["send"]["seconds"],
        "send_cpu": out["send"]["cpu"] / gigabytes,
        "receive_cpu": out["receive"]["cpu"] / gigabytes,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-transport", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    try:
        lan = Lan(2)
    except NoNetwork as error:
        print(f"Nothing was measured. {error}", file=sys.stderr)
        return
    found: dict[str, dict[str, list[dict[str, float]]]] = {way: {} for way in WAYS}
    try:
        for _ in range(1 if args.quick else 3):
            for nbytes in SIZES:
                for way in WAYS:
                    one = run(lan, way, nbytes, 200_000_000 if args.quick else 800_000_000)
                    if one is not None:
                        found[way].setdefault(str(nbytes), []).append(one)
    finally:
        lan.close()
    rows = [["row", *(f"{way}: MB/s, CPU s/GB sent, received" for way in WAYS)]]
    for nbytes in SIZES:
        cells = []
        for way in WAYS:
            runs = found[way].get(str(nbytes), [])
            medians = [statistics.median(run[name] for run in runs) for name in runs[0]] if runs else []
            cells.append(f"{medians[0]:,.0f}, {medians[1]:.2f}, {medians[2]:.2f}" if medians else "-")
        rows.append([f"{nbytes >> 10} KiB", *cells])
    print(f"\n{table(rows)}")
    result = {**header("transport", args.quick), "window": WINDOW, "runs": found}
    # What the default rests on: rows of an order are rarely larger.
    ratios = [
        tls["mb_s"] / nixl["mb_s"]
        for size in map(str, SIZES[:3])
        for tls, nixl in zip(found["tls"].get(size, []), found["nixl"].get(size, []), strict=False)
    ]
    publish(
        "transport", args.quick, result, [target("TLS over NIXL, MB/s, rows up to 512 KiB", ratios, ">=", 1)]
    )


if __name__ == "__main__":
    main()
