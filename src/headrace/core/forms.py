"""The three forms in which a sample can exist."""

from __future__ import annotations

import enum


class Form(enum.IntEnum):
    """How far a sample is prepared. Higher is further; ``NONE`` means it still has to be fetched."""

    NONE = 0
    ENCODED = 1
    """The bytes as they lie in storage."""
    DECODED = 2
    """Arrays before anything random: decoded, and through every leading deterministic step."""
    AUGMENTED = 3
    """Ready to be collated."""


CACHEABLE = (Form.ENCODED, Form.DECODED, Form.AUGMENTED)
