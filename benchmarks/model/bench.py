"""The models of throughput against real runs: six splits of the cache and five cache sizes on slow storage."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
from benchmarks.common.bench import DATA, REPOSITORY
from benchmarks.common.photos import PhotosUnavailable, describe_photos, make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import RESULTS, Target, header, publish, table, target
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, run_process
from benchmarks.common.tree import wait_until_idle
from benchmarks.model.cases import AUTO, RATIOS, SINGLE, SPLITS, name, orders
from benchmarks.model.plot import draw
from benchmarks.model.throttle import NoThrottle, Throttle, throttle
from benchmarks.sharing.bench import decoded_bytes

from headrace.planning import bottleneck, seneca
from headrace.planning.terms import Terms

READ_BYTES_S = 24_000_000
SHIFT = 4
"""So many times slower storage becomes in mid-run."""
SHIFT_RATIO = 5
"""Of the photos' decoded size to the cache, there."""
LIMIT_S = 240
MODELS = {"bottleneck": bottleneck.throughput, "seneca": seneca.throughput}
DEFAULT = "bottleneck"


class ModelBench:
    """One invocation."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick = bool(args.quick)
        self.patience_s = float(args.patience)
        self.repeats = args.repeats or (1 if self.quick else 2)
        self.count = 1000 if self.quick else 2000
        self.ratios = RATIOS[::2] if self.quick else RATIOS
        self.photos = DATA
        self.decoded = 0
        self.terms: Terms | None = None
        self.missing: dict[str, str] = {}
        self.again: list[str] = args.again
        self.before: dict[str, Any] = {}

    def main(self) -> None:
        """Run the benchmark. What it finds never makes it fail."""
        try:
            if self.again:
                name = "model.quick.json" if self.quick else "model.json"
                self.before = json.loads((RESULTS / name).read_text())
                self.missing = self.before["missing"]
            self.photos = make_photos(DATA, self.count)
            self.decoded = decoded_bytes(self.photos)
            with throttle(self.photos) as group:
                shifts = self.run_shifts(group)
                group.limit(READ_BYTES_S)
                runs = self.run(group)
        except (PhotosUnavailable, NoThrottle) as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
            return
        self.report(runs, shifts)

    def run_shifts(self, group: Throttle) -> dict[str, list[Run]]:
        """The shift in mid-run, with every split, interleaved."""
        shifts: dict[str, list[Run]] = {split: [] for split in (*SPLITS, AUTO)}
        wanted = {
            "before": SHIFT * READ_BYTES_S,
            "after": READ_BYTES_S,
            "settle": 3,
            "join": 2,
            "epochs": 2,
            "device": group.device,
        }
        shifts |= self.before.get("shifts", {})
        measured = [split for split in shifts if self.wants(f"shift, {split}")]
        shifts |= {split: [] for split in measured}
        for number in range(1, self.repeats + 1):
            for split in measured:
                told = orders(split, SHIFT_RATIO, self.decoded, **self.common(group), **wanted)
                try:
                    found = self.run_job("benchmarks.model.shift", told)
                except RunFailed as error:
                    self.missing[f"shift, {split}"] = str(error)
                    say(f"shift, {split}: failed: {error}")
                    continue
                shifts[split].append(found)
                say(
                    f"[{number}/{self.repeats}] shift, {split}: {found['before']:,.0f} images/s before, "
                    f"{found['first']:,.0f} in the epoch after, {found['after']:,.0f} then"
                )
        return shifts

    def wants(self, case: str) -> bool:
        """Whether a case is to be measured."""
        return not self.again or any(case.startswith(name) or case.endswith(name) for name in self.again)

    def common(self, group: Throttle) -> dict[str, Any]:
        """What all jobs are told."""
        return {"photos": str(self.photos), "count": self.count, "group": group.procs}

    def run_job(self, module: str, told: dict[str, Any]) -> Run:
        """A measured process; once more if something else ran beside it."""
        command = [sys.executable, "-m", module, json.dumps(told)]
        paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        found: Run = {}
        for _ in range(2):
            wait_until_idle(self.patience_s)
            found = run_process(command, REPOSITORY, {"PYTHONPATH": paths}, LIMIT_S)
            if found["others_cpu"] <= DISTURBED:
                break
        return found

    def run(self, group: Throttle) -> dict[str, list[Run]]:
        """All rounds, interleaved."""
        # What the models rest on is measured once, by the loader itself, in a run that is none of those below.
        found = self.before.get("terms") or self.measure(group, AUTO, 4.0, 0)["terms"]
        self.terms = Terms(**found)
        say(f"measured: {self.terms}")
        cases = [(split, ratio) for ratio in self.ratios for split in (*SPLITS, AUTO)]
        runs: dict[str, list[Run]] = {name(*case): [] for case in cases} | self.before.get("runs", {})
        cases = [case for case in cases if self.wants(name(*case))]
        runs |= {name(*case): [] for case in cases}
        total, done, begun = len(cases) * self.repeats, 0, time.monotonic()
        for number in range(1, self.repeats + 1):
            for split, ratio in cases:
                done += 1
                key = name(split, ratio)
                try:
                    found = self.measure(group, split, ratio, number)
                except RunFailed as error:
                    self.missing[key] = str(error)
                    say(f"[{done}/{total}] {key}: failed: {error}")
                    continue
                runs[key].append(found)
                say(
                    f"[{done}/{total}, {time.monotonic() - begun:.0f} s] {key}: {found['images_s']:,.0f} images/s"
                )
        return runs

    def measure(self, group: Throttle, split: str, ratio: float, number: int) -> Run:
        """One job in the group."""
        told = orders(
            split,
            ratio,
            self.decoded,
            **self.common(group),
            # (with many batches ahead, much is drawn before what is fetched for it can be cached)
            settle=4 if "augmented" in split else 3 if split == AUTO else 2,
            epochs=2,
            seed=number,
        )
        found = self.run_job("benchmarks.model.job", told)
        return {**found, "images_s": statistics.fmean(found["rates"][told["settle"] :])}

    def expected(self, model: str, split: str, ratio: float) -> float:
        """What a model says of a case."""
        assert self.terms is not None
        terms = dataclasses.replace(self.terms, cache=self.decoded / ratio)
        return float(MODELS[model](terms, np.array([SPLITS[split]]))[0])

    def report(self, runs: dict[str, list[Run]], shifts: dict[str, list[Run]]) -> None:
        """Print, write and draw."""
        points = []
        for ratio in self.ratios:
            for split in SPLITS:
                found = [run["images_s"] for run in runs[name(split, ratio)]]
                if found:
                    expected = {model: self.expected(model, split, ratio) for model in MODELS}
                    points.append(
                        {"split": split, "ratio": ratio, "measured": statistics.median(found), **expected}
                    )
        rows = [["split", "dataset:cache", "measured", *MODELS, "error"]]
        rows += [
            [
                str(point["split"]),
                f"{point['ratio']:g}",
                f"{point['measured']:,.0f}",
                *(f"{point[model]:,.0f}" for model in MODELS),
                f"{100 * (point[DEFAULT] / point['measured'] - 1):+.0f} %",
            ]
            for point in points
        ]
        print(table(rows))
        auto = self.auto(runs)
        print()
        print(
            table(
                [["dataset:cache", "auto", "best split", "of it", "best form", "of it"]]
                + [
                    [
                        f"{item['ratio']:g}",
                        f"{item['auto']:,.0f}",
                        f"{item['best']:,.0f}",
                        item["best_split"],
                        f"{item['single']:,.0f}",
                        item["best_single"],
                    ]
                    for item in auto
                ]
            )
        )
        shift = self.shift(shifts)
        if shift:
            heading = ["after a shift", "before", "first epoch", "then"]
            cells = [[split, *(f"{rate:,.0f}" for rate in rates)] for split, rates in shift.items()]
            print(f"\n{table([heading, *cells])}")
        result = {
            **header("model", self.quick),
            "settings": {"read_bytes_s": READ_BYTES_S, "repeats": self.repeats, "batch": 64},
            "again": sorted({*self.before.get("again", []), *self.again}),
            "photos": describe_photos(self.photos),
            "terms": None if self.terms is None else dataclasses.asdict(self.terms),
            "points": points,
            "auto": auto,
            "shift": {"ratio": SHIFT_RATIO, "slower": SHIFT, "jobs": 3, "images_s": shift},
            "missing": self.missing,
            "runs": runs,
            "shifts": shifts,
        }
        publish("model", self.quick, result, self.targets(points, auto) + self.shift_targets(shift))
        draw(result, RESULTS / ("model.quick.png" if self.quick else "model.png"))

    def shift(self, shifts: dict[str, list[Run]]) -> dict[str, list[float]]:
        """By split: images per second of all jobs before, in the first epoch after the shift, and then."""
        return {
            split: [statistics.median(run[when] for run in found) for when in ("before", "first", "after")]
            for split, found in shifts.items()
            if found
        }

    def shift_targets(self, shift: dict[str, list[float]]) -> list[Target]:
        """The wanted number: an epoch after the shift, the split that was chosen is about the best."""
        fixed = {split: rates[-1] for split, rates in shift.items() if split != AUTO}
        name = "after a shift, from the second epoch on: auto over the best split"
        if AUTO not in shift or not fixed:
            return [target(name, [], ">=", 0.9)]
        best = max(fixed, key=fixed.__getitem__)
        return [target(name, [shift[AUTO][-1] / fixed[best]], ">=", 0.9, f"best: {best}")]

    def auto(self, runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
        """What the split that was chosen gave, beside the best of those that were measured."""
        found = []
        for ratio in self.ratios:
            rates = {
                split: statistics.median(run["images_s"] for run in runs[name(split, ratio)])
                for split in (*SPLITS, AUTO)
                if runs[name(split, ratio)]
            }
            fixed = {split: rate for split, rate in rates.items() if split != AUTO}
            single = {split: rate for split, rate in fixed.items() if split in SINGLE}
            if AUTO in rates and single:
                best, form = max(fixed, key=fixed.__getitem__), max(single, key=single.__getitem__)
                found.append(
                    {
                        "ratio": ratio,
                        "auto": rates[AUTO],
                        "best": fixed[best],
                        "best_split": best,
                        "single": single[form],
                        "best_single": form,
                        "chose_it": all(
                            run["splits"][-1][form] == sum(run["splits"][-1].values())
                            for run in runs[name(AUTO, ratio)]
                        ),
                    }
                )
        return found

    def targets(self, points: list[dict[str, Any]], auto: list[dict[str, Any]]) -> list[Target]:
        """The wanted numbers."""
        found = []
        measured = np.array([point["measured"] for point in points])
        for model in MODELS:
            expected = np.array([point[model] for point in points])
            pearson = [float(np.corrcoef(measured, expected)[0, 1])] if len(points) > 2 else []
            error = [float(np.mean(np.abs(expected / measured - 1)))] if len(points) else []
            if model == DEFAULT:
                found.append(target(f"Pearson correlation, {model}", pearson, ">=", 0.97))
                found.append(target(f"mean absolute error, {model}", error, "<=", 0.12))
            else:
                note = "for comparison: the paper's own bar"
                found.append(target(f"Pearson correlation, {model}", pearson, ">=", 0.90, note))
        for item in auto:
            ratio = f"1:{item['ratio']:g}"
            note = f"best: {item['best_split']}"
            found.append(
                target(
                    f"auto over the best split at {ratio}", [item["auto"] / item["best"]], ">=", 0.95, note
                )
            )
            note = f"best: {item['best_single']}" + (", which auto chose, too" if item["chose_it"] else "")
            found.append(
                target(
                    f"auto over the best form at {ratio}", [item["auto"] / item["single"]], ">=", 1.0, note
                )
            )
        return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks/model/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1000 photos, three cache sizes, one repeat")
    parser.add_argument("--repeats", type=int, help="rounds (default: 2)")
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="CASE",
        help="measure cases of the last result again, and keep the others: auto, 1:10, shift, ...",
    )
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds to wait for an idle machine per run"
    )
    ModelBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
