"""Three sick set-ups, run for real: does ``headrace doctor`` name the cause, and is the gain that it promises had?"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.common.bench import DATA, REPOSITORY
from benchmarks.common.photos import PhotosUnavailable, describe_photos, make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, run_process
from benchmarks.common.tree import wait_until_idle
from benchmarks.doctor.cases import CASES, READ_BYTES_S, Case, Cure
from benchmarks.model.throttle import NoThrottle, Throttle, throttle

LIMIT_S = 240
PROFILE_S = 15


class DoctorBench:
    """One invocation."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick = bool(args.quick)
        self.patience_s = float(args.patience)
        self.repeats = args.repeats or (1 if self.quick else 5)
        self.count = 1000
        self.seconds = 4 if self.quick else 6
        self.cases = [case for case in CASES if not args.only or case.name in args.only]
        self.photos = DATA
        self.missing: dict[str, str] = {}

    def main(self) -> None:
        """Run the benchmark. What it finds never makes it fail."""
        try:
            self.photos = make_photos(DATA, self.count)
        except PhotosUnavailable as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
            return
        try:
            with throttle(self.photos) as group:
                found = self.run(group)
        except NoThrottle as error:
            self.missing[CASES[0].name] = str(error)
            self.cases = [case for case in self.cases if not case.slow]
            found = self.run(None)
        self.report(found)

    def run(self, group: Throttle | None) -> dict[str, list[dict[str, Any]]]:
        """All rounds of all cases: in each, the job as it is, and then with each cure."""
        found: dict[str, list[dict[str, Any]]] = {case.name: [] for case in self.cases}
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            environment = {
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]),
                "XDG_STATE_HOME": place,
                "XDG_CACHE_HOME": place,
                "HEADRACE_PROFILES": "1",
            }
            for case in self.cases:
                if case.profiled:
                    self.job(case, {"profile": PROFILE_S}, group, environment, 0)
            for number in range(1, self.repeats + 1):
                for case in self.cases:
                    try:
                        one = self.examine(case, group, environment, number)
                    except RunFailed as error:
                        self.missing[case.name] = str(error)
                        say(f"{case.name}: failed: {error}")
                        continue
                    found[case.name].append(one)
                    said = ", ".join(
                        f"{kind} {cure['promised']:.2f}x promised, {cure['real']:.2f}x had"
                        for kind, cure in one["cures"].items()
                    )
                    say(
                        f"[{number}/{self.repeats}, {time.monotonic() - begun:.0f} s] {case.name}: "
                        f"{one['cause']}; {said}"
                    )
        return found

    def examine(
        self, case: Case, group: Throttle | None, environment: dict[str, str], number: int
    ) -> dict[str, Any]:
        """One round of a case: the job, the doctor, the cures."""
        before = self.job(case, {}, group, environment, number)
        run = self.ask(environment)
        cures = {}
        for cure in case.cures:
            found = [one for one in run["advice"]["remedies"] if one["kind"] == cure.kind]
            if not found:
                self.missing[f"{case.name}: {cure.kind}"] = "the doctor did not think of it"
                continue
            cures[cure.kind] = self.follow(case, cure, found[0], group, environment, number)
        # What the machine does besides may have changed meanwhile: the same again, and the mean of both.
        again = self.job(case, {}, group, environment, number)
        sick = statistics.fmean([before["rate"], again["rate"]])
        for cured in cures.values():
            cured["real"] = cured["run"]["rate"] / sick
        return {
            "cause": run["advice"]["cause"],
            "says": run["says"],
            "rate": sick,
            "before": before,
            "again": again,
            "cures": cures,
            "advice": run["advice"],
        }

    def follow(
        self,
        case: Case,
        cure: Cure,
        remedy: dict[str, Any],
        group: Throttle | None,
        environment: dict[str, str],
        number: int,
    ) -> dict[str, Any]:
        """The job again, with a piece of advice followed."""
        run = self.job(case, cure.apply(remedy), group, environment, number)
        return {"what": remedy["what"], "promised": remedy["gain"], "run": run}

    def job(
        self,
        case: Case,
        changes: dict[str, Any],
        group: Throttle | None,
        environment: dict[str, str],
        number: int,
    ) -> Run:
        """One job; its rate, and what the outside saw of it."""
        wait_until_idle(self.patience_s)
        wanted = {
            "photos": str(self.photos), "count": self.count, "seconds": self.seconds, "seed": number,
            **case.orders, **changes,
        }  # fmt: skip
        if case.slow:
            assert group is not None
            group.limit(int(wanted.get("read_bytes_s", READ_BYTES_S)))
            wanted["group"] = str(group.procs)
        command = [sys.executable, "-m", "benchmarks.doctor.job", json.dumps(wanted)]
        return run_process(command, REPOSITORY, environment, LIMIT_S)

    def ask(self, environment: dict[str, str]) -> dict[str, Any]:
        """What the doctor says of the run that just ended."""
        command = [sys.executable, "-m", "headrace.cli", "doctor", "--json"]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RunFailed(done.stderr.strip())
        (run,) = json.loads(done.stdout)
        if run["advice"] is None:
            raise RunFailed("the doctor has too little to go by")
        return dict(run)

    def report(self, found: dict[str, list[dict[str, Any]]]) -> None:
        """Print and write."""
        rows = [["set-up", "cause named", "advice", "promised", "had", "off by"]]
        targets: list[Target] = []
        for case in self.cases:
            rounds, note = calm(found[case.name])
            causes = [one["cause"] for one in rounds]
            right = [float(all(cause == case.cause for cause in causes))] if causes else []
            targets.append(target(f"{case.name}: {case.cause} is named", right, ">=", 1, note))
            for cure in case.cures:
                had = [one["cures"][cure.kind] for one in rounds if cure.kind in one["cures"]]
                promised = [one["promised"] for one in had]
                real = [one["real"] for one in had]
                off = []
                if had:
                    off = [statistics.median(promised) / statistics.median(real) - 1]
                    rows.append(
                        [
                            case.name,
                            "/".join(sorted(set(causes))),
                            had[0]["what"],
                            f"{statistics.median(promised):.2f}x",
                            f"{statistics.median(real):.2f}x ({min(real):.2f} to {max(real):.2f})",
                            f"{100 * off[0]:+.0f} %",
                        ]
                    )
                name = f"{case.name}: gain by {cure.kind}, promised to had, off by"
                targets.append(target(name, [abs(one) for one in off], "<=", 0.2, note))
        print(table(rows, text=(0, 1, 2)))
        for case in self.cases:
            if found[case.name]:
                print(f"\n{case.name}: {found[case.name][-1]['says']}")
        result = {
            **header("doctor", self.quick),
            "settings": {
                "read_bytes_s": READ_BYTES_S,
                "repeats": self.repeats,
                "seconds": self.seconds,
                "batch": 64,
            },
            "photos": describe_photos(self.photos),
            "missing": self.missing,
            "rounds": found,
        }
        publish("doctor", self.quick, result, targets)


def calm(rounds: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The rounds that had the machine to themselves, or all if none had; and what has to be said about that."""
    loads = [
        max(
            run["others_cpu"]
            for run in (one["before"], one["again"], *(c["run"] for c in one["cures"].values()))
        )
        for one in rounds
    ]
    quiet = [one for one, load in zip(rounds, loads, strict=True) if load <= DISTURBED]
    if quiet or not rounds:
        return quiet, "" if len(quiet) == len(
            rounds
        ) else f"{len(quiet)} of {len(rounds)} rounds were undisturbed"
    return rounds, f"others kept up to {max(loads):.1f} CPUs busy"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks/doctor/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, shorter runs")
    parser.add_argument("--repeats", type=int, help="rounds (default: 5)")
    parser.add_argument("--only", action="append", default=[], choices=[case.name for case in CASES])
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds to wait for an idle machine per run"
    )
    DoctorBench(parser.parse_args()).main()


if __name__ == "__main__":
    main()
