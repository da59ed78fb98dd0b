"""What a benchmark sets on the machine is as it was when it is over, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("sign", [0, signal.SIGTERM, signal.SIGINT])
def test_sessions_count_again(tmp_path: Path, sign: int) -> None:
    setting = tmp_path / "autogroup"
    setting.write_text("1")
    code = (
        "import sys\nfrom pathlib import Path\nfrom benchmarks.cluster import groups\n"
        f"groups.AUTOGROUP = Path({str(setting)!r})\n"
        "with groups.one_queue():\n"
        "    print('ready', flush=True)\n"
        "    input()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        assert setting.read_text() == "0"
        if sign:
            job.send_signal(sign)
            job.wait(30)
        else:
            job.communicate("\n")
    assert setting.read_text() == "1"
    assert bool(job.returncode) == bool(sign)
