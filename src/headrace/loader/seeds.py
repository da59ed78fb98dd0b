"""The seeds of a loader's epochs: one for all of them, or one for each."""

from __future__ import annotations

import torch

from headrace.core import random as rnd
from headrace.loader.spec import LoaderSpec
from headrace.loader.state import LoaderState, set_generator

_NEXT = 0x73656564  # "seed": keeps what follows from a seed apart from what is drawn with it
_POSITIVE = (1 << 63) - 1


class EpochSeeds:
    """One for each epoch: seeds that come from torch, as its own loader's do, and can be told in advance.

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


class Seeds:
    """Which seed an epoch of a loader has."""

    def __init__(self, spec: LoaderSpec) -> None:
        self.of_all: int | None = spec.options.seed
        """That of all epochs: the user's, or a recipe's own once it is drawn."""
        self._each = EpochSeeds(spec.order.generator)

    def choose(self, spec: LoaderSpec, resume: LoaderState | None) -> int:
        """The seed of the epoch that begins now, or goes on from ``resume``."""
        if resume is not None:
            generator = spec.order.generator
            if generator is not None and resume.generator is not None:
                set_generator(generator, resume.generator)
            if resume.seed is not None and (self.of_all is not None or spec.data.described):
                if spec.options.seed is None:
                    self.of_all = resume.seed
                return resume.seed
            if resume.seed is not None:
                drawn = generator is not None and resume.generator is not None
                self._each.go_on(resume.seed, draws=not drawn)
                return resume.seed
        if self.of_all is not None:
            return self.of_all
        if spec.data.described:
            # One seed for the loader's life, so that epochs follow from it; ranks must agree without talking.
            self.of_all = 0 if spec.options.world_size > 1 else self._each.next()
            return self.of_all
        return self._each.next()

    def move(self, spec: LoaderSpec) -> None:
        """The loader has another place among the ranks."""
        if spec.options.seed is None:
            self.of_all = None  # what was drawn alone the others do not know

    def coming(self, spec: LoaderSpec) -> int | None:
        """The seed of the next epoch, should it begin now; None where the user's generator says it."""
        settled = self._settled(spec)
        return self._each.coming() if settled is None else settled

    def torch_after(self, spec: LoaderSpec) -> torch.Tensor:
        """Torch's global generator as it would be if an epoch began now."""
        return self._each.torch_after(drawn=self._settled(spec) is None)

    def _settled(self, spec: LoaderSpec) -> int | None:
        if self.of_all is None and spec.data.described and spec.options.world_size > 1:
            return 0
        return self.of_all


def _follow(seed: int) -> int:
    return rnd.key(_NEXT, seed) & _POSITIVE
