"""Start torchrun, and read what its ranks noted."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.loader.helpers import wait_until
from tests.prepared import Script
from tests.sharing.driver import session_of

HERE = Path(__file__).resolve().parent
LONGEST = 200.0
RESTARTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Else ranks that are started again find the addresses of those before (pytorch/pytorch issue 135712)."""


@dataclass
class Launch:
    """One call of torchrun, or one on each of several machines that are this one."""

    name: str
    ranks: int
    """On each machine."""
    spec: dict[str, Any]
    restarts: int = 0
    run: str = ""
    """Launches of one run go on from each other's checkpoints."""
    machines: int = 1

    def place(self, folder: Path) -> Path:
        """Where it leaves what it has to say."""
        return folder / (self.run or self.name)

    def agents(self, folder: Path) -> list[list[str]]:
        """Arguments of torchrun, for each machine."""
        place = self.place(folder)
        place.mkdir(exist_ok=True)
        spec = place / f"{self.name}.json"
        spec.write_text(json.dumps({"folder": str(place), "name": self.name, **self.spec}))
        meeting = ["--standalone"]
        if self.machines > 1:
            # A machine that is silent for ten seconds is gone, and none is waited for that does not come in five.
            patience = "keep_alive_interval=1,keep_alive_max_attempt=10,last_call_timeout=5"
            meeting = [
                f"--nnodes=1:{self.machines}",
                "--rdzv-backend=c10d",
                "--rdzv-id=run",
                "--local-addr=localhost",
            ]
            meeting += [f"--rdzv-endpoint={place}/meeting", f"--rdzv-conf=store_type=file,{patience}"]
        options = [
            f"--nproc-per-node={self.ranks}",
            f"--max-restarts={self.restarts}",
            "--monitor-interval=0.05",
        ]
        script = ["--run-path", "--start-method=fork", str(HERE / "job.py"), str(spec)]
        return [[*meeting, *options, *script]] * self.machines


def torchrun(folder: Path, *launches: Launch) -> list[list[int]]:
    """Run them one after the other; the exit statuses of each. Nothing of them may be left."""
    arguments = json.dumps([launch.agents(folder) for launch in launches])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **RESTARTS}
    script = Script(HERE / "launch.py", arguments, environment=environment)
    try:
        out, err = script.communicate(LONGEST)
        print(out, err)  # (pytest shows it where a test fails)
        assert script.wait() == 0, err
        assert wait_until(lambda: not session_of(script.pid), 20), session_of(script.pid)
    finally:
        for pid in session_of(script.pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return [json.loads(line)["statuses"] for line in out.splitlines() if line.startswith("{")]


class Notes:
    """What the ranks of one launch noted, in one of their starts."""

    def __init__(self, folder: Path, launch: Launch, attempt: int = 0, ranks: int | None = None) -> None:
        ranks = launch.ranks if ranks is None else ranks
        files = sorted(launch.place(folder).glob(f"{launch.name}-{attempt}-*.jsonl"))
        self.ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        assert len(self.ranks) == ranks

    @property
    def ends(self) -> list[dict[str, Any]]:
        """The last line of each rank that came to its end."""
        return [lines[-1] for lines in self.ranks if lines and "end" in lines[-1]]

    def steps(self, rank: int, saved: int | None = None) -> list[dict[str, Any]]:
        """The steps of a rank, up to the one that a checkpoint was saved after."""
        lines = [line for line in self.ranks[rank] if "got" in line]
        return [line for line in lines if saved is None or line["step"] <= saved]

    def epoch(self, kind: str, epoch: int, rank: int) -> list[list[int]]:
        """The batches of an epoch that a loader gave to one rank."""
        return [line["got"][kind] for line in self.steps(rank) if line["epoch"] == epoch]

    def samples(self, kind: str, epoch: int, saved: int | None = None) -> Counter[int]:
        """What a loader gave in an epoch, over all ranks."""
        every = [line for rank in range(len(self.ranks)) for line in self.steps(rank, saved)]
        return Counter(sample for line in every if line["epoch"] == epoch for sample in line["got"][kind])
