"""Starts the jobs of trainers, each as its users would, and finds what they wrote down."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import cv2
import numpy as np

from tests.trainers.data import SAMPLES

REPO = Path(__file__).resolve().parents[2]
LIMIT = 600


def pictures(folder: Path) -> Path:
    """Smooth noise, in JPEG files."""
    noise = np.random.default_rng(7)
    folder.mkdir()
    for number in range(SAMPLES):
        small = noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        assert cv2.imwrite(str(folder / f"{number:03}.jpg"), cv2.resize(small, (64, 64)))
    return folder


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run_job(trainer: str, world: int, images: Path, out: Path, runtime: Path) -> str:
    """Run all cases of a trainer; returns what was printed."""
    environment = {
        **os.environ,
        "HEADRACE_RUNTIME_DIR": str(runtime),
        "HEADRACE_PROFILES": "0",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",  # ranks are processes on CPUs here, and there may be fewer GPUs than those
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(REPO / "src"), str(REPO)]),
    }
    module = ["-m", f"tests.trainers.job_{trainer}", str(images), str(out), str(world)]
    if trainer.endswith("ray"):
        if shutil.which("ray"):
            # Some set-ups of Ray want a token; where they do not, there is no harm in one.
            subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "get-auth-token", "--generate"],
                           capture_output=True, env=environment, check=False)  # fmt: skip
        return _wait([_start([*module, "0"], environment)])
    if world == 1:
        return _wait([_start([*module, "0"], environment)])
    if trainer == "torchrun":
        launch = ["-m", "torch.distributed.run", f"--nproc-per-node={world}", "--master-addr=127.0.0.1",
                  f"--master-port={free_port()}"]  # fmt: skip
        return _wait([_start([*launch, *module, "0"], environment)])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    run = f"trainers-{random.randrange(1 << 30)}"
    jobs = []
    for rank in range(world):
        # Lightning starts its ranks by itself, and does not tell them all that torchrun does.
        place = {"LOCAL_RANK": str(rank), "NODE_RANK": "0"}
        if trainer != "lightning":
            place |= {"RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": run}
        jobs.append(_start([*module, str(rank)], {**environment, **meeting, **place}))
    return _wait(jobs)


def _start(arguments: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the job
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=REPO, env=environment, stdout=said, stderr=subprocess.STDOUT), said


def _wait(jobs: list[tuple[subprocess.Popen[bytes], IO[bytes]]]) -> str:
    said = []
    try:
        for job, _ in jobs:
            job.wait(LIMIT)
    finally:
        for job, file in jobs:
            job.kill()
            job.wait()
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
            file.close()
    assert all(job.returncode == 0 for job, _ in jobs), "\n".join(text[-4000:] for text in said)
    return "\n".join(said)
