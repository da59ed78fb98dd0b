"""A node, a server, the manager or a link lost every ten seconds: whether epochs stay exact and rates come back.

Started by ``make bench-losses``; needs root for network namespaces. Four nodes with real Ray across them, and S3
storage; ranks train on three of them at a steady pace, which leaves CPU time over. The fourth has no rank, so that
all of it can be lost. A loss is: SIGKILL of a node's server, SIGKILL of the manager, a cable that is cut for two
seconds, and SIGKILL of everything on the fourth node, which joins again after six.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.bucket.network import NoNetwork, inside
from benchmarks.cluster.losses_job import BATCH, rows_of
from benchmarks.cluster.network import Lan
from benchmarks.cluster.ray_nodes import RayNodes
from benchmarks.cluster.storage import Storage
from benchmarks.common.photos import PhotosUnavailable, make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target
from benchmarks.common.rounds import STOLEN, least_stolen
from benchmarks.common.tree import stolen_cpu, stolen_since

REPOSITORY = Path(__file__).resolve().parents[2]
NODES, RANKS = 4, 3
SPARE = NODES - 1
"""The node that is lost as a whole."""
EVERY, BACK = 10.0, 5.0
"""Seconds between losses, and after which the rate has to be back."""
CUT, AWAY = 2.0, 6.0
"""Seconds for which a cable is cut, and the fourth node is gone."""
QUIET = 20.0
"""Seconds for which the undisturbed rate is measured."""
TRIES = 12
"""Measurements of that where others have much of the CPUs meanwhile."""
LOSSES = ("server", "manager", "link", "node", "link of the fourth", "server")
"""One after the other, again and again. After the first of each, all that losses need for the first time is there."""
KINDS = {
    "servers": "ray::NodeActor",
    "manager": "ray::Manager",
    "ranks": "losses_job",
    "workers": "spawn_main",
    "helpers": "headrace.cluster.helper",
    "hosts": "headrace.host.service",
}
"""Processes of headrace's, by what their command lines have in them."""


