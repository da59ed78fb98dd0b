"""The clock handed to whatever needs one, so that deciders can run on a virtual one."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds on some monotonic scale."""

monotonic: Clock = time.monotonic
