"""The peers' virtual environment: made once, each peer installed on its own, so that one that cannot be
installed is reported and takes nobody else with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.common.progress import say

SHARED = ("numpy", "opencv-python-headless", "simplejpeg", "pillow")
"""Peers use the versions of these that headrace's environment has, so that libraries are not what differs."""


@dataclass(frozen=True)
class Peer:
    """What to install for one peer."""

    name: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    """Installed with --no-deps."""
    debian: tuple[str, ...] = ()


PEERS = (
    Peer("torch", ("torch", "numpy", "pillow", "simplejpeg", "opencv-python-headless")),
    Peer("spdl", ("spdl",)),
    Peer("dali", ("nvidia-dali-cuda120",)),
    # Without dependencies, as it asks for another build of OpenCV, which would overwrite the one all share.
    Peer(
        "ffcv",
        ("numba", "pytorch-pfn-extras", "terminaltables", "fastargs", "assertpy", "tqdm", "psutil"),
        ("ffcv",),
        ("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "gcc", "g++"),
    ),
)
"""Those with a loader for a single job."""


def install_peers(repository: Path, peers: tuple[Peer, ...]) -> dict[str, str]:
    """Make ``.venv-peers`` and install ``peers``; returns why, for each that could not be installed."""
    home = repository / ".venv-peers"
    python = home / "bin" / "python"
    if not python.exists():
        say("making .venv-peers")
        run = _run([sys.executable, "-m", "venv", str(home)])
        if run:
            return {peer.name: f"no virtual environment: {run}" for peer in peers}
    failed = {}
    for peer in peers:
        stamp = home / f".installed-{peer.name}"
        wanted = json.dumps([peer.requirements, peer.without_dependencies, _pins()])
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        say(f"installing {peer.name} into .venv-peers")
        reason = _install(repository, python, peer)
        if reason:
            failed[peer.name] = reason
            say(f"  could not: {reason}")
        else:
            stamp.write_text(wanted)
    return failed


def _pins() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in SHARED]


def _install(repository: Path, python: Path, peer: Peer) -> str:
    if peer.debian:
        # Where this fails, pip's own failure says more about what is missing.
        _run([str(repository / "scripts" / "debian-packages"), *peer.debian], PYTHON=str(python))
    pins = python.parent.parent / "pins.txt"
    pins.write_text("\n".join([(repository / "constraints.txt").read_text(), *_pins(), ""]))
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    reason = _run([*pip, *peer.requirements], PIP_CONSTRAINT=str(pins))
    if not reason and peer.without_dependencies:
        reason = _run([*pip, "--no-deps", *peer.without_dependencies], PIP_CONSTRAINT=str(pins))
    return reason


def _run(command: list[str], **environment: str) -> str:
    """Run a command; an empty string, or the last telling line of why it failed."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    except OSError as error:
        return str(error)
    if run.returncode == 0:
        return ""
    lines = [line.strip() for line in (run.stderr + run.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error", "e:"))]
    return (telling or lines or [f"exit status {run.returncode}"])[-1][:300]
