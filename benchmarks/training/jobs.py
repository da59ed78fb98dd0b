"""Training jobs that run at the same time, each in a process of its own, and what became of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import torch
from benchmarks.training.data import CLASSES, Fashion
from benchmarks.training.loaders import LOADERS
from numpy.typing import NDArray
from torch import nn

RATE = 3e-3
# Forked, so that torch is imported once and not by every job. The parent computes nothing with it.
FORK = multiprocessing.get_context("fork")


class JobFailed(RuntimeError):
    """A job did not come to its end; the message says why."""


@dataclass
class Outcome:
    """One job: what its model learned, and in which order it saw the samples."""

    accuracy: float
    """Share of the test images that the trained model knows."""
    batches: list[list[NDArray[np.int64]]]
    """The samples of each batch of each epoch."""
    seconds: float
    decoded: int | None
    """Samples that this job's workers decoded, where the loader says so."""


def network() -> nn.Module:
    """A small convolutional network: 78,000 parameters, a second or two of one CPU for 10,000 images."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def train(data: Fashion, loader: Any, epochs: int) -> tuple[nn.Module, list[list[NDArray[np.int64]]]]:
    """Train a new network; also the samples of each batch of each epoch."""
    model = network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    seen: list[list[NDArray[np.int64]]] = []
    for _ in range(epochs):
        seen.append([])
        for images, targets in loader:
            seen[-1].append(np.array(targets // CLASSES, np.int64))
            loss = nn.functional.cross_entropy(model(images.float().div_(255)), targets % CLASSES)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model, seen


def test(data: Fashion, model: nn.Module) -> float:
    """The accuracy on the test images."""
    right = 0
    with torch.no_grad():
        for at in range(0, len(data.test_labels), 1000):
            images = torch.from_numpy(data.test_images[at : at + 1000].copy()).float().div_(255)
            right += int((model(images).argmax(1).numpy() == data.test_labels[at : at + 1000]).sum())
    return right / len(data.test_labels)


def _job(out: Connection, start: Any, runtime: str, data: Fashion, name: str, seed: int, epochs: int) -> None:
    """What runs in a job's process."""
    try:
        os.environ["HEADRACE_RUNTIME_DIR"] = runtime
        os.environ["HEADRACE_PROFILES"] = "0"  # no run may know what another one has learned
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        loader = LOADERS[name](data, seed)
        start.wait(60)
        began = time.monotonic()
        model, seen = train(data, loader, epochs)
        seconds = time.monotonic() - began
        decoded = getattr(loader.stats(), "decoded", None) if hasattr(loader, "stats") else None
        if hasattr(loader, "close"):
            loader.close()
        out.send(Outcome(test(data, model), seen, seconds, decoded))
    except BrokenBarrierError:
        out.send("another job failed")
    except Exception as error:
        start.abort()
        out.send(f"{type(error).__name__}: {error}".splitlines()[0][:300])


def run_together(data: Fashion, name: str, seeds: list[int], epochs: int, limit_s: float) -> list[Outcome]:
    """Train one job for each seed, all at the same time, through the loader ``name``.

    A shared host is theirs alone, and is gone afterwards.
    """
    # Sockets have short names, so not below the repository.
    with tempfile.TemporaryDirectory(prefix="headrace-") as runtime:
        start = FORK.Barrier(len(seeds))
        jobs, ends = [], []
        for seed in seeds:
            mine, theirs = FORK.Pipe(duplex=False)
            job = FORK.Process(target=_job, args=(theirs, start, runtime, data, name, seed, epochs))
            job.start()
            theirs.close()
            jobs.append(job)
            ends.append(mine)
        try:
            answers = _answers(ends, time.monotonic() + limit_s)
        finally:
            for job in jobs:
                job.join(10)
                if job.is_alive():
                    job.kill()
                    job.join()
            if name not in ("torch", "alone"):
                _stop_host(runtime)
    reasons = [answer for answer in answers if isinstance(answer, str)]
    if reasons:
        raise JobFailed(next((reason for reason in reasons if reason != "another job failed"), reasons[0]))
    return [answer for answer in answers if isinstance(answer, Outcome)]


def _answers(ends: list[Connection], until: float) -> list[Outcome | str]:
    answers: list[Outcome | str] = []
    for end in ends:
        try:
            ready = end.poll(max(0.0, until - time.monotonic()))
            answers.append(end.recv() if ready else "the job took too long")
        except EOFError:
            answers.append("the job's process died")
    return answers


def _stop_host(runtime: str) -> None:
    command = [sys.executable, "-m", "headrace.cli", "stop"]
    environment = {**os.environ, "HEADRACE_RUNTIME_DIR": runtime}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, env=environment, capture_output=True, timeout=30)
