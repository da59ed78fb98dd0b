"""Stands in for the shared host: claims, accepts, and does nothing else. Ends after a minute in any case."""

from __future__ import annotations

import os
import sys
import time

from headrace.channel.channel import wait
from headrace.host import runtime


def main() -> int:
    """Run until killed, or until the test has removed its directory."""
    if not os.path.isdir(os.path.dirname(os.environ["HEADRACE_RUNTIME_DIR"])):
        return 0  # late: somebody else was faster, and that test is over
    claimed = runtime.claim()
    if claimed is None:
        print("made way", flush=True)
        return 0
    print(f"listening {os.getpid()}", flush=True)
    kept = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and claimed.in_place():
        wait(claimed.fileno(), 1.0)
        channel = claimed.accept()
        if channel is not None:
            kept.append(channel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