class Losses:
    """The whole run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick: bool = args.quick
        self.seconds: float = args.seconds or (120.0 if args.quick else 600.0)
        self.step: float = args.step
        self.photos: int = args.photos
        self.lost: list[tuple[float, str, float]] = []
        """When, what, and the share of CPU time that the hypervisor gave to others until the next one."""
        self.before: dict[str, float] = {}
        self.early: dict[str, float] = {}
        self.after: dict[str, float] = {}
        """Memory by kind of process: before the first loss, after a few, after the last."""

    def main(self) -> None:
        """Measure and report."""
        try:
            photos = make_photos(REPOSITORY / ".data", 400)
            lan = Lan(NODES)
        except (PhotosUnavailable, NoNetwork) as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
            return
        place = Path(tempfile.mkdtemp(prefix="hrl-"))
        shared = set(os.listdir("/dev/shm"))
        try:
            folder = _one_class_each(photos, place / "photos", self.photos)
            (place / "right.json").write_text(json.dumps(rows_of(str(folder / "train"))))
            storage = Storage(lan.storage, REPOSITORY / ".data" / "cluster-storage", folder)
            try:
                self.ray = RayNodes(lan)
                try:
                    self.trouble(lan, place)
                finally:
                    self.ray.close()
            finally:
                storage.close()
            self.left = sorted(set(os.listdir("/dev/shm")) - shared)
            told = [
                [json.loads(line) for line in (place / f"rank{rank}").read_text().splitlines()]
                for rank in range(RANKS)
            ]
        finally:
            lan.close()
            shutil.rmtree(place, ignore_errors=True)
        self.report(told)

    # -- the run -------------------------------------------------------------------------------------------------

    def trouble(self, lan: Lan, place: Path) -> None:
        """Train, and lose one thing after the other."""
        for one in (lan.storage, *lan.nodes):
            lan.limit(one, "1gbit")
        self.ray.command("start", "--memory", "64MiB", "--cpus", "1")
        ranks = [self.rank(lan, place, node) for node in range(RANKS)]
        try:
            say("ranks start, and have two epochs to themselves")
            self.wait_for_epochs(place, 2, ranks)
            quiet = least_stolen(
                lambda: {"begun": time.time(), "memory": self.settled_memory(lan)},
                TRIES,
                lambda stolen: say(f"others had {stolen:.0%} of the CPUs meanwhile; once more"),
            )
            assert quiet is not None
            self.quiet, self.before = (quiet["begun"], quiet["begun"] + QUIET), quiet["memory"]
            until = time.monotonic() + self.seconds
            for what in itertools.cycle(LOSSES):
                if time.monotonic() >= until:
                    break
                if len(self.lost) == len(LOSSES):
                    measured = time.monotonic()
                    self.early = self.settled_memory(lan)
                    until += time.monotonic() - measured
                begun, at, clock = time.monotonic(), time.time(), stolen_cpu()
                say(f"lost: {what} ({until - time.monotonic():.0f} s to go)")
                self.lose(lan, what)
                time.sleep(max(0.0, begun + EVERY - time.monotonic()))
                self.lost.append((at, what, stolen_since(clock)))
            self.after = self.settled_memory(lan)
            for process in ranks:
                process.send_signal(signal.SIGTERM)
            self.failed = sum(1 for process in ranks if process.wait(120))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        self.ray.command("stop")
        self.processes: list[tuple[int, str]] = []
        for _ in range(20):
            self.processes = [one for node in lan.nodes for one in _titles(node) if _kind(one[1])]
            if not self.processes:
                return
            time.sleep(1)

    def rank(self, lan: Lan, place: Path, node: int) -> subprocess.Popen[bytes]:
        """A training process."""
        command = [
            *inside(lan.nodes[node]), sys.executable, "-m", "benchmarks.cluster.losses_job", "--right",
            str(place / "right.json"), "--out", str(place / f"rank{node}"), "--step", str(self.step),
        ]  # fmt: skip
        # (hosts of a machine outlive jobs by a minute, else)
        return subprocess.Popen(command, env={**self.ray.environment(node), "HEADRACE_HOST_IDLE": "2"})

    def wait_for_epochs(self, place: Path, count: int, ranks: list[Any]) -> None:
        """Until each rank has had so many."""
        until = time.monotonic() + 180
        for rank in range(RANKS):
            path = place / f"rank{rank}"
            while not path.exists() or path.read_text().count('"epoch"') < count:
                if time.monotonic() > until or any(one.poll() is not None for one in ranks):
                    raise RuntimeError(f"rank {rank} does not train")
                time.sleep(0.2)

    def lose(self, lan: Lan, what: str) -> None:
        """One loss, and what brings it back."""
        choose = random.Random(len(self.lost))
        if what == "server":
            _kill(lan.nodes[choose.randrange(NODES)], "ray::NodeActor")
        elif what == "manager":
            for node in lan.nodes:
                _kill(node, "ray::Manager")
        elif what == "node":
            self.ray.lose(SPARE)
            threading.Timer(AWAY, self.ray.start, (SPARE,)).start()
        else:
            node = SPARE if "fourth" in what else choose.randrange(1, RANKS)
            lan.cut(lan.nodes[node], cut=True)
            time.sleep(CUT)
            lan.cut(lan.nodes[node], cut=False)

    def settled_memory(self, lan: Lan) -> dict[str, float]:
        """What all processes of headrace have together after a quiet time, shared pages counted once; MB by kind."""
        time.sleep(QUIET)
        found = dict.fromkeys(KINDS, 0.0)
        for pid, title in {one for node in lan.nodes for one in _titles(node)}:
            if kind := _kind(title):
                found[kind] += _pss(pid) / 1e6
        return found

    # -- what came of it ------------------------------------------------------------------------------------------

    def report(self, told: list[list[dict[str, Any]]]) -> None:
        """Tables and targets."""
        batches = sorted((one["at"], one["images"]) for rank in told for one in rank if "at" in one)
        epochs = [one for rank in told for one in rank if "epoch" in one]

        def rate(begin: float, end: float) -> float:
            return sum(images for at, images in batches if begin <= at < end) / (end - begin)

        usual = rate(*self.quiet)
        by_kind: dict[str, list[tuple[float, float, float]]] = {}
        for at, what, stolen in self.lost:
            by_kind.setdefault(what, []).append(
                (rate(at, at + BACK) / usual, rate(at + BACK, at + EVERY) / usual, stolen)
            )
        rows = [
            [
                "lost",
                "times",
                "rate in the 5 s after it",
                "in the 5 s after these",
                "the least",
                "stolen, at most",
            ]
        ]
        for what, found in by_kind.items():
            during, after, stolen_then = zip(*found, strict=True)
            shown = (statistics.median(during), statistics.median(after), min(after), max(stolen_then))
            rows.append([what, str(len(found)), *(f"{one:.2f}" for one in shown)])
        print(
            f"\nundisturbed: {usual:,.0f} images/s over {RANKS} ranks; rates as parts of it\n\n{table(rows)}\n\n"
            f"{len(epochs)} epochs, {sum(one['epoch'] for one in epochs)} exact; memory of all processes "
            f"{_shown(self.before)} MB before the first loss, {_shown(self.early)} MB after {len(LOSSES)}, "
            f"{_shown(self.after)} MB after the last; "
            f"left behind: {len(self.processes)} processes, {len(self.left)} files in /dev/shm\n"
        )
        for rank in told:
            stats = next((one["stats"] for one in rank if "stats" in one), "")
            print("\n".join(line for line in stats.splitlines() if line.startswith("cluster")))
        # (what comes back after a loss is seen where the machine was ours in those ten seconds)
        ours = [late for found in by_kind.values() for _, late, stolen in found if stolen <= STOLEN]
        after = ours or [late for found in by_kind.values() for _, late, _ in found]
        back, left = statistics.mean(one >= 0.95 for one in after), len(self.processes) + len(self.left)
        note = (
            ""
            if len(after) == len(self.lost)
            else f"of {len(after)}; others had CPUs in {len(self.lost) - len(after)}"
        )
        targets: list[Target] = [
            target("epochs that are exact, of all", [statistics.mean(one["epoch"] for one in epochs)], ">=", 1),
            target("ranks that failed", [float(self.failed)], "<=", 0),
            target("rate from 5 s after a loss on, the median", [statistics.median(after)], ">=", 0.95),
            target("losses after which it is back to 95 % by then", [back], ">=", 1, note),
            target(
                "memory after all losses, over before",
                [sum(self.after.values()) / sum(self.before.values())], "<=", 1.1,
            ),
            target(
                f"memory after all losses, over after the first {len(LOSSES)}",
                [sum(self.after.values()) / sum((self.early or self.before).values())], "<=", 1.05,
            ),
            target("processes and shared files left behind", [float(left)], "<=", 0),
        ]  # fmt: skip
        result = {
            **header("losses", self.quick),
            "usual": usual,
            "losses": by_kind,
            "memory_mb": [self.before, self.early, self.after],
            "epochs": len(epochs),
        }
        publish("losses", self.quick, result, targets)


def _one_class_each(photos: Path, into: Path, count: int) -> Path:
    """Photos in as many classes, so that labels tell them apart."""
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:count]):
        folder = into / "train" / f"c{number:05d}"
        folder.mkdir(parents=True)
        shutil.copy(path, folder / "photo.jpg")
    return into


def _titles(node: str) -> list[tuple[int, str]]:
    """The processes of a namespace and their command lines."""
    listed = subprocess.run(["ip", "netns", "pids", node], capture_output=True, text=True).stdout
    found = []
    for pid in map(int, listed.split()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append((pid, words))
    return found


def _kind(title: str) -> str:
    """What a process of headrace's is; empty: none of these."""
    return next((kind for kind, mark in KINDS.items() if mark in title), "")


def _shown(memory: dict[str, float]) -> str:
    parts = ", ".join(f"{kind} {nbytes:,.0f}" for kind, nbytes in memory.items())
    return f"{sum(memory.values()):,.0f} ({parts})"


def _kill(node: str, title: str) -> None:
    for pid, words in _titles(node):
        if words.startswith(title):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _pss(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024.0 * int(line.split()[1])
    return 0.0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-losses", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes of losses instead of ten")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--photos", type=int, default=400)
    parser.add_argument("--step", type=float, default=0.2, help=f"seconds of training for {BATCH} images")
    begun = time.monotonic()
    Losses(parser.parse_args()).main()
    say(f"took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
