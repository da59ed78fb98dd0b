"""Small files of headrace's own, written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

PARTIAL = ".partial"
"""How the name of a file ends that is being written."""


def write_json(path: Path, value: Any) -> None:
    """Put ``value`` in the place of what was there. Whoever reads finds the one or the other, and never a part."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=PARTIAL, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
