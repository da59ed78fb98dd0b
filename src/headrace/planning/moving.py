"""Whether decoded samples are worth moving between machines. Pure: times are passed in.

A cluster's nodes hold samples as they lie in storage. To hold them decoded, too, spares decoding each time but the
first; but what is decoded is larger as a rule, and has to be moved. That takes CPU time at both ends, which is known
once a few samples were decoded. What the network has to say to it, only trying shows: rows that wait for decoded
samples for longer than they would take to be decoded here had better be.
"""

from __future__ import annotations

_BYTE = 3e-9
"""CPU seconds for a byte from one machine's memory in another's, at both ends together: encrypted, by a CPU of the
usual kind (``make bench-transport``)."""
_WORTH = 1.5
"""Decoding has to cost so many times what moving does, as both are only about known."""
_SIZES = 4
"""Decoded samples whose sizes have to be seen."""
_DECODED = 32
"""Samples that have to be decoded here until it is known what that takes."""
_TRIED = 256
"""Rows made of decoded samples from elsewhere until it is known what these take."""
_MEAN = 1 / 256
"""The weight of one row in what rows take."""
_REST, _LONGEST = 30.0, 1800.0
"""Seconds for which nothing is moved where that was slower: at first, and at most."""
_WELL = 10.0
"""If it went well for so many times its rest, that was long ago."""


class Mean:
    """Of what rows took lately."""

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, count: int, total: float) -> None:
        """So many more, together."""
        if count > 0:
            self.count += count
            weight = max(count * _MEAN, count / self.count)
            self.value += min(1.0, weight) * (total / count - self.value)


class Moving:
    """What one process knows of it, of one recipe. It is told of each order that it has prepared."""

    def __init__(self) -> None:
        self._encoded, self._decoded = Mean(), Mean()
        """Bytes of a sample."""
        self._decoding, self._here, self._there = Mean(), Mean(), Mean()
        """CPU seconds of decoding a sample. Seconds of a row that is decoded here, and of one that need not be, with
        what it is waited for."""
        self._worth = False
        self._rest, self._until = 0.0, 0.0
        """For how long, and until when, nothing is moved."""

    def fetched(self, samples: int, nbytes: float) -> None:
        """Encoded samples came."""
        self._encoded.add(samples, nbytes)

    def sized(self, samples: int, nbytes: float) -> None:
        """Decoded samples have these sizes."""
        self._decoded.add(samples, nbytes)

    def decoded(self, samples: int, cpu: float, seconds: float) -> None:
        """Samples were decoded here. ``cpu``: that this took; ``seconds``: of all of their rows."""
        self._decoding.add(samples, cpu)
        self._here.add(samples, seconds)

    def found(self, rows: int, seconds: float, now: float) -> None:
        """Rows were made of samples that had been decoded elsewhere. ``seconds``: that they took, and were waited
        for."""
        if now < self._until:
            return  # (they were asked for before)
        self._there.add(rows, seconds)
        if self._there.count < _TRIED or self._there.value <= self._here.value:
            return
        # What is smaller than it was before is moved in less time: if that is long, all of it is.
        if self._decoded.value > self._encoded.value:
            well = now - self._until
            self._rest = min(_LONGEST, 2 * self._rest) if self._rest and well < _WELL * self._rest else _REST
            self._until = now + self._rest
        self._there = Mean()

    def needs_size(self) -> bool:
        """Whether it is not known yet how large decoded samples are."""
        return self._decoded.count < _SIZES

    def pays(self, now: float) -> bool:
        """Whether decoded samples had better be moved."""
        if self.needs_size() or self._decoding.count < _DECODED or now < self._until:
            return False
        moving = _BYTE * self._decoded.value
        # (what is held decoded does not come encoded; once begun, it goes on until it costs more than it saves)
        spared = self._decoding.value + _BYTE * self._encoded.value
        self._worth = spared > (1.0 if self._worth else _WORTH) * moving
        return self._worth
