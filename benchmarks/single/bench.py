"""The single-job benchmark: prepare, run everybody interleaved, report. Started by ``run``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.bench import DATA, Bench, Runs, options
from benchmarks.common.environments import PEERS
from benchmarks.common.photos import make_large_photos, warm
from benchmarks.common.report import table
from benchmarks.common.rounds import Run, summarise
from benchmarks.common.tree import wait_until_idle
from benchmarks.single import plain, targets
from benchmarks.single.contenders import BY_NAME, ENTRIES, Entry
from benchmarks.single.plot import draw

LIMIT_S = 600


class SingleBench(Bench[Entry]):
    """One job of each contender."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("single", ENTRIES, PEERS, args)
        self.repeats = args.repeats or (1 if self.quick else 3)
        self.min_seconds = 3.0 if self.quick else 8.0
        self.with_plain = not args.only
        self.plain_runs: Runs = {}
        self.large = DATA

    def prepare(self) -> None:
        """See ``Bench``. And large photos, for those who have them."""
        if any(entry.large for entry in self.entries):
            self.large = make_large_photos(DATA, 128 if self.quick else 256)
        super().prepare()

    def photos_of(self, entry: Entry) -> Path:
        """What it reads."""
        return self.large if entry.large else self.photos

    def command(self, entry: Entry, *more: str) -> Run:
        """Run ``measure`` for a contender."""
        places = ("--photos", str(self.photos_of(entry)), "--data", str(DATA), "--workers", str(self.cpus))
        return self.measure_process(entry, [entry.name, *places, *more], LIMIT_S)

    def make_ready(self, entry: Entry) -> Run:
        """See ``Bench``."""
        return self.command(entry, "--prepare")

    def run(self) -> Runs:
        """See ``Bench``."""
        names = [entry.name for entry in self.entries if entry.name not in self.missing]
        runs = self.rounds(
            names,
            self.repeats,
            self.measure,
            lambda run: f"{run['later_images_s']:,.0f} images/s, {run['cpu_s_per_1000']:.2f} CPU-s per 1000",
        )
        if self.with_plain:
            self.plain_runs = self.rounds(plain.NAMES, self.repeats, self.measure_plain, plain.tell)
        return runs

    def measure_plain(self, name: str, _number: int) -> Run:
        """One run over an ordinary torch dataset."""
        wait_until_idle(self.patience_s)
        return plain.run(name, sys.executable, self.photos, self.cpus, self.min_seconds / 2)

    def measure(self, name: str, number: int) -> Run:
        """One run, warm and on a machine as idle as it gets."""
        # Other runs may have pushed what this one reads out of memory.
        mode = {"ffcv-jpeg": "jpg", "ffcv-raw": "raw"}.get(name)
        warm(DATA / "ffcv" / f"photos-{self.count}-{mode}.beton" if mode else self.photos_of(BY_NAME[name]))
        wait_until_idle(self.patience_s)
        return self.command(
            BY_NAME[name], "--root", str(os.getpid()), "--seed", str(number + 1),
            "--min-seconds", str(self.min_seconds), "--min-epochs", "2",
        )  # fmt: skip

    def contenders(self, runs: Runs) -> list[dict[str, Any]]:
        """What became of each."""
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
        return contenders

    def report(self, runs: Runs) -> None:
        """See ``Bench``."""
        settings = {
            "batch": 128,
            "workers": self.cpus,
            "repeats": self.repeats,
            "later_epochs": f"at least 2 and {self.min_seconds:g} s",
        }
        result = self.result(
            settings, contenders=self.contenders(runs), plain=plain.describe(self.plain_runs)
        )
        photos, machine = result["photos"], result["machine"]
        print(
            f"\n{photos['count']} photos, {photos['mean_bytes'] / 1000:.1f} KB on average; "
            f"{result['settings']['work']}; batches of 128; {self.cpus} workers; "
            f"{machine['cpu']}, {machine['cpus']} CPUs; page cache warm; medians of {self.repeats}\n"
        )
        print(contender_table(result))
        for item in result["contenders"]:
            if item["status"] != "measured":
                print(f"not measured: {item['label']}: {item['reason']}")
        found = targets.compute(runs, self.repeats)
        if self.plain_runs:
            print(f"\n{plain.show(self.plain_runs)}")
            found += plain.targets(self.plain_runs, self.repeats)
        every = (run for item in (*result["contenders"], *result["plain"]) for run in item.get("runs", []))
        self.finish(result, every, found, draw)


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


def main() -> None:
    """Run the benchmark."""
    parser = options(
        "single",
        __doc__,
        BY_NAME,
        quick="1000 photos, one repeat: a few minutes",
        repeats="rounds (default 3, quick 1)",
        patience=20.0,
    )
    SingleBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
