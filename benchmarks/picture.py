"""Draws what the benchmarks measured as one picture for the README: docs/images/speed.svg.

    python -m benchmarks.picture

Only what lies in benchmarks/results is drawn; what was not measured is left out. All of it has to be from one kind of
machine, which the picture names.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
PICTURE = REPOSITORY / "docs" / "images" / "speed.svg"
README = REPOSITORY / "README.md"
IN_README = re.compile(r"!\[[^\]]*\]\(docs/images/speed\.svg\)")
SAME_FILES = ("spdl", "dali", "ffcv-jpeg")
JOBS = 4

WIDTH, LEFT, RIGHT, BAR, GAP = 760, 250, 150, 16, 5
"""Of the picture; of the names; of the numbers; of a bar and between two."""
TITLE, SPACE = 30, 14
TEXT, QUIET, OTHERS, OURS = "#7d8590", "#7d8590", "#9aa4af", "#2f81f7"
"""Greys and a blue that can be read on white and on black."""


@dataclass(frozen=True)
class Bar:
    """One loader's speed."""

    label: str
    images_s: float
    ours: bool = False


@dataclass(frozen=True)
class Panel:
    """What is compared; the first bar is torch's loader."""

    title: str
    bars: tuple[Bar, ...]


def read(name: str, results: Path = RESULTS) -> dict[str, Any] | None:
    """A full result, if there is one."""
    path = results / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def panels(single: Any, sharing: Any, dropin: Any) -> list[Panel]:
    """What can be drawn of the results."""
    found = [*_dropin(dropin), *_single(single), *_sharing(sharing)]
    return [panel for panel in found if any(bar.ours for bar in panel.bars) and not panel.bars[0].ours]


def _dropin(result: Any) -> list[Panel]:
    if result is None:
        return []
    kinds = dict.fromkeys(name.split(": ")[0] for name in result["runs"])
    kind = list(kinds)[-1]
    labels = {
        "torch": "torch",
        "headrace": "headrace, import changed",
        "headrace, cached": "headrace, and cache=",
    }
    bars = []
    for loader, label in labels.items():
        rates = sorted(
            run["rate"] for run in result["runs"].get(f"{kind}: {loader}", []) if isinstance(run, dict)
        )
        if rates:
            bars.append(Bar(label, rates[len(rates) // 2], loader != "torch"))
    whose = "the usual transforms, with Pillow" if kind == "written out" else "torchvision's transforms"
    return [Panel(f"ImageFolder and {whose}: only the import changed", tuple(bars))] if bars else []


def _single(result: Any) -> list[Panel]:
    if result is None:
        return []
    rates = {
        item["name"]: Bar(
            item["label"], item["summary"]["later_images_s"]["median"], item["name"].startswith("headrace")
        )
        for item in result["contenders"]
        if item.get("summary")
    }
    torch = [rates[name] for name in ("torch-opencv",) if name in rates]
    files = [rates[name] for name in SAME_FILES if name in rates]
    return [
        Panel(title, (*torch, *_best(peers), *(rates[name] for name in (ours,) if name in rates)))
        for title, peers, ours in (
            ("One job: a recipe, nothing cached", files, "headrace"),
            (
                "One job: decoded images cached",
                [rates[name] for name in ("ffcv-raw",) if name in rates],
                "headrace-decoded",
            ),
        )
        if torch
    ]


def _sharing(result: Any) -> list[Panel]:
    if result is None:
        return []
    rates = {
        case["contender"]: Bar(
            case["label"], case["summary"]["images_s"]["median"], case["contender"].startswith("headrace")
        )
        for case in result["cases"]
        if not case["scenario"] and case["jobs"] == JOBS and case.get("summary")
    }
    if "torch" not in rates or "headrace-auto" not in rates:
        return []
    peers = [bar for name, bar in rates.items() if name != "torch" and not bar.ours]
    return [Panel("Four jobs at once, all together", (rates["torch"], *_best(peers), rates["headrace-auto"]))]


def _best(bars: Sequence[Bar]) -> list[Bar]:
    return [max(bars, key=lambda bar: bar.images_s)] if bars else []


def draw(found: Sequence[Panel], foot: str) -> str:
    """The picture. Every panel has a scale of its own."""
    parts: list[str] = []
    top = 8
    for panel in found:
        base, most = panel.bars[0].images_s, max(bar.images_s for bar in panel.bars)
        parts.append(_text(8, top + 15, panel.title, "title"))
        top += TITLE - 6
        for bar in panel.bars:
            wide = max(2.0, bar.images_s / most * (WIDTH - LEFT - RIGHT))
            kind = "ours" if bar.ours else "others"
            parts.append(_text(LEFT - 8, top + BAR - 4, bar.label, "name", kind))
            parts.append(
                f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{wide:.1f}" height="{BAR}" rx="2"/>'
            )
            times = f"{bar.images_s:,.0f}" + (
                "" if bar is panel.bars[0] else f"  ({bar.images_s / base:.1f}x)"
            )
            parts.append(_text(LEFT + wide + 6, top + BAR - 4, times, kind))
            top += BAR + GAP
        top += SPACE
    parts.append(_text(8, top + 4, foot, "foot"))
    style = (
        "text{font:13px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
        f"fill:{TEXT}}}.title{{font-weight:600;font-size:14px}}.name{{text-anchor:end}}.foot{{font-size:10.5px}}"
        f"rect.others{{fill:{OTHERS}}}rect.ours{{fill:{OURS}}}text.ours{{fill:{OURS};font-weight:600}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 14}" width="{WIDTH}" role="img">'
    title = "<title>Images per second of headrace, torch's DataLoader and the best other loader</title>"
    return "\n".join([head, title, f"<style>{style}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, *kinds: str) -> str:
    return f'<text class="{" ".join(kinds)}" x="{x:.1f}" y="{y}">{escape(text)}</text>'


def say(found: Sequence[Panel]) -> str:
    """The same in words, for those who cannot see it: as it stands in the README."""
    groups = (
        f"{panel.title}: {'; '.join(f'{bar.label} {bar.images_s:,.0f}' for bar in panel.bars)}."
        for panel in found
    )
    words = textwrap.fill(f"Images per second. {' '.join(groups)}", 118, initial_indent="![")
    return f"{words}](docs/images/speed.svg)"


def make(results: Path = RESULTS) -> tuple[str, str]:
    """The picture of all full results, and its text. Raises if they are of different machines."""
    read_all = {name: read(name, results) for name in ("single", "sharing", "dropin")}
    machines = {f"{one['machine']['cpus']} x {one['machine']['cpu']}" for one in read_all.values() if one}
    if len(machines) != 1:
        raise SystemExit(f"the results are not of one machine: {sorted(machines)}; run the benchmarks again")
    foot = (
        f"Images per second, and times torch's; {machines.pop()}; JPEG photos of about 500x375 to 224x224. "
        "Each group has its own scale."
    )
    found = panels(**read_all)
    return draw(found, foot), say(found)


def main() -> None:
    """Write it, and its text into the README."""
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    drawing, text = make()
    PICTURE.write_text(drawing)
    README.write_text(IN_README.sub(lambda _: text, README.read_text()))
    print(f"written: {PICTURE.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
