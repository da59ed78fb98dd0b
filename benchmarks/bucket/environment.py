"""The environment of the S3 server and of the peers: ``.venv-bucket``, made once."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.common.environments import SHARED
from benchmarks.common.progress import say

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOME = REPOSITORY / ".venv-bucket"
PYTHON = HOME / "bin" / "python"
WEED = HOME / "bin" / "weed"
STUBS = HERE / "stubs"
"""A torchvision that has nothing but the names which mosaicml-streaming imports and this benchmark does not use."""


def install() -> str:
    """Make it unless it is there; an empty string, or why it could not be made."""
    lists = [HERE / "requirements.txt", HERE / "without-dependencies.txt"]
    # So that libraries are not what differs between headrace and its peers.
    pins = "\n".join(f"{name}=={metadata.version(name)}" for name in SHARED)
    wanted = "\n".join([*(path.read_text() for path in lists), pins])
    stamp = HOME / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    if not PYTHON.exists():
        say("making .venv-bucket")
        reason = _run([sys.executable, "-m", "venv", str(HOME)])
        if reason:
            return reason
    constraints = HOME / "pins.txt"
    constraints.write_text(f"{(REPOSITORY / 'constraints.txt').read_text()}\n{pins}\n")
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    for path, more in zip(lists, ([], ["--no-deps"]), strict=True):
        say(f"installing {path.relative_to(REPOSITORY)} into .venv-bucket")
        reason = _run([*pip, *more, "-r", str(path)], PIP_CONSTRAINT=str(constraints))
        if reason:
            return reason
    stamp.write_text(wanted)
    return ""


def _run(command: list[str], **environment: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if run.returncode == 0:
        return ""
    lines = [line.strip() for line in (run.stderr + run.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith("error")]
    return f"{' '.join(command[:4])} failed: {(telling or lines or ['it said nothing'])[-1]}"


if __name__ == "__main__":
    sys.exit(install() or 0)
