"""One name."""


class BatchEncoding:
    """Nothing is ever one of these."""
