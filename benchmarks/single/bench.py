"""The single-job benchmark: prepare, run everybody interleaved, report. Started by ``run``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common.environments import Peer, install_peers
from benchmarks.common.machine import describe_machine
from benchmarks.common.photos import PhotosUnavailable, describe_photos, make_photos, warm
from benchmarks.common.progress import say, track
from benchmarks.common.report import Target, table, target_table, write_json
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, interleave, run_process, summarise
from benchmarks.common.tree import wait_until_idle
from benchmarks.single import targets
from benchmarks.single.contenders import BY_NAME, ENTRIES, Entry

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / ".data"
RESULTS = REPOSITORY / "benchmarks" / "results"
LIMIT_S = 600

PEERS = (
    Peer("torch", ("torch", "numpy", "pillow", "simplejpeg", "opencv-python-headless")),
    Peer("spdl", ("spdl",)),
    Peer("dali", ("nvidia-dali-cuda120",)),
    # Without dependencies, as it asks for another build of OpenCV, which would overwrite the one all share.
    Peer(
        "ffcv",
        ("numba", "pytorch-pfn-extras", "terminaltables", "fastargs", "assertpy", "tqdm", "psutil"),
        ("ffcv",),
        ("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "gcc", "g++"),
    ),
)


class Bench:
    """One invocation: its settings, and what could not be measured and why."""

    def __init__(self, quick: bool, only: list[str], repeats: int | None, patience_s: float) -> None:
        self.patience_s = patience_s
        self.quick = quick
        self.entries = [entry for entry in ENTRIES if not only or entry.name in only]
        self.repeats = repeats or (1 if quick else 3)
        self.count = 1000 if quick else 4000
        self.min_seconds = 3.0 if quick else 8.0
        self.workers = len(os.sched_getaffinity(0))
        self.photos = DATA
        self.missing: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def python(self, entry: Entry) -> str:
        """The interpreter of the environment that a contender runs in."""
        return str(
            REPOSITORY / (".venv-peers" if entry.environment == "peers" else ".venv") / "bin" / "python"
        )

    def command(self, entry: Entry, *more: str) -> Run:
        """Run ``measure`` for a contender."""
        command = [
            self.python(entry), "-m", "benchmarks.single.measure", entry.name,
            *("--photos", str(self.photos), "--data", str(DATA), "--workers", str(self.workers)), *more,
        ]  # fmt: skip
        paths = [str(REPOSITORY), *([str(REPOSITORY / "src")] if entry.environment == "headrace" else [])]
        return run_process(command, REPOSITORY, {"PYTHONPATH": os.pathsep.join(paths)}, LIMIT_S)

    def prepare(self) -> None:
        """Photos, peers, their files, and a warm page cache."""
        self.photos = make_photos(DATA, self.count)
        failed = install_peers(REPOSITORY, PEERS)
        for entry in track(self.entries, "preparing contenders"):
            reason = failed.get(entry.name.split("-")[0]) if entry.environment == "peers" else None
            if reason is None:
                try:
                    self.versions[entry.name] = self.command(entry, "--prepare")["versions"]
                except RunFailed as error:
                    reason = str(error)
            if reason is not None:
                self.missing[entry.name] = reason

    def run(self) -> dict[str, list[Run | None]]:
        """All rounds."""
        names = [entry.name for entry in self.entries if entry.name not in self.missing]
        total, started = len(names) * self.repeats, time.monotonic()
        done = 0

        def one(name: str, number: int) -> Run | str:
            nonlocal done
            done += 1
            self.warm(name)
            wait_until_idle(self.patience_s)
            try:
                result = self.command(
                    BY_NAME[name], "--root", str(os.getpid()), "--seed", str(number + 1),
                    "--min-seconds", str(self.min_seconds), "--min-epochs", "2",
                )  # fmt: skip
            except RunFailed as error:
                say(f"[{done}/{total}] {name}: failed: {error}")
                return str(error)
            say(
                f"[{done}/{total}, {time.monotonic() - started:.0f} s] {name}: "
                f"{result['later_images_s']:,.0f} images/s, {result['cpu_s_per_1000']:.2f} CPU-s per 1000"
                + (
                    f"  (others keep {result['others_cpu']:.1f} CPUs busy)"
                    if result["others_cpu"] > DISTURBED
                    else ""
                )
            )
            return result

        runs, failed = interleave(names, self.repeats, one)
        self.missing.update(failed)
        return runs

    def warm(self, name: str) -> None:
        """Read what a contender reads, before each of its runs: other runs may have pushed it out of memory."""
        mode = {"ffcv-jpeg": "jpg", "ffcv-raw": "raw"}.get(name)
        warm(DATA / "ffcv" / f"photos-{self.count}-{mode}.beton" if mode else self.photos)

    def result(self, runs: dict[str, list[Run | None]]) -> dict[str, Any]:
        """Everything, as it is written."""
        contenders = []
        for entry in self.entries:
            item: dict[str, Any] = {"name": entry.name, "label": entry.label}
            if entry.name in self.missing:
                item |= {"status": "unavailable", "reason": self.missing[entry.name]}
            else:
                mine = runs[entry.name]
                item |= {"status": "measured", "versions": self.versions[entry.name]}
                item |= {"summary": summarise(mine), "runs": mine}
            contenders.append(item)
        return {
            "benchmark": "single",
            "quick": self.quick,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": describe_machine(),
            "settings": {
                "work": "random order, decode, random resized crop 224, flip, uint8",
                "batch": 128,
                "workers": self.workers,
                "repeats": self.repeats,
                "later_epochs": f"at least 2 and {self.min_seconds:g} s",
                "page_cache": "warm",
            },
            "photos": describe_photos(self.photos),
            "contenders": contenders,
        }


def contender_table(result: dict[str, Any]) -> str:
    """The medians, for people."""
    rows = [["", "images/s", "first epoch", "CPU-s/1000", "first batch s", "PSS MB", "consumer µs/image"]]
    fields = (
        ("later_images_s", "{:,.0f}", 1.0),
        ("first_epoch_images_s", "{:,.0f}", 1.0),
        ("cpu_s_per_1000", "{:.2f}", 1.0),
        ("first_batch_s", "{:.2f}", 1.0),
        ("pss_bytes", "{:,.0f}", 1e-6),
        ("consumer_us_per_image", "{:,.0f}", 1.0),
    )
    for item in result["contenders"]:
        summary = item.get("summary", {})
        cells = [
            shape.format(scale * summary[f]["median"]) if f in summary else "-" for f, shape, scale in fields
        ]
        rows.append([item["label"], *cells])
    return table(rows)


def report(result: dict[str, Any], found: list[Target], quick: bool) -> None:
    """Print, write and draw."""
    photos, machine = result["photos"], result["machine"]
    print(
        f"\n{photos['count']} photos, {photos['mean_bytes'] / 1000:.1f} KB on average; "
        f"{result['settings']['work']}; batches of 128; {result['settings']['workers']} workers; "
        f"{machine['cpu']}, {machine['cpus']} CPUs; page cache warm; "
        f"medians of {result['settings']['repeats']}\n"
    )
    print(contender_table(result))
    for item in result["contenders"]:
        if item["status"] != "measured":
            print(f"not measured: {item['label']}: {item['reason']}")
    loads = [run["others_cpu"] for item in result["contenders"] for run in item.get("runs", []) if run]
    if loads and max(loads) > DISTURBED:
        print(
            f"\nThe machine was not idle: others kept up to {max(loads):.1f} CPUs busy. "
            "Times are not to be trusted."
        )
    print(f"\n{target_table(found)}")
    name = "single.quick.json" if quick else "single.json"
    write_json(RESULTS / name, result, found)
    print(f"\nwritten: benchmarks/results/{name}")
    if quick:
        return
    try:
        from benchmarks.single.plot import draw

        draw(result, RESULTS / "single.png")
        print("written: benchmarks/results/single.png")
    except ImportError as error:
        print(f"no plot: {error}")


def main() -> None:
    """Run the benchmark. What it finds never makes it fail."""
    parser = argparse.ArgumentParser(prog="benchmarks/single/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1000 photos, one repeat: a few minutes")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds to wait for an idle machine per run"
    )
    parser.add_argument("--repeats", type=int, help="rounds (default 3, quick 1)")
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(BY_NAME), help="measure only these"
    )
    args = parser.parse_args()
    bench = Bench(args.quick, args.only, args.repeats, args.patience)
    try:
        bench.prepare()
    except PhotosUnavailable as error:
        print(f"Nothing was measured. {error}", file=sys.stderr)
        return
    runs = bench.run()
    report(bench.result(runs), targets.compute(runs, bench.repeats), bench.quick)


if __name__ == "__main__":
    main()
