"""One name."""


class AutoTokenizer:
    """Nothing."""
