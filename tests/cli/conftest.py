"""The command line's tests have a host of their own, too."""

from tests.host.conftest import place

__all__ = ["place"]
