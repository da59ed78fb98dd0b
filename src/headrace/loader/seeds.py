"""The seed of each epoch, where the user gave none."""

from __future__ import annotations

import torch

from headrace.core import random as rnd

_NEXT = 0x73656564  # "seed": keeps what follows from a seed apart from what is drawn with it
_POSITIVE = (1 << 63) - 1


class EpochSeeds:
    """Seeds that come from torch, as its own loader's do, and can be told in advance.

    The first one is drawn from torch's global generator. Those after it follow from the one before, so that a saved
    seed settles all later epochs, whatever else draws from that generator. Whoever seeds torch again is obeyed.
    A generator that was given to the loader is the user's own: each epoch draws from it, and its state is saved.
    """

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator = generator
        self._planned: int | None = None
        self._torch_seed: int | None = None

    def draw(self) -> int:
        """A number as torch draws it when an iterator is made."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._generator).item())

    def next(self) -> int:
        """The seed of the epoch that begins now."""
        anew = self._seeded_again()
        seed = self.draw()
        if self._generator is None and self._planned is not None and not anew:
            seed = self._planned
        self._planned = _follow(seed)
        return seed

    def go_on(self, seed: int, *, draws: bool) -> None:
        """An epoch goes on that has this seed. ``draws``: as if it began here, for samplers that draw after it."""
        if draws:
            self.draw()
        self._seeded_again()
        self._planned = _follow(seed)

    def coming(self) -> int | None:
        """The seed of the next epoch, should it begin now; None where the user's generator says it."""
        if self._generator is not None:
            return None
        if self._planned is None:
            self._seeded_again()
            before = torch.get_rng_state()
            self._planned = self.draw()
            torch.set_rng_state(before)
        return self._planned

    def torch_after(self, *, drawn: bool) -> torch.Tensor:
        """Torch's global generator as it is, or as it would be if an epoch had ``drawn`` its seed now."""
        before = torch.get_rng_state()
        if drawn and self._generator is None:
            self.draw()
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        return after

    def _seeded_again(self) -> bool:
        """Whether torch was seeded since the last look, as far as can be seen: with another seed, or just now."""
        now = torch.default_generator
        before, self._torch_seed = self._torch_seed, now.initial_seed()
        twin = torch.Generator().manual_seed(self._torch_seed)
        return before not in (None, self._torch_seed) or torch.equal(twin.get_state(), now.get_state())


def _follow(seed: int) -> int:
    return rnd.key(_NEXT, seed) & _POSITIVE
