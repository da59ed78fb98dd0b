"""A barrier between processes of one machine, made of three pipes.

Two system calls for each rank and step, and one wake-up. A collective of torch.distributed would do the same by way
of threads and TCP in every rank, and with eight of them on two CPUs that would be a part of what is measured.
"""

from __future__ import annotations

import os


class Barrier:
    """One for all ranks: made before they start, and found again by its descriptors, which they inherit."""

    def __init__(self, ranks: int, descriptors: tuple[int, ...]) -> None:
        self._ranks, self.descriptors = ranks, descriptors
        self._tokens = descriptors[0], descriptors[1]
        # Two gates, by turns: who is at the next one already must not take what another still has to read.
        self._gates = (descriptors[2], descriptors[3]), (descriptors[4], descriptors[5])
        self._turn = 0

    @classmethod
    def make(cls, ranks: int) -> Barrier:
        """A new one."""
        made = cls(ranks, (*os.pipe(), *os.pipe(), *os.pipe()))
        os.write(made._tokens[1], bytes(range(ranks)))
        return made

    def wait(self) -> None:
        """Until all ranks are here."""
        if self._ranks == 1:
            return
        read, write = self._gates[self._turn]
        self._turn = 1 - self._turn
        (token,) = os.read(self._tokens[0], 1)
        if token == self._ranks - 1:
            os.write(self._tokens[1], bytes(range(self._ranks)))
            os.write(write, bytes(self._ranks - 1))
        elif not os.read(read, 1):
            raise EOFError("the other ranks are gone")

    def close(self) -> None:
        """Let go of the pipes."""
        for descriptor in self.descriptors:
            os.close(descriptor)
