"""A real Ray cluster across the namespaces, and a headrace cluster on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bucket.network import inside
from benchmarks.cluster import storage
from benchmarks.cluster.groups import move
from benchmarks.cluster.network import Lan, address

REPOSITORY = Path(__file__).resolve().parents[2]
PORT = 6379


class RayNodes:
    """One raylet in each node's namespace; the first is the head."""

    def __init__(self, lan: Lan, cpus: int = 2) -> None:
        self.lan = lan
        self.address = f"{address(0)}:{PORT}"
        self._place = Path(tempfile.mkdtemp(prefix="hrc-", dir="/tmp"))
        self._cpus = cpus
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "get-auth-token", "--generate"],
            capture_output=True, env=self._base(),
        )  # fmt: skip
        for node in range(len(lan.nodes)):
            self.start(node)

    def start(self, node: int) -> None:
        """A raylet on a node."""
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if not node
            else [f"--address={self.address}"]
        )
        command = [
            *inside(self.lan.nodes[node]), sys.executable, "-m", "ray.scripts.scripts", "start", *where, "--block",
            f"--node-ip-address={address(node)}", f"--num-cpus={self._cpus}", "--object-store-memory=400000000",
            "--disable-usage-stats", *([f"--temp-dir={self._place / 'ray'}"] if not node else []),
        ]  # fmt: skip
        with open(self._place / f"ray{node}.log", "wb") as log:
            self._processes[node] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment(node), start_new_session=True
            )
        self._wait(node)

    @contextlib.contextmanager
    def kept_to(self, cgroup: str) -> Iterator[None]:
        """Have all that Ray runs, and will start meanwhile, in a control group."""
        try:
            move(self.lan.nodes, cgroup)
            yield
        finally:
            move(self.lan.nodes, str(Path(cgroup).parent))

    def lose(self, node: int) -> None:
        """End everything that runs on a node, without a word."""
        self._processes[node].kill()
        self._end_all(node)
        self._processes[node].wait()

    def _end_all(self, node: int) -> None:
        listed = subprocess.run(["ip", "netns", "pids", self.lan.nodes[node]], capture_output=True, text=True)
        subprocess.run(["kill", "-9", *listed.stdout.split()], capture_output=True)

    def _wait(self, node: int) -> None:
        until, path = time.monotonic() + 90, self._place / f"ray{node}.log"
        while "Ray runtime started" not in path.read_text():
            if time.monotonic() > until or self._processes[node].poll() is not None:
                raise RuntimeError(f"Ray does not start on node {node}: {path.read_text()[-600:]}")
            time.sleep(0.1)

    def _base(self) -> dict[str, str]:
        paths = [str(REPOSITORY), str(REPOSITORY / "src")]
        return {
            **os.environ,
            **storage.environment(),
            "PYTHONPATH": os.pathsep.join(paths),
            "HEADRACE_RECORD": "0",
            "HEADRACE_PROFILES": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_ADDRESS": self.address,
            "RAY_DEDUP_LOGS": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def environment(self, node: int) -> dict[str, str]:
        """Of what runs on a node."""
        runtime = self._place / f"n{node}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        return {
            **self._base(),
            "RAY_NODE_ADDRESS": address(node),
            "HEADRACE_RUNTIME_DIR": str(runtime),
            "XDG_CACHE_HOME": str(self._place / f"c{node}"),
        }

    def command(self, *words: str) -> str:
        """``headrace cluster ...`` on the first node; what it says."""
        command = [*inside(self.lan.nodes[0]), sys.executable, "-m", "headrace.cli", "cluster", *words]
        done = subprocess.run(
            [*command, "--address", self.address],
            env=self.environment(0),
            capture_output=True,
            text=True,
            timeout=180,
        )
        if done.returncode:
            raise RuntimeError(
                f"headrace cluster {' '.join(words)}: {done.stderr[-800:]}{done.stdout[-400:]}"
            )
        return done.stdout

    def close(self) -> None:
        """End all of it."""
        for process in self._processes.values():
            process.kill()
        for node in self._processes:
            self._end_all(node)
        for process in self._processes.values():
            process.wait()
        shutil.rmtree(self._place, ignore_errors=True)
