"""Free ranges of addresses: the one allocator of the arena and of caches. It touches no memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator


class Ranges:
    """Ranges that are free, no two of them side by side. There are none at first.

    What is taken comes from the smallest range that is large enough; of equal ones, from the first. What is given
    back becomes one with the free ranges on both of its sides. Who makes new addresses gives them back as well.
    Ranges in use are not written down here, so nobody may give back what is free.
    """

    def __init__(self) -> None:
        self.total = 0
        """Bytes that are free."""
        self._order: list[tuple[int, int]] = []  # (bytes, start), the smallest first
        self._sizes: dict[int, int] = {}  # start -> bytes
        self._starts: dict[int, int] = {}  # end -> start

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Where each range begins, and its bytes; by address."""
        return iter(sorted(self._sizes.items()))

    @property
    def largest(self) -> int:
        """Bytes of the largest range."""
        return self._order[-1][0] if self._order else 0

    def take(self, nbytes: int) -> int | None:
        """Where ``nbytes`` bytes begin that are the caller's from now on; None: there are not so many in a row."""
        found = self.take_some(nbytes, 1)
        return found[0] if found else None

    def take_some(self, nbytes: int, count: int) -> list[int]:
        """As many times ``take``, or as often as it is possible."""
        if nbytes < 1:
            raise ValueError(f"a range of {nbytes} bytes")
        found: list[int] = []
        order, missing = self._order, count
        while missing and (at := bisect_left(order, (nbytes,))) < len(order):
            size, start = order[at]
            # What is left of the smallest that is large enough is the smallest, while it is large enough.
            many = size // nbytes if size < nbytes * missing else missing
            missing -= many
            found += [start] if many == 1 else range(start, start + nbytes * many, nbytes)
            end, taken = start + size, nbytes * many
            del self._sizes[start]
            if taken == size:
                del order[at], self._starts[end]
                continue
            start, size = start + taken, size - taken
            self._sizes[start] = size
            self._starts[end] = start
            if not at or order[at - 1] < (size, start):
                order[at] = (size, start)
            else:
                del order[at]
                insort(order, (size, start))
        self.total -= nbytes * (count - missing)
        return found

    def free(self, start: int, nbytes: int) -> None:
        """A range is free."""
        if start < 0 or nbytes < 1:
            raise ValueError(f"range {start}+{nbytes}")
        self.total += nbytes
        end = start + nbytes
        before = self._starts.pop(start, None)
        if before is not None:
            self._leave_order(self._sizes[before], before)
            start = before
        after = self._sizes.pop(end, None)
        if after is not None:
            self._leave_order(after, end)
            end += after
        self._sizes[start] = end - start
        self._starts[end] = start
        insort(self._order, (end - start, start))

    def _leave_order(self, nbytes: int, start: int) -> None:
        del self._order[bisect_left(self._order, (nbytes, start))]

    def free_all(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Many ranges (start and bytes) are free: quicker than one by one, if they are not few."""
        whole: dict[int, int] = {}
        first = end = -1
        for start, nbytes in sorted([*self._sizes.items(), *ranges]):
            if start != end:
                first = start
            end = start + nbytes
            whole[first] = end - first
        self._sizes = whole
        self._starts = {start + nbytes: start for start, nbytes in whole.items()}
        self._order = sorted((nbytes, start) for start, nbytes in whole.items())
        self.total = sum(whole.values())
