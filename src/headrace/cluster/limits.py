"""How large a sample a job reads at most: ``max_bytes=``, which jobs with the same data may set differently."""

from __future__ import annotations

from typing import Any

_MOST = 1 << 62
"""No sample is so large, and a message takes no larger number."""


def limit_of(plain: dict[str, Any]) -> int:
    """That of a source, by what it is made of (``source_to_plain``); 0: all of its kind have the same."""
    while plain["source"] == "subset":
        plain = plain["of"]
    return min(_MOST, int(plain.get("max_bytes", 0)))
