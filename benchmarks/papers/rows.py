"""What an experiment finds: rows, each with the paper's figure, ours, and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.common.report import Target

How = Literal["simulated", "measured", "computed", ""]
Status = Literal["yes", "no", "beside", "later", "absent"]
SHOWN: dict[Status, str] = {"yes": "yes", "no": "NO", "beside": "-", "later": "later", "absent": "absent"}


@dataclass(frozen=True)
class Row:
    """One quantity. ``agrees`` says how the comparison went, or why there was none."""

    quantity: str
    paper: float | None
    """None: the text of the paper has no number; ``words`` has what it says."""
    ours: float | None
    how: How
    compared: str
    """What was asked of our figure; empty if nothing."""
    agrees: Status
    unit: str = ""
    words: str = ""
    """The paper's figure, where it is more than a number: an "at least", or a direction."""
    note: str = ""


def near(
    quantity: str, paper: float, ours: float, within: float, how: How, unit: str = "", note: str = ""
) -> Row:
    """Ours should be the paper's; ``within`` is the share of it by which it may differ."""
    agrees: Status = "yes" if abs(ours - paper) <= within * abs(paper) else "no"
    return Row(quantity, paper, ours, how, f"within {within:.0%}", agrees, unit, "", note)


def at_least(
    quantity: str, paper: float, ours: float, how: How, unit: str = "", words: str = "", note: str = ""
) -> Row:
    """Ours should be no less than the paper's."""
    agrees: Status = "yes" if ours >= paper else "no"
    return Row(quantity, paper, ours, how, "at least", agrees, unit, words, note)


def at_most(
    quantity: str, paper: float, ours: float, how: How, unit: str = "", words: str = "", note: str = ""
) -> Row:
    """Ours should be no more than the paper's."""
    agrees: Status = "yes" if ours <= paper else "no"
    return Row(quantity, paper, ours, how, "at most", agrees, unit, words, note)


def claim(
    quantity: str,
    words: str,
    ours: float,
    holds: bool,
    compared: str,
    how: How,
    unit: str = "",
    note: str = "",
) -> Row:
    """The paper says it in words only; ``compared`` is what was asked of our figure, and ``holds`` the answer."""
    return Row(quantity, None, ours, how, compared, "yes" if holds else "no", unit, words, note)


def beside(
    quantity: str, paper: float | None, ours: float, how: How, unit: str = "", words: str = "", note: str = ""
) -> Row:
    """There is nothing to agree with: the paper has no such figure, or it was what set the simulation."""
    return Row(quantity, paper, ours, how, "", "beside", unit, words, note)


def later(
    quantity: str, paper: float | None, capability: str, unit: str = "", words: str = "", note: str = ""
) -> Row:
    """It needs something that headrace does not have yet."""
    text = f"comes with: {capability}" + (f"; {note}" if note else "")
    return Row(quantity, paper, None, "", "", "later", unit, words, text)


def absent(
    quantity: str, paper: float | None, command: str, unit: str = "", words: str = "", note: str = ""
) -> Row:
    """It is read from a result that is not there; ``command`` makes it."""
    text = f"not measured yet: run {command}" + (f"; {note}" if note else "")
    return Row(quantity, paper, None, "measured", "", "absent", unit, words, text)


def show(value: float | None, unit: str) -> str:
    """A figure for people. Shares are kept as shares, and shown in per cent."""
    if value is None:
        return "-"
    if unit == "%":
        return f"{100 * value:.1f} %"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text}{'' if unit == 'x' else ' ' if unit else ''}{unit}"


def show_paper(row: Row) -> str:
    """The paper's figure, for people."""
    return row.words or show(row.paper, row.unit)


def row_target(name: str, row: Row) -> Target | None:
    """The row as a target of the benchmark; what was not compared is none, but for what should have been."""
    if row.agrees in ("beside", "later"):
        return None
    if row.agrees == "absent":
        return Target(name, None, show_paper(row), False, note=row.note)
    if row.paper is None:
        wanted = row.compared
    elif row.compared.startswith("within"):
        wanted = f"{row.paper:g} {row.compared}"
    elif row.compared not in ("at least", "at most"):
        wanted = row.compared  # (more was asked than the paper's figure)
    else:
        wanted = f"{'>=' if row.compared == 'at least' else '<='} {row.paper:g}"
    return Target(name, row.ours, wanted, row.agrees == "yes", note=row.note)
