"""A cluster on one machine: three nodes of Ray's, a training job on two of them, the third is killed.

All that is done here are the commands and the loader of docs/cluster.md: `ray start` three times, `headrace cluster
start`, `share="ray"`. Each node has a runtime directory of its own, as machines have, so what the jobs share they
share by way of the cluster. Nothing here meets another Ray on this machine, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from _data import image_folder

EPOCHS = 4
SMALL = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]


def train(root: Path, halfway: Path) -> list[str]:
    """A training job; what it saw. It says in a file that it is in the middle of its second epoch."""
    torch.set_num_threads(1)
    paths = sorted(root.rglob("*.jpg"))
    classes = torch.tensor([int(path.parent.name.removeprefix("class_")) for path in paths])
    recipe = hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),  # the sample's number, to show what was given
        decode=hr.image.decode(),
        augment=[
            hr.image.random_resized_crop(64),
            hr.image.horizontal_flip(),
            hr.image.normalize((0.5,) * 3, (0.25,) * 3),
        ],
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    said = []
    with hr.DataLoader(recipe, batch_size=16, shuffle=True, num_workers=1, share="ray") as loader:
        for epoch in range(EPOCHS):
            seen: list[int] = []
            for step, (images, numbers) in enumerate(loader):
                loss = torch.nn.functional.cross_entropy(model(images), classes[numbers])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen += numbers.tolist()
                if epoch == 1 and step == len(loader) // 2:
                    halfway.touch()
            exact = sorted(seen) == list(range(len(paths)))
            said.append(f"epoch {epoch}: each sample once: {exact}, loss {loss.item():.2f}")
        return [*said, *(line for line in str(loader.stats()).splitlines() if line.startswith("cluster"))]


class Node:
    """A node of Ray's: all processes that one `ray start` brings about."""

    def __init__(self, folder: Path, number: int, *arguments: str) -> None:
        self.environment = {**os.environ, "HEADRACE_RUNTIME_DIR": f"{folder}/{number}"}
        command = ["ray", "start", *arguments, f'--resources={{"node {number}": 1}}']
        print("$", *command, flush=True)
        module = [sys.executable, "-m", "ray.scripts.scripts", *command[1:]]
        log = folder / f"{number}.log"
        for last in (False, True):
            with log.open("w") as out:
                # (--block: it stays as long as the node; a session of its own: so it is known what belongs to it)
                self._process = subprocess.Popen(
                    [*module, *SMALL, "--block", "--min-worker-port=0", "--max-worker-port=0"],
                    env=self.environment,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            if self._started(log):
                return
            # Ray gives a node half a minute, which may be too little where the machine is busy.
            if last:
                sys.exit(f"Ray did not start:\n{log.read_text()}")

    def _started(self, log: Path) -> bool:
        """Wait for it; of one that does not start, nothing is left."""
        started = False
        deadline = time.monotonic() + 90
        try:
            while not started and self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                started = "Ray runtime started" in log.read_text()
        finally:
            if not started:
                self.kill()
        return started

    def kill(self) -> None:
        """SIGKILL to all of them, as if its power had failed."""
        while pids := [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._has(pid)]:
            for number in (signal.SIGSTOP, signal.SIGKILL):  # (none of them sees another end)
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            self._process.poll()
            time.sleep(0.05)

    def _has(self, pid: int) -> bool:
        try:
            ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return os.getsid(pid) == self._process.pid and not ended
        except OSError:
            return False


def headrace(*arguments: str, quiet: bool = False, **options: Any) -> None:
    """The command of that name."""
    if not quiet:
        print("$ headrace", *arguments, flush=True)
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    subprocess.run(command, check=not quiet, capture_output=quiet, **options)


@contextlib.contextmanager
def three_nodes(folder: Path, address: str) -> Iterator[list[Node]]:
    """Nodes on this machine, one after the other. They are gone afterwards."""
    head = ["--head", f"--port={address.rpartition(':')[2]}", f"--temp-dir={folder}/ray"]
    nodes: list[Node] = []
    try:
        for number in (1, 2, 3):
            to = [f"--address={address}"] if nodes else [*head, "--include-dashboard=false"]
            nodes.append(Node(folder, number, *to))
        yield nodes
    finally:
        for node in nodes:
            node.kill()
            headrace("stop", quiet=True, env=node.environment)  # the shared host of that node's jobs


def main() -> None:
    """Start nodes and servers, run the jobs, kill a node."""
    if importlib.util.find_spec("ray") is None:
        sys.exit("this example needs Ray; install it with: pip install 'headrace[ray]'")
    # A token of its own, where nothing else is wanted: Ray asks for one if it finds any in your home directory.
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.pop("RAY_ADDRESS", None)  # (that of another Ray)
    import ray

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        image_folder(320) as root,
        tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp", ignore_cleanup_errors=True) as private,
        three_nodes(Path(private), address) as nodes,
    ):
        headrace("cluster", "start", "--memory", "64MiB", "--cpus", "1", "--address", address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        job = ray.remote(num_cpus=1, max_retries=0)(train)
        halfway = [Path(private, f"halfway-{number}") for number in (1, 2)]
        jobs = [
            job.options(resources={f"node {number}": 1}).remote(root, file)
            for number, file in enumerate(halfway, start=1)
        ]
        while not all(file.exists() for file in halfway) and not ray.wait(jobs, timeout=0.01)[0]:
            pass
        nodes[2].kill()
        print("node 3 was killed, in the middle of an epoch", flush=True)
        for number, said in enumerate(ray.get(jobs), start=1):
            print(*(f"job on node {number}: {line}" for line in said), sep="\n", flush=True)
        ray.shutdown()
        headrace("cluster", "status", "--address", address)
        headrace("cluster", "stop", "--address", address)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
