"""When samples are needed next: numbers that grow with time, in 32 bits."""

from __future__ import annotations

FAR = (1 << 31) - 1
"""When a sample is needed of which no further use is known."""
