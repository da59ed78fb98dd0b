"""One name."""


class BatchFeature:
    """Nothing is ever one of these."""
