"""The benchmark of many jobs: prepare, run everybody interleaved, report. Started by ``run``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.bench import DATA, Bench, Runs, options
from benchmarks.common.environments import PEERS, Peer
from benchmarks.common.photos import describe_photos, warm
from benchmarks.common.progress import say
from benchmarks.common.report import RESULTS, table
from benchmarks.common.rounds import Run, summarise
from benchmarks.common.tree import wait_until_idle
from benchmarks.sharing import targets
from benchmarks.sharing.analyse import analyse
from benchmarks.sharing.cases import SHARE, Case, Scale, equal, equals, plan, scenarios
from benchmarks.sharing.contenders import BY_NAME, ENTRIES, Entry
from benchmarks.sharing.plot import draw

LIMIT_S = 300
BATCH = 64
PACED_BY = "headrace@1"
"""Its rate sets the paces of the scenarios."""


class SharingBench(Bench[Entry]):
    """Jobs of each contender, and headrace's in scenarios."""

    sampling = 0.003
    """Little: of four jobs there are 13 processes to look at and of one 3, and no target is about memory."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("sharing", ENTRIES, (*PEERS, Peer("tensorsocket", ("tensorsocket==0.0.5",))), args)
        self.args = args
        self.numbers = args.jobs or ((1, 4) if self.quick else (1, 2, 4, 8))
        self.scale = Scale(0, 0, 0, 0, 0)
        self.cases: dict[str, Case] = {}
        self.rate = 0.0

    def workers(self, n: int) -> int:
        """Workers, or threads, of each of n jobs of a peer: the CPUs are divided between them."""
        return self.args.workers or max(1, self.cpus // n)

    def command(self, entry: Entry, wanted: dict[str, Any]) -> Run:
        """Run ``measure`` for a contender."""
        wanted = {"photos": str(self.photos), "data": str(DATA), "batch": BATCH, **wanted}
        return self.measure_process(entry, [json.dumps(wanted)], LIMIT_S + 60)

    def make_ready(self, entry: Entry) -> Run:
        """See ``Bench``."""
        return self.command(entry, {"contender": entry.name, "prepare": True, "workers": self.cpus})

    def prepare(self) -> None:
        """See ``Bench``; and how large the runs are."""
        super().prepare()
        self.scale = Scale(
            samples=self.count,
            decoded_bytes=decoded_bytes(self.photos),
            peer_images=6_000 if self.quick else 8_000,
            epochs=6,
            paced_epochs=6,
        )

    def run(self) -> Runs:
        """All rounds: what the targets need several times, the rest once."""
        if self.args.again:
            return self.run_again(self.args.again)
        names = [entry.name for entry in self.entries if entry.name not in self.missing]
        often = self.args.repeats or (1 if self.quick else 3)
        first = [4] if 4 in self.numbers else list(self.numbers[:1])
        core = equals(names, first, self.scale)
        if "headrace" in names and first != [1]:
            core.append(equal("headrace", 1, self.scale))
        runs = self.measure_cases(core, often)
        known = {case.name for case in core}
        rest = [case for case in equals(names, self.numbers, self.scale) if case.name not in known]
        runs |= self.measure_cases(rest, 1)
        if "headrace-auto" in names and not self.args.no_scenarios:
            self.rate = self.args.rate or _median_rate(runs.get(PACED_BY, []))
            if self.rate:
                runs |= self.measure_cases(scenarios(self.scale, self.rate, BATCH), max(1, often - 1))
            else:
                say(f"no scenarios: {PACED_BY} was not measured, so there is nothing to pace them by")
        return runs

    def run_again(self, names: Sequence[str]) -> Runs:
        """Measure some cases of the last result again, because the machine was not idle; the rest stands."""
        last = json.loads((RESULTS / f"{self.name}.json").read_text())
        if last["photos"] != describe_photos(self.photos):
            raise SystemExit("the last result is of other photos: measure everything")
        self.rate = last["settings"]["pace_from_images_s"]
        stands: Runs = {item["name"]: item["runs"] for item in last["cases"]}
        self.numbers = tuple(int(n) for n in last["settings"]["workers_per_job_of_peers"])
        every = equals([entry.name for entry in self.entries], self.numbers, self.scale)
        every += scenarios(self.scale, self.rate, BATCH)
        self.cases = {case.name: case for case in every if case.name in stands}
        self.missing |= {item["name"]: item["reason"] for item in last["cases"] if "reason" in item}
        unknown = set(names) - set(self.cases)
        if unknown:
            raise SystemExit(f"the last result has no {', '.join(sorted(unknown))}")
        for name in names:
            self.missing.pop(name, None)
        again = self.measure_cases([self.cases[name] for name in names], self.args.repeats or 1)
        return {**stands, **again}

    def measure_cases(self, cases: Sequence[Case], repeats: int) -> Runs:
        """Some cases, interleaved."""
        self.cases |= {case.name: case for case in cases}
        return self.rounds(
            [case.name for case in cases],
            repeats,
            self.measure,
            lambda run: (
                f"{run['images_s']:,.0f} images/s, {run['cpu_s_per_1000']:.2f} CPU-s per 1000, "
                f"{run['decodes_per_sample']:.2f} decodes per sample and epoch"
            ),
        )

    def measure(self, name: str, number: int) -> Run:
        """One run, warm and on a machine as idle as it gets."""
        case = self.cases[name]
        # Other runs may have pushed what this one reads out of memory.
        warm(DATA / "ffcv" / f"photos-{self.count}-raw.beton" if case.contender == "ffcv" else self.photos)
        wait_until_idle(self.patience_s)
        entry = BY_NAME[case.contender]
        # A producer feeds all jobs, so it is the one that has workers.
        workers = self.workers(1 if entry.producer else len(case.jobs))
        wanted = plan(case, samples=self.count, workers=workers, seed=number + 1, limit_s=LIMIT_S)
        return analyse(case, self.command(entry, wanted), self.count)

    def outcome(self, runs: Runs) -> dict[str, Any]:
        """What became of each contender and each case."""
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
        return {"contenders": contenders, "cases": cases}

    def report(self, runs: Runs) -> None:
        """See ``Bench``."""
        settings = {
            "batch": BATCH,
            "workers_per_job_of_peers": {str(n): self.workers(n) for n in self.numbers},
            "cache_bytes": self.scale.cache(),
            "cache_share_of_decoded": SHARE,
            "decoded_bytes": self.scale.decoded_bytes,
            "pace_from_images_s": self.rate,
        }
        result = self.result(settings, **self.outcome(runs))
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
        every = (run for item in result["cases"] for run in item["runs"])
        self.finish(result, every, targets.compute(runs, self.missing), draw)


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


def main() -> None:
    """Run the benchmark."""
    parser = options(
        "sharing",
        __doc__,
        BY_NAME,
        quick="1000 photos, 1 and 4 jobs, one repeat: minutes",
        repeats="rounds of what the targets need (default 3, quick 1)",
        patience=10.0,
    )
    parser.add_argument(
        "--jobs", type=int, action="append", help="numbers of jobs (default 1 2 4 8, quick 1 4)"
    )
    parser.add_argument(
        "--workers", type=int, help="workers per job of peers (default: CPUs divided by jobs)"
    )
    parser.add_argument("--rate", type=float, help="images/s that set the paces (default: what is measured)")
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="CASE",
        help="measure a case of the last result again, and keep the others",
    )
    parser.add_argument("--no-scenarios", action="store_true", help="equal jobs only")
    SharingBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
