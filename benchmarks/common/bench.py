"""What benchmarks of contenders have in common: their options, preparation, rounds, and how they end."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmarks.common.contenders import Entry
from benchmarks.common.environments import Peer, install_peers
from benchmarks.common.photos import PhotosUnavailable, describe_photos, make_photos
from benchmarks.common.progress import say, track
from benchmarks.common.report import RESULTS, Target, header, publish
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, interleave, run_process
from benchmarks.common.tree import SAMPLING

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / ".data"
WORK = "random order, decode, random resized crop 224, flip, uint8"
Runs = dict[str, list[Run | None]]
E = TypeVar("E", bound=Entry)


def options(
    name: str, about: str | None, entries: Mapping[str, Entry], *, quick: str, repeats: str, patience: float
) -> argparse.ArgumentParser:
    """The options that all have; ``quick`` and ``repeats`` say what these mean."""
    parser = argparse.ArgumentParser(prog=f"benchmarks/{name}/run", description=about)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--patience", type=float, default=patience, help="seconds to wait for an idle machine per run"
    )
    parser.add_argument("--repeats", type=int, help=repeats)
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(entries), help="measure only these"
    )
    return parser


class Bench(Generic[E]):
    """One invocation: its settings, and what could not be measured and why."""

    sampling = SAMPLING
    """The part of a CPU that looking at the memory of a run may take."""

    def __init__(
        self, name: str, entries: Sequence[E], peers: tuple[Peer, ...], args: argparse.Namespace
    ) -> None:
        self.name, self.peers = name, peers
        self.quick, self.patience_s = bool(args.quick), float(args.patience)
        self.entries = [entry for entry in entries if not args.only or entry.name in args.only]
        self.count = 1000 if self.quick else 4000
        self.cpus = len(os.sched_getaffinity(0))
        self.photos = DATA
        self.missing: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}

    # -- what each benchmark says for itself ------------------------------------------------------------------

    def make_ready(self, entry: E) -> Run:
        """Let a contender prepare its files, in its environment; gives its versions."""
        raise NotImplementedError

    def run(self) -> Runs:
        """All rounds."""
        raise NotImplementedError

    def report(self, runs: Runs) -> None:
        """Print, write and draw."""
        raise NotImplementedError

    # -- what all do ------------------------------------------------------------------------------------------

    def main(self) -> None:
        """Run the benchmark. What it finds never makes it fail."""
        try:
            self.prepare()
        except PhotosUnavailable as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
            return
        self.report(self.run())

    def prepare(self) -> None:
        """Photos, peers, their files."""
        self.photos = make_photos(DATA, self.count)
        failed = install_peers(REPOSITORY, self.peers)
        for entry in track(self.entries, "preparing contenders"):
            # (several contenders may be one peer in different set-ups)
            reason = failed.get(entry.name.split("-")[0]) if entry.environment == "peers" else None
            if reason is None:
                try:
                    self.versions[entry.name] = self.make_ready(entry)["versions"]
                except RunFailed as error:
                    reason = str(error)
            if reason is not None:
                self.missing[entry.name] = reason

    def measure_process(self, entry: E, words: Sequence[str], limit_s: float) -> Run:
        """Run the benchmark's ``measure`` for a contender."""
        home = ".venv-peers" if entry.environment == "peers" else ".venv"
        paths = [str(REPOSITORY), *([str(REPOSITORY / "src")] if entry.environment == "headrace" else [])]
        command = [str(REPOSITORY / home / "bin" / "python"), "-m", f"benchmarks.{self.name}.measure", *words]
        environment = {"PYTHONPATH": os.pathsep.join(paths)}
        return run_process(command, REPOSITORY, environment, limit_s, self.sampling)

    def rounds(
        self,
        names: Sequence[str],
        repeats: int,
        measure: Callable[[str, int], Run],
        tell: Callable[[Run], str],
    ) -> Runs:
        """Measure what is named, interleaved, and ``tell`` of each run; what fails is missing."""
        total, started, done = len(names) * repeats, time.monotonic(), 0

        def one(name: str, number: int) -> Run | str:
            nonlocal done
            done += 1
            try:
                result = measure(name, number)
            except RunFailed as error:
                say(f"[{done}/{total}] {name}: failed: {error}")
                return str(error)
            others = result["others_cpu"]
            beside = f"  (others keep {others:.1f} CPUs busy)" if others > DISTURBED else ""
            say(f"[{done}/{total}, {time.monotonic() - started:.0f} s] {name}: {tell(result)}{beside}")
            return result

        runs, failed = interleave(names, repeats, one)
        self.missing |= failed
        return runs

    def result(self, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Everything, as it is written."""
        settings = {"work": WORK, **settings, "page_cache": "warm"}
        photos = describe_photos(self.photos)
        return {**header(self.name, self.quick), "settings": settings, "photos": photos, **more}

    def finish(
        self,
        result: dict[str, Any],
        runs: Iterable[Run | None],
        found: Sequence[Target],
        draw: Callable[[dict[str, Any], Path], None],
    ) -> None:
        """Whether times can be trusted, the targets; write and draw."""
        loads = [run["others_cpu"] for run in runs if run]
        if loads and max(loads) > DISTURBED:
            print(
                f"\nThe machine was not idle: others kept up to {max(loads):.1f} CPUs busy. "
                "Times are not to be trusted."
            )
        publish(self.name, self.quick, result, found)
        if self.quick:
            return
        try:
            draw(result, RESULTS / f"{self.name}.png")
            print(f"written: benchmarks/results/{self.name}.png")
        except ImportError as error:
            print(f"no plot: {error}")
