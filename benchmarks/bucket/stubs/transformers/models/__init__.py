"""One module."""
