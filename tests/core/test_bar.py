"""The bar: on one line of a terminal, and gone in the end; nowhere else."""

from __future__ import annotations

import io
import re
import signal

import pytest

from headrace.core.bar import Bar

WIPED = b"\r\n\x1b[?25h\r\x1b[1A\x1b[2K"
"""What a terminal is sent in the end: the cursor comes back, in the line of the bar, which is empty."""


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


class Interrupted(Terminal):
    """Somebody presses Ctrl-C while it is written to."""

    def write(self, text: str) -> int:
        signal.raise_signal(signal.SIGINT)
        return super().write(text)


def pictures(screen: Terminal) -> list[str]:
    """What stood in the line, one after the other."""
    text = re.sub(r"\x1b\[\??[0-9;]*[a-jl-zA-JL-Z]", "", screen.getvalue())
    return [picture.rstrip() for picture in re.split(r"\r\x1b\[2K|\n", text)]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "70")


def test_it_stays_on_one_line() -> None:
    screen = Terminal()
    with Bar("[some]", screen) as bar:
        for what, share in (("storage", 0.0), ("a very long story " * 9, 0.5), ("[b]cpu", 1.0)):
            bar(what, share)
    drawn = pictures(screen)
    assert max(map(len, drawn)) <= 70 and screen.getvalue().count("\n") == 1
    empty, half, full = (next(one for one in drawn if f" {share}% " in one) for share in ("0", "50", "100"))
    assert re.fullmatch(r"\[some\] ━{30}   0% -:--:-- storage", empty)
    assert re.fullmatch(r"\[some\] [━╸╺]{30}  50% \S+ a very long story a", half)
    assert full.endswith("[b]cpu")
    assert screen.getvalue().encode().endswith(WIPED.replace(b"\r\n", b"\n"))


def test_what_is_drawn_too_soon_is_left_out() -> None:
    screen = Terminal()
    with Bar("some", screen, every=3600) as bar:
        bar("first", 0.1)
        bar("second", 0.2)
    assert "first" in screen.getvalue() and "second" not in screen.getvalue()


def test_where_there_is_no_terminal_there_is_nothing() -> None:
    file = io.StringIO()
    with Bar("some", file) as bar:
        bar("first", 0.1)
    assert file.getvalue() == ""


def test_one_that_never_began_leaves_nothing() -> None:
    screen = Terminal()
    with Bar("some", screen):
        pass
    assert screen.getvalue() == ""


def test_an_interrupt_waits_until_it_is_drawn() -> None:
    screen = Interrupted()
    with pytest.raises(KeyboardInterrupt), Bar("some", screen) as bar:
        bar("at work", 0.1)
    assert "at work" in screen.getvalue() and screen.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")
