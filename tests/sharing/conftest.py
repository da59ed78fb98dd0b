"""The fixtures of all tests with several jobs."""

from tests.sharing.fixtures import nursery, place, start

__all__ = ["nursery", "place", "start"]
