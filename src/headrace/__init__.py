"""headrace: the data plane that feeds deep-learning training."""

__version__ = "0.1.0"
