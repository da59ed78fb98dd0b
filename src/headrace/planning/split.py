"""How a cache budget is split between the three forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from headrace.core.errors import OptionError
from headrace.core.forms import CACHEABLE, Form

DECODED_FIRST = (0.0, 1.0, 0.0)
"""The rule until measurements choose: all to the decoded form, which saves both fetching and decoding."""


def split_budget(budget: int, split: Sequence[float] | str | None) -> dict[Form, int]:
    """Bytes for each form. ``split`` is (encoded, decoded, augmented) in any unit, or None for the rule.

    >>> split_budget(1000, (1, 3, 0))
    {<Form.ENCODED: 1>: 250, <Form.DECODED: 2>: 750, <Form.AUGMENTED: 3>: 0}
    """
    if split is None or split == "auto":
        split = DECODED_FIRST
    if isinstance(split, str) or len(split) != 3:
        raise OptionError(
            f"split={split!r} is not a split; write (encoded, decoded, augmented), e.g. (0, 1, 0)"
        )
    shares = [float(share) for share in split]
    if any(share < 0 or not math.isfinite(share) for share in shares) or not any(shares):
        raise OptionError(f"split={split!r}: shares must not be negative and not all zero")
    # Floats could round the parts to more than the whole.
    exact = [Fraction(share) for share in shares]
    total = sum(exact)
    return {form: int(budget * share / total) for form, share in zip(CACHEABLE, exact, strict=True)}
