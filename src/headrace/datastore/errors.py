"""What goes wrong with datasets on disk. Each message says what to do."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class DataError(HeadraceError, RuntimeError):
    """A dataset cannot be had, or not be treated so."""


class NoSuchDataset(DataError, LookupError):
    """No dataset has that name."""

    def __init__(self, name: str, known: list[str]) -> None:
        there = f"there are {', '.join(sorted(known))}" if known else "there are none yet"
        super().__init__(
            f"no dataset is called {name!r}; {there}. Add it: headrace data add URL --name {name}"
        )


class NoRoom(DataError):
    """It does not fit, whatever may be evicted."""


class UnsafeArchive(DataError):
    """An archive would write outside of its folder, or is otherwise made to harm."""


class BadArchive(DataError):
    """An archive is damaged, or of a kind that cannot be unpacked."""


class SourceChanged(DataError):
    """What lies at a URL is not what lay there."""


class FetchFailed(DataError):
    """Something could not be fetched; what came of it is kept."""


class Stopped(DataError):
    """Somebody asked for an end."""
