"""The benchmark of many jobs: prepare, run everybody interleaved, report. Started by ``run``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.environments import Peer, install_peers
from benchmarks.common.machine import describe_machine
from benchmarks.common.photos import PhotosUnavailable, describe_photos, make_photos, warm
from benchmarks.common.progress import say, track
from benchmarks.common.report import Target, table, target_table, write_json
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, interleave, run_process, summarise
from benchmarks.common.tree import wait_until_idle
from benchmarks.sharing import targets
from benchmarks.sharing.analyse import analyse
from benchmarks.sharing.cases import SHARE, Case, Scale, equal, equals, plan, scenarios
from benchmarks.sharing.contenders import BY_NAME, ENTRIES, Entry
from benchmarks.single.bench import PEERS as SINGLE_PEERS

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / ".data"
RESULTS = REPOSITORY / "benchmarks" / "results"
LIMIT_S = 300
BATCH = 64
PEERS = (*SINGLE_PEERS, Peer("tensorsocket", ("tensorsocket==0.0.5",)))
PACED_BY = "headrace@1"
"""Its rate sets the paces of the scenarios."""
Runs = dict[str, list[Run | None]]


class Bench:
    """One invocation: its settings, and what could not be measured and why."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.quick = args, bool(args.quick)
        self.entries = [entry for entry in ENTRIES if not args.only or entry.name in args.only]
        self.count = 1000 if self.quick else 4000
        self.numbers = args.jobs or ((1, 4) if self.quick else (1, 2, 4, 8))
        self.cpus = len(os.sched_getaffinity(0))
        self.photos = DATA
        self.scale = Scale(0, 0, 0, 0, 0)
        self.cases: dict[str, Case] = {}
        self.missing: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.rate = 0.0

    def workers(self, n: int) -> int:
        """Workers, or threads, of each of n jobs of a peer: the CPUs are divided between them."""
        return self.args.workers or max(1, self.cpus // n)

    def command(self, entry: Entry, wanted: dict[str, Any]) -> Run:
        """Run ``measure`` for a contender."""
        home = ".venv-peers" if entry.environment == "peers" else ".venv"
        paths = [str(REPOSITORY), *([str(REPOSITORY / "src")] if entry.environment == "headrace" else [])]
        command = [
            *(str(REPOSITORY / home / "bin" / "python"), "-m", "benchmarks.sharing.measure"),
            json.dumps({"photos": str(self.photos), "data": str(DATA), "batch": BATCH, **wanted}),
        ]
        return run_process(command, REPOSITORY, {"PYTHONPATH": os.pathsep.join(paths)}, LIMIT_S + 60)

    def prepare(self) -> None:
        """Photos, peers, their files."""
        self.photos = make_photos(DATA, self.count)
        self.scale = Scale(
            samples=self.count,
            decoded_bytes=decoded_bytes(self.photos),
            peer_images=6_000 if self.quick else 8_000,
            epochs=4,
            paced_epochs=6,
        )
        failed = install_peers(REPOSITORY, PEERS)
        for entry in track(self.entries, "preparing contenders"):
            reason = failed.get(entry.name) if entry.environment == "peers" else None
            if reason is None:
                try:
                    wanted = {"contender": entry.name, "prepare": True, "workers": self.cpus}
                    self.versions[entry.name] = self.command(entry, wanted)["versions"]
                except RunFailed as error:
                    reason = str(error)
            if reason is not None:
                self.missing[entry.name] = reason

    def run(self) -> Runs:
        """All rounds: what the targets need several times, the rest once."""
        names = [entry.name for entry in self.entries if entry.name not in self.missing]
        often = self.args.repeats or (1 if self.quick else 3)
        first = [4] if 4 in self.numbers else list(self.numbers[:1])
        core = equals(names, first, self.scale)
        if "headrace" in names and first != [1]:
            core.append(equal("headrace", 1, self.scale))
        runs = self.rounds(core, often)
        known = {case.name for case in core}
        rest = [case for case in equals(names, self.numbers, self.scale) if case.name not in known]
        runs |= self.rounds(rest, 1)
        if "headrace-auto" in names and not self.args.no_scenarios:
            self.rate = self.args.rate or _median_rate(runs.get(PACED_BY, []))
            if self.rate:
                runs |= self.rounds(scenarios(self.scale, self.rate, BATCH), max(1, often - 1))
            else:
                say(f"no scenarios: {PACED_BY} was not measured, so there is nothing to pace them by")
        return runs

    def rounds(self, cases: Sequence[Case], repeats: int) -> Runs:
        """Some cases, interleaved."""
        self.cases |= {case.name: case for case in cases}
        total, started, done = len(cases) * repeats, time.monotonic(), 0

        def one(name: str, number: int) -> Run | str:
            nonlocal done
            done += 1
            try:
                result = self.measure(self.cases[name], number + 1)
            except RunFailed as error:
                say(f"[{done}/{total}] {name}: failed: {error}")
                return str(error)
            say(
                f"[{done}/{total}, {time.monotonic() - started:.0f} s] {name}: {result['images_s']:,.0f} images/s, "
                f"{result['cpu_s_per_1000']:.2f} CPU-s per 1000, "
                f"{result['decodes_per_sample']:.2f} decodes per sample and epoch"
                + _beside(result["others_cpu"])
            )
            return result

        runs, failed = interleave([case.name for case in cases], repeats, one)
        self.missing |= failed
        return runs

    def measure(self, case: Case, seed: int) -> Run:
        """One run, warm and on a machine as idle as it gets."""
        # Other runs may have pushed what this one reads out of memory.
        warm(DATA / "ffcv" / f"photos-{self.count}-raw.beton" if case.contender == "ffcv" else self.photos)
        wait_until_idle(self.args.patience)
        entry = BY_NAME[case.contender]
        # A producer feeds all jobs, so it is the one that has workers.
        workers = self.workers(1 if entry.producer else len(case.jobs))
        wanted = plan(case, samples=self.count, workers=workers, seed=seed, limit_s=LIMIT_S)
        return analyse(case, self.command(entry, wanted), self.count)

    def result(self, runs: Runs) -> dict[str, Any]:
        """Everything, as it is written."""
        cases = []
        for name, case in self.cases.items():
            item: dict[str, Any] = {"name": name, "contender": case.contender, "jobs": len(case.jobs)}
            item |= {"label": BY_NAME[case.contender].label, "scenario": "@" not in name}
            if name in self.missing:
                item |= {"status": "failed", "reason": self.missing[name]}
            else:
                item["status"] = "measured"
            cases.append({**item, "summary": summarise(runs[name]), "runs": runs[name]})
        contenders = [
            {
                "name": entry.name,
                "label": entry.label,
                "versions": self.versions.get(entry.name, {}),
                **({"reason": self.missing[entry.name]} if entry.name in self.missing else {}),
            }
            for entry in self.entries
        ]
        return {
            "benchmark": "sharing",
            "quick": self.quick,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": describe_machine(),
            "settings": {
                "work": "random order, decode, random resized crop 224, flip, uint8",
                "batch": BATCH,
                "workers_per_job_of_peers": {str(n): self.workers(n) for n in self.numbers},
                "cache_bytes": self.scale.cache(),
                "cache_share_of_decoded": SHARE,
                "decoded_bytes": self.scale.decoded_bytes,
                "pace_from_images_s": self.rate,
                "page_cache": "warm",
            },
            "photos": describe_photos(self.photos),
            "contenders": contenders,
            "cases": cases,
        }


def decoded_bytes(photos: Path) -> int:
    """What all photos take decoded, three bytes per pixel."""
    from PIL import Image

    total = 0
    for path in photos.rglob("*.jpg"):
        with Image.open(path) as image:
            total += 3 * image.width * image.height
    return total


def _median_rate(runs: Sequence[Run | None]) -> float:
    return float(summarise(runs).get("images_s", {}).get("median", 0.0))


def _beside(others: float) -> str:
    return f"  (others keep {others:.1f} CPUs busy)" if others > DISTURBED else ""


def case_table(result: dict[str, Any], scenario: bool) -> str:
    """The medians, for people."""
    rows = [["", "jobs", "images/s", "CPU-s/1000", "decodes/sample", "decodes/image", "hit rate", "start s"]]
    fields = (
        ("images_s", "{:,.0f}"),
        ("cpu_s_per_1000", "{:.2f}"),
        ("decodes_per_sample", "{:.2f}"),
        ("decodes_per_image", "{:.2f}"),
        ("hit_rate", "{:.2f}"),
        ("start_s", "{:.1f}"),
    )
    for item in result["cases"]:
        if item["scenario"] == scenario:
            found = item["summary"]
            cells = [
                shape.format(found[field]["median"]) if field in found else "-" for field, shape in fields
            ]
            rows.append([item["name"] if scenario else item["label"], str(item["jobs"]), *cells])
    return table(rows)


def report(result: dict[str, Any], found: list[Target], quick: bool) -> None:
    """Print, write and draw."""
    photos, machine, settings = result["photos"], result["machine"], result["settings"]
    print(
        f"\n{photos['count']} photos, {photos['mean_bytes'] / 1000:.1f} KB on average; {settings['work']}; "
        f"batches of {BATCH}; shared cache {settings['cache_bytes'] / 1e6:.0f} MB, "
        f"{100 * SHARE:.0f} % of the photos decoded; {machine['cpu']}, {machine['cpus']} CPUs; page cache warm\n"
    )
    print(case_table(result, scenario=False))
    print(f"\n{case_table(result, scenario=True)}")
    for item in (*result["contenders"], *result["cases"]):
        if "reason" in item:
            print(f"not measured, or not every time: {item['name']}: {item['reason']}")
    loads = [run["others_cpu"] for item in result["cases"] for run in item["runs"] if run]
    if loads and max(loads) > DISTURBED:
        print(
            f"\nThe machine was not idle: others kept up to {max(loads):.1f} CPUs busy. "
            "Times are not to be trusted."
        )
    print(f"\n{target_table(found)}")
    name = "sharing.quick" if quick else "sharing"
    write_json(RESULTS / f"{name}.json", result, found)
    print(f"\nwritten: benchmarks/results/{name}.json")
    if quick:
        return
    try:
        from benchmarks.sharing.plot import draw

        draw(result, RESULTS / f"{name}.png")
        print(f"written: benchmarks/results/{name}.png")
    except ImportError as error:
        print(f"no plot: {error}")


def main() -> None:
    """Run the benchmark. What it finds never makes it fail."""
    parser = argparse.ArgumentParser(prog="benchmarks/sharing/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1000 photos, 1 and 4 jobs, one repeat: minutes")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds to wait for an idle machine per run"
    )
    parser.add_argument("--repeats", type=int, help="rounds of what the targets need (default 3, quick 1)")
    parser.add_argument(
        "--jobs", type=int, action="append", help="numbers of jobs (default 1 2 4 8, quick 1 4)"
    )
    parser.add_argument(
        "--workers", type=int, help="workers per job of peers (default: CPUs divided by jobs)"
    )
    parser.add_argument("--rate", type=float, help="images/s that set the paces (default: what is measured)")
    parser.add_argument("--no-scenarios", action="store_true", help="equal jobs only")
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(BY_NAME), help="measure only these"
    )
    args = parser.parse_args()
    bench = Bench(args)
    try:
        bench.prepare()
    except PhotosUnavailable as error:
        print(f"Nothing was measured. {error}", file=sys.stderr)
        return
    runs = bench.run()
    report(bench.result(runs), targets.compute(runs, bench.missing), bench.quick)


if __name__ == "__main__":
    main()
