"""A part of a source: some of its samples, in an order of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.recipes.fingerprint import digest

if TYPE_CHECKING:
    from headrace.sources.source import Source


class SubsetSource:
    """Samples of another source. They keep their identities, so all parts of a source share what is cached."""

    base: Source
    indices: NDArray[np.int64]

    def __init__(self, source: Source, indices: Sequence[int] | NDArray[Any]) -> None:
        chosen = np.asarray(indices)
        if chosen.dtype == np.bool_ or chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise OptionError(f"subset({indices!r}): expected a list of sample indices")
        chosen = chosen.astype(np.int64)
        size = len(source)
        if chosen.size and not -size <= int(chosen.min()) <= int(chosen.max()) < size:
            raise OptionError(
                f"subset(): indices {int(chosen.min())} to {int(chosen.max())}, and the source has {size} samples"
            )
        base: Source = source
        if isinstance(source, SubsetSource):
            base, chosen = source.base, source.indices[chosen]
        self.base = source = base
        self.indices = np.where(chosen < 0, chosen + len(source), chosen)
        targets = source.targets
        if targets is not None:
            targets = (
                targets[self.indices]
                if isinstance(targets, np.ndarray)
                else [targets[i] for i in self.indices]
            )
        self.targets: NDArray[Any] | list[Any] | None = targets

    def __getattr__(self, name: str) -> Any:
        # What else a source may say of itself: classes, root, the shape of its samples.
        # Methods are not handed on: their indices would be those of the whole.
        if name == "base" or name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.base, name)
        if callable(value):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return value

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"{len(self)} samples of {self.base!r}"

    @property
    def encoded(self) -> bool:
        """See ``Source``."""
        return self.base.encoded

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """See ``Source``."""
        return self.base.read_many(self._at(indices))

    def name(self, index: int) -> str:
        """See ``Source``."""
        return self.base.name(int(self._at([index])[0]))

    def identity(self, index: int) -> str:
        """See ``Source``."""
        return self.base.identity(int(self._at([index])[0]))

    @property
    def identity_bytes(self) -> Any:
        """See ``FileSource``: only of sources that have it."""
        many = self.base.identity_bytes  # type: ignore[attr-defined]
        return lambda indices: many(self._at(indices))

    @property
    def locate(self) -> Any:
        """See ``Locating``: only of sources that have it."""
        locate = self.base.locate  # type: ignore[attr-defined]
        return lambda indices: locate(self._at(indices))

    @property
    def location_reader(self) -> Any:
        """See ``Locating``: only of sources that have it. A location is the same in the part and in the whole."""
        return self.base.location_reader  # type: ignore[attr-defined]

    @property
    def listing(self) -> Any:
        """See ``FileSource``: only of sources that have it."""
        listing = self.base.listing  # type: ignore[attr-defined]
        return lambda: digest("subset", listing(), self.indices.tobytes())

    def fingerprint(self) -> str:
        """See ``Source``."""
        return digest("subset", self.base.fingerprint(), self.indices.tobytes())

    def _at(self, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        at = np.asarray(indices, np.int64)
        size = len(self)
        if at.size and not 0 <= int(at.min()) <= int(at.max()) < size:
            raise IndexError(
                f"sample indices must lie in 0..{size - 1}, got {int(at.min())}..{int(at.max())}"
            )
        return self.indices[at]
