"""Four nodes, storage and limited cables on one machine: headrace's cluster against loaders that each node has.

Started by ``make bench-cluster``; needs root for network namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bucket.network import NoNetwork, inside
from benchmarks.cluster.groups import busy, enter, make_cgroup, make_cpuset, one_queue
from benchmarks.cluster.incast import BATCHES, IMAGES, WAITS, Incast
from benchmarks.cluster.network import Lan
from benchmarks.cluster.ray_nodes import RayNodes
from benchmarks.cluster.storage import Storage
from benchmarks.cluster.tf_service import NoService, TfService
from benchmarks.cluster.tf_service import environment as tf_environment
from benchmarks.cluster.tf_service import python as tf_python
from benchmarks.common.photos import PhotosUnavailable, make_large_photos, make_photos
from benchmarks.common.progress import say
from benchmarks.common.report import Target, header, publish, table, target
from benchmarks.common.rounds import STOLEN, least_stolen
from benchmarks.common.tree import busy_cpu, stolen_cpu, stolen_since

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = 4
LARGE = 200
"""Photos of 3 to 6 megapixels."""
RANK_CPUS = 0.3
"""CPUs of a rank whose node has none left: for its loop, and for taking rows in."""
_TURNS, _TURN, _SETTLING = 6, 10, 3
"""Turns of each of two jobs, epochs in each, and those of them that do not count."""
_TRIES, _REST = 3, 20.0
"""How often a run is repeated for which other machines on the same hardware left too little; seconds before that."""
_PATIENCE, _PATIENCE_QUICK = 600.0, 100.0
"""Seconds after which jobs that are not done are given up."""
CONTENDERS = ("torch", "tf", "alone", "uniform", "headrace", "ray")
QUICK = ("torch", "tf", "headrace", "ray")
"""``headrace``: jobs get what nodes have read, as they do by default; ``uniform``: in an order of their own each."""
OTHERS = ("torch", "ray", "tf")
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
Run = dict[str, Any]
_STOLEN_WAITS = 0.02
"""The share of CPU time that others may have where single waits count: a second of it would be the longest."""


class ClusterBench:
    """All runs, round by round."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick: bool = args.quick
        self.photos: int = args.photos or (300 if args.quick else 1000)
        self.rounds: int = args.rounds or (1 if args.quick else 3)
        self.storage_rate: str = args.storage_rate
        self.node_rate: str = args.node_rate
        self.only: list[str] = args.only
        self.found: dict[str, list[Run]] = {}
        known = QUICK if self.quick else CONTENDERS
        self.contenders = [name for name in CONTENDERS if name in (self.only or known)]

    def main(self) -> None:
        """Measure and report."""
        try:
            folder = make_photos(REPOSITORY / ".data", self.photos)
            lan = Lan(NODES)
        except (PhotosUnavailable, NoNetwork) as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
            return
        try:
            if "tf" in self.contenders:
                tf_python()
        except NoService as error:
            self.contenders.remove("tf")
            say(f"tf is left out: {error}")
        storage = ray = None
        try:
            storage = Storage(lan.storage, REPOSITORY / ".data" / "cluster-storage", folder.resolve())
            # (as Ray counts: two CPUs of a node for the tasks of a job of Ray Data, and one for what else Ray does)
            ray = RayNodes(lan, cpus=3)
            self.nbytes = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
            for number in range(self.rounds):
                if number and "ray" in self.contenders:
                    # (Ray 2.60's nodes may end as they take back object stores that groups of a job had)
                    ray.close()
                    ray = RayNodes(lan, cpus=3)
                for name in self.contenders:
                    if name != "ray":
                        self.note(name, self.quietly(name, partial(self.shared_data, lan, ray, name)))
                if not self.only or "large" in self.only:
                    self.large(lan, ray)
                if not self.only or "starved" in self.only:
                    self.starved(lan, ray)
                if "ray" in self.contenders:
                    self.note("ray", self.quietly("ray", partial(self.shared_data, lan, ray, "ray")))
                say(f"round {number + 1} of {self.rounds} is over")
        finally:
            if ray is not None:
                ray.close()
            if storage is not None:
                storage.close()
            lan.close()
        for _ in range(self.rounds if not self.only or "incast" in self.only else 0):
            self.incast(folder)
        self.report()

    def note(self, name: str, run: Run | None) -> None:
        """Keep what a run found."""
        if run is not None:
            self.found.setdefault(name, []).append(run)
            shown = ", ".join(f"{key} {value:,.1f}" for key, value in run.items() if isinstance(value, float))
            say(f"{name}: {shown}")

    def quietly(self, name: str, measure: Callable[[], Run | None], most: float = STOLEN) -> Run | None:
        """Measure, again where other machines on the same hardware had more than ``most`` of the CPUs."""

        def again(stolen: float) -> None:
            say(f"{name}: others had {stolen:.0%} of the CPUs meanwhile; once more")
            time.sleep(_REST)

        return least_stolen(measure, 1 if self.quick else _TRIES, again, most)

    # -- one dataset, a job on each node -----------------------------------------------------------------------------

    def shared_data(self, lan: Lan, ray: RayNodes, name: str) -> Run | None:
        """A job on each node over the same photos, behind a cable of storage's that is short."""
        lan.limit(lan.storage, self.storage_rate)
        for node in lan.nodes:
            lan.limit(node, self.node_rate)
        service, words = None, []
        if name in ("headrace", "uniform"):
            ray.command("start", "--memory", "256MiB", "--cpus", "0")
        elif name == "tf":
            try:
                service = TfService(lan)
            except NoService as error:
                say(f"tf: {error}")
                return None
            words = ["--source", service.source, "--photos", str(self.photos)]
        try:
            before = [lan.moved(one)[1 if one == lan.storage else 0] for one in (lan.storage, *lan.nodes)]
            cpu = used_cpu()
            ranks = self.ranks(lan, ray, name, range(NODES), epochs=2 if self.quick else 3, words=words)
            cpu = used_cpu() - cpu
            after = [lan.moved(one)[1 if one == lan.storage else 0] for one in (lan.storage, *lan.nodes)]
            if ranks is None:
                return None
            fetched = 0.0
            if name in ("headrace", "uniform"):
                told = json.loads(ray.command("status", "--json"))
                fetched = float(sum(one["fetched_bytes"] for one in told)) / self.nbytes
            links = [(now - then) / 1e6 for now, then in zip(after, before, strict=True)]
            images = sum(epoch["images"] for rank in ranks for epoch in rank["epochs"])
            return {
                "first": sum(rank["epochs"][0]["images"] / rank["epochs"][0]["seconds"] for rank in ranks),
                "later": sum(
                    statistics.mean(one["images"] / one["seconds"] for one in rank["epochs"][1:])
                    for rank in ranks
                ),
                "storage_mb": links[0],
                "storage_reads": fetched,
                "node_mb": statistics.mean(links[1:]),
                "links_mb": links,
                "cpu_s_per_1000": 1000 * cpu / images,
                "whole": all(epoch["images"] == self.photos for rank in ranks for epoch in rank["epochs"]),
            }
        finally:
            if name in ("headrace", "uniform"):
                ray.command("stop")
            elif service is not None:
                service.close()

    def ranks(
        self, lan: Lan, ray: RayNodes, name: str, nodes: Any, *, epochs: int, workers: int = 1,
        cgroup: str = "", more: dict[str, str] | None = None, words: Sequence[str] = (),
    ) -> list[Run] | None:  # fmt: skip
        """Jobs on some nodes, at the same time; None: one of them failed."""
        with tempfile.TemporaryDirectory(prefix="hr-cluster-") as meeting:
            told = ["--meet", meeting, "--ranks", str(len(list(nodes))), *words]
            return self.gather(
                name,
                [
                    self.begin(
                        lan,
                        ray,
                        name,
                        node,
                        epochs=epochs,
                        workers=workers,
                        cgroup=cgroup,
                        more=more,
                        words=told,
                    )
                    for node in nodes
                ],
            )

    @staticmethod
    def begin(
        lan: Lan, ray: RayNodes, name: str, node: int, *, epochs: int, workers: int, cgroup: str = "",
        more: dict[str, str] | None = None, words: Sequence[str] = (),
    ) -> subprocess.Popen[str]:  # fmt: skip
        """A job on a node."""
        command = [
            *inside(lan.nodes[node]), tf_python() if name == "tf" else sys.executable, "-m", "benchmarks.cluster.job",
            name, "--workers", str(workers), "--epochs", str(epochs), "--name", str(node), *words,
        ]  # fmt: skip
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**(tf_environment() if name == "tf" else ray.environment(node)), **(more or {})},
            preexec_fn=(lambda: enter(cgroup)) if cgroup else None,
        )

    def gather(self, name: str, processes: Sequence[subprocess.Popen[str]]) -> list[Run] | None:
        """What jobs found; None: one of them failed."""
        patience = _PATIENCE_QUICK if self.quick else _PATIENCE
        out, until = [], time.monotonic() + patience
        for process in processes:
            try:
                said, error = process.communicate(timeout=max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                said, error = process.communicate()
            if process.returncode or not said:
                say(f"{name}: {error.strip().splitlines()[-1] if error.strip() else process.returncode}")
            else:
                out.append(json.loads(said.splitlines()[-1]))
        return out if len(out) == len(processes) else None

    # -- photos that are costly to decode ----------------------------------------------------------------------------

    def large(self, lan: Lan, ray: RayNodes) -> None:
        """A job on each node over the same large photos, which nodes hold as they are, or decoded and resized; or as
        is measured to pay."""
        folder = make_large_photos(REPOSITORY / ".data", LARGE // 2 if self.quick else LARGE)
        for node in lan.nodes:
            lan.limit(node, self.node_rate)
        # (an epoch of decoded photos is over in half a second, and says little by itself)
        few, many = (3, 16) if self.quick else (6, 24)
        kinds = {
            "encoded": (few, ["--tier", "none"]),
            "decoded": (many, ["--tier", "cluster"]),
            "as measured": (many, []),
        }
        for kind, (epochs, words) in kinds.items():
            name, source = f"large, {kind}", ["--source", str(folder.resolve()), "--large"]
            self.note(name, self.quietly(name, partial(self.large_data, lan, ray, [*source, *words], epochs)))

    def large_data(self, lan: Lan, ray: RayNodes, words: Sequence[str], epochs: int) -> Run | None:
        """One of these ways."""
        ray.command("start", "--memory", "256MiB", "--cpus", "0")
        try:
            before, cpu = [lan.moved(node)[0] for node in lan.nodes], used_cpu()
            ranks = self.ranks(lan, ray, "uniform", range(NODES), epochs=epochs, words=words)
            moved = [lan.moved(node)[0] - then for node, then in zip(lan.nodes, before, strict=True)]
            cpu = used_cpu() - cpu
        finally:
            ray.command("stop")
        if ranks is None:
            return None
        rates = [[one["images"] / one["seconds"] for one in rank["epochs"]] for rank in ranks]
        return {
            "epochs": [sum(of) for of in zip(*rates, strict=True)],
            "first": sum(rate[0] for rate in rates),
            # (jobs are over one after the other: some have the last epoch to themselves)
            "later": sum(statistics.median(rate[1:]) for rate in rates),
            "node_mb_per_epoch": statistics.mean(moved) / 1e6 / epochs,
            "cpu_s_per_1000": 1000 * cpu / sum(one["images"] for rank in ranks for one in rank["epochs"]),
        }

    # -- a rank whose node has no CPU left ---------------------------------------------------------------------------

    def starved(self, lan: Lan, ray: RayNodes) -> None:
        """What a rank gets whose node has no CPU left: by itself, with helpers, and what idle nodes could do.

        In two ways: its CPU is busy with somebody else's work, at the same priority; and it may use 0.3 of a CPU.
        """
        for one in (lan.storage, *lan.nodes):
            lan.limit(one, None)
        try:
            first = make_cpuset("rank", 0)
            others = make_cpuset("rest", 1)
            little = make_cgroup("rank", RANK_CPUS)
            # (all nodes are one machine: what the rank has is not the others')
            rest = make_cgroup("rest", (os.cpu_count() or 1) - RANK_CPUS)
        except OSError as error:
            say(f"no CPU can be taken from a rank here ({error}); it is not measured what helpers give")
            return
        # (whoever serves and helps is on the other nodes, and so on the other CPU)
        with ray.kept_to(others), busy(first):
            self.starved_by("busy", lan, ray, first, others, workers=1)
        self.starved_by("little", lan, ray, little, rest, workers=2)

    def starved_by(self, how: str, lan: Lan, ray: RayNodes, own: str, others: str, *, workers: int) -> None:
        """One of these ways. ``own``, ``others``: control groups. ``workers``: of who has the CPUs of the others.

        A job on an idle node, and the one that is short of CPUs, have turns of some epochs: a machine's speed may
        change by a third within a minute.
        """
        turns, alone = (2, 2) if self.quick else (_TURNS, 3)
        before = stolen_cpu()
        ray.command("start", "--memory", "256MiB", "--cpus", "1")
        try:
            with tempfile.TemporaryDirectory(prefix="hr-cluster-") as meeting:
                words, no_help = ["--meet", meeting, "--turn-epochs", str(_TURN)], {"HEADRACE_HELP": "0"}
                jobs = [
                    self.begin(
                        lan, ray, "uniform", 1, epochs=turns * _TURN, workers=workers, cgroup=others, more=no_help,
                        words=[*words, "--turn", "0/2"],
                    ),
                    self.begin(
                        lan, ray, "uniform", 0, epochs=turns * _TURN, workers=1, cgroup=own,
                        words=[*words, "--turn", "1/2"],
                    ),
                ]  # fmt: skip
                both = self.gather("uniform", jobs)
            none = self.ranks(lan, ray, "uniform", [0], epochs=alone, workers=1, cgroup=own, more=no_help)
        finally:
            ray.command("stop")
        if both is None or none is None:
            return
        stolen = stolen_since(before)
        idle, helped = (
            [_rate(rank["epochs"][at : at + _TURN]) for at in range(0, turns * _TURN, _TURN)] for rank in both
        )
        say(next((row for row in both[1]["stats"].splitlines() if row.startswith("cluster")), ""))
        run: Run = {
            "idle node": statistics.mean(idle),
            "no help": _rate(none[0]["epochs"], first=1),
            "helped": statistics.mean(helped),
            "ratio": sum(helped) / sum(idle),
            "ratios": [mine / theirs for mine, theirs in zip(helped, idle, strict=True)],
            "stolen": stolen,
        }
        self.note(f"starved, {how}", run)

    # -- eight that send to one --------------------------------------------------------------------------------------

    def incast(self, folder: Path) -> None:
        """Eight nodes prepare rows for one whose cable is short, with pacing and without."""
        incast, waits = Incast(folder, 3200 if self.quick else IMAGES), 0 if self.quick else WAITS
        try:
            for batch in BATCHES[:1] if self.quick else BATCHES:
                for paced in (True, False):
                    name, measure = _incast(batch, paced=paced), partial(incast.measure, batch, paced=paced)
                    self.note(name, self.quietly(name, partial(measure, waits=waits), _STOLEN_WAITS))
        finally:
            incast.close()

    def allows(self) -> float:
        """Images/s over all ranks that storage's cable allows if each image passes it once."""
        rate = float(self.storage_rate[:-4]) * _UNITS[self.storage_rate[-4:]] / 8
        return NODES * rate * self.photos / self.nbytes

    # -- what came of it --------------------------------------------------------------------------------------

    def report(self) -> None:
        """Tables and targets."""
        rows = [["", "first epoch", "later", "MB from storage", "to a node", "CPU s per 1000", "stolen"]]
        for name in CONTENDERS:
            runs = self.found.get(name, [])
            if runs:
                cells = ["first", "later", "storage_mb", "node_mb", "cpu_s_per_1000", "stolen"]
                rows.append(
                    [name, *(f"{statistics.median(run[cell] for run in runs):,.2f}" for cell in cells)]
                )
        kinds = [
            _incast(batch, paced=paced).partition(", ")[2] for batch in BATCHES for paced in (True, False)
        ]
        print(f"\nimages/s over {NODES} ranks, storage behind {self.storage_rate}\n\n{table(rows)}")
        cells = ("first", "later", "node_mb_per_epoch", "cpu_s_per_1000", "stolen")
        print(_shown(self.found, "large", ("encoded", "decoded", "as measured"), cells))
        print(
            _shown(
                self.found,
                "starved",
                ("busy", "little"),
                ("no help", "helped", "idle node", "ratio", "stolen"),
            )
        )
        print(_shown(self.found, "incast", kinds, ("p50", "p99", "ratio", "images_s", "stolen")))
        result = {
            **header("cluster", self.quick),
            "photos": self.photos,
            "nodes": NODES,
            "storage_rate": self.storage_rate,
            "node_rate": self.node_rate,
            "runs": self.found,
        }
        publish("cluster", self.quick, result, self.targets())

    def large_over(self, one: str, *others: str) -> list[float]:
        """Rates of later epochs over large photos, over the best of others, round by round."""
        rates = [[run["later"] for run in self.found.get(f"large, {name}", [])] for name in (one, *others)]
        return [mine / max(theirs) for mine, *theirs in zip(*rates, strict=False)]

    def targets(self) -> list[Target]:
        """What headrace promises, round by round."""
        mine = self.found.get("headrace", [])

        def ratios(what: str, others: Sequence[str]) -> list[float]:
            # (whoever failed in a round counts with its last one)
            runs = [self.found[name] for name in others if name in self.found]
            best = [max(one[min(at, len(one) - 1)][what] for one in runs) for at in range(len(mine)) if runs]
            return [run[what] / rate for run, rate in zip(mine, best, strict=False)]

        firsts = [run["first"] for name in OTHERS for run in self.found.get(name, [])]
        allows = self.allows() / max(firsts) if firsts else 0.0
        return [
            target(
                "storage read by the cluster in all epochs, over the dataset",
                [run["storage_reads"] for run in mine], "<=", 1.02,
            ),
            target(
                "first epoch, images/s over the best of the others",
                ratios("first", OTHERS), ">=", 2, f"storage's cable allows {allows:.2f}" if firsts else "",
            ),
            target(
                "first epoch, over the best of those that prepare for each job",
                ratios("first", ("torch", "ray")), ">=", 2,
            ),
            target(
                "later epochs, over the best of the others",
                ratios("later", OTHERS), ">=", 2,
            ),
            target(
                "large photos, later epochs: decoded in the nodes' memory, over encoded",
                self.large_over("decoded", "encoded"), ">=", 2,
            ),
            target(
                "large photos, later epochs: as measured to pay, over the better of these",
                self.large_over("as measured", "decoded", "encoded"), ">=", 0.9,
            ),
            target(
                "a rank whose CPU is busy, over what idle nodes can prepare",
                [run["ratio"] for run in self.found.get("starved, busy", [])], ">=", 0.9,
            ),
            target(
                f"a rank with {RANK_CPUS} of a CPU, the same",
                [run["ratio"] for run in self.found.get("starved, little", [])], ">=", 0.9,
            ),
            *(
                target(
                    f"eight to one, batches of {batch}: p99 of batch waits over p50",
                    [run["ratio"] for run in self.found.get(_incast(batch, paced=True), [])], "<=", 2,
                )
                for batch in (BATCHES[:1] if self.quick else BATCHES)
            ),
        ]  # fmt: skip


def _rate(epochs: Sequence[Run], first: int = _SETTLING) -> float:
    """Images/s, without the first epochs: what is ready from before, and what has to be found out."""
    rest = epochs[first:]
    return sum(float(one["images"]) for one in rest) / sum(one["seconds"] for one in rest)


def _incast(batch: int, *, paced: bool) -> str:
    return f"incast, {batch} {'paced' if paced else 'not paced'}"


def _shown(found: dict[str, list[Run]], what: str, kinds: Sequence[str], cells: Sequence[str]) -> str:
    rows = [[what, *cells]]
    for kind in kinds:
        runs = found.get(f"{what}, {kind}", [])
        rows.extend([kind, *(f"{run[cell]:,.2f}" for cell in cells)] for run in runs)
    return f"\n{table(rows)}"


def used_cpu() -> float:
    """CPU seconds of this machine that were used so far."""
    return busy_cpu() - stolen_cpu()[0]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of few photos")
    parser.add_argument("--photos", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--storage-rate", default="80mbit")
    parser.add_argument("--node-rate", default="1gbit")
    parser.add_argument("--only", action="append", default=[], help="some of the runs")
    begun = time.monotonic()
    with one_queue():
        ClusterBench(parser.parse_args()).main()
    say(f"took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
