"""Tables: plain on pipes, drawn within its width on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from headrace.cli.tables import aligned_table, table

HEADS = ["name", "samples", "what"]
ROWS = [["[red]one[/]", "7", "a few words about it"], ["evil\x1b[2J", "1,234", ""]]
SCRIPT = f"""
import sys
from headrace.cli.tables import table
print(*table("jobs", {HEADS!r}, {ROWS!r}), sep="\\n")
assert ("rich" in sys.modules) == sys.stdout.isatty()
"""


def on_terminal(columns: int) -> str:
    """What is shown on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**environment, "TERM": "xterm"}, timeout=60, **streams
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    return shown


def test_on_pipes_columns_are_as_wide_as_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert list(table("jobs", HEADS, ROWS)) == [
        "jobs        name         samples  what",
        "            [red]one[/]        7  a few words about it",
        "            evil?[2J       1,234",
    ]
    assert list(table("jobs", HEADS, [])) == ["jobs        none"]
    assert aligned_table(HEADS, []) == ["name  samples  what"]
    assert subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, timeout=60).returncode == 0


def test_on_a_terminal_heads_stand_out() -> None:
    shown = on_terminal(80)
    assert "\x1b[1m" in shown.splitlines()[0] and "\x1b[2J" not in shown
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()]
    assert plain == list(table("jobs", HEADS, ROWS))


def test_on_a_narrow_terminal_cells_are_wrapped() -> None:
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(48)).splitlines()]
    assert max(map(len, plain)) <= 48 and len(plain) > 3
    assert all(line.startswith(" " * 12) for line in plain[1:])
