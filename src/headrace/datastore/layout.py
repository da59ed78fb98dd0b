"""Where things lie below the store's folder, and what they take there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.core import environment
from headrace.core.errors import OptionError

BLOCK = 4096
"""Files take whole blocks; so does each folder."""
_FULL = 0.8
"""Of what the file system has free, or the store takes already: the quota where none is said."""


@dataclass(frozen=True)
class Layout:
    """The store's folder.

    ``content/KEY``: what was fetched, whole; it never changes. ``incoming/ID``: what is being fetched.
    ``views/ID``: a folder of links to contents. ``datasets/NAME``: a link to a view, or to a content itself.
    """

    root: Path

    @property
    def books(self) -> Path:
        """The database."""
        return self.root / "store.db"

    @property
    def tokens(self) -> Path:
        """See ``Tokens``."""
        return self.root / "tokens"

    def content(self, key: str) -> Path:
        """Of what was fetched."""
        return self.root / "content" / key

    def incoming(self, ident: str) -> Path:
        """Of what is being fetched."""
        return self.root / "incoming" / ident

    def view(self, ident: str) -> Path:
        """Of links."""
        return self.root / "views" / ident

    def dataset(self, name: str) -> Path:
        """What users are given."""
        return self.root / "datasets" / name

    def make(self) -> None:
        """The folders themselves."""
        try:
            for name in ("content", "incoming", "views", "datasets"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"the dataset store cannot be in {str(self.root)!r}: {error.strerror}; set HEADRACE_DATA to a folder "
                "on a local disk that you may write to"
            ) from error

    def usual_quota(self, taken: int) -> int:
        """Bytes that the store may take where nobody has said it; it has ``taken`` some already."""
        found = os.statvfs(self.root)
        return int(_FULL * (found.f_bavail * found.f_frsize + taken))

    def free(self) -> int:
        """Bytes that the file system has left."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize


def usual_root() -> Path:
    """``HEADRACE_DATA``, else a folder below the user's."""
    said = environment.data_dir()
    return Path(said).absolute() if said else Path(environment.data_home()) / "headrace" / "data"


def on_disk(size: int) -> int:
    """What a file of so many bytes takes."""
    return -(-size // BLOCK) * BLOCK
