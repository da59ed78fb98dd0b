"""RandAugment, TrivialAugment and AutoAugment: operations chosen at random, with the magnitudes of torchvision.

Each operation is Pillow's own, as it is in torchvision on Pillow's images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.pillow import ROTATIONS, arrayed, fill_of, pictured, way_of
from headrace.recipes.image.pixels import Image, Pixels
from headrace.recipes.op import Numbers, as_fill

Choice = tuple[str, int | None, bool]
"""An operation, the number of its magnitude (None: it has none), and whether that is negative."""
Policy = tuple[tuple[tuple[str, float, int | None], ...], ...]
"""Pairs of operations, each with its probability and the number of its magnitude."""

_PLAIN = ("Identity", "AutoContrast", "Equalize", "Invert")
_SIGNED = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
)
RAND = ("Identity", *_SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize")
"""What RandAugment and TrivialAugment choose from."""
_ENHANCERS = ("Brightness", "Color", "Contrast", "Sharpness")
_SPANS = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0, **dict.fromkeys(_ENHANCERS, 0.9)}
_WIDE = {"ShearX": 0.99, "ShearY": 0.99, "Rotate": 135.0, **dict.fromkeys(_ENHANCERS, 0.99)}

IMAGENET: Policy = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
    (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, None), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, None)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, None)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, None), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, None)),
    (("Equalize", 0.0, None), ("Equalize", 0.8, None)),
    (("Invert", 0.6, None), ("Equalize", 1.0, None)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, None)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, None)),
    (("Color", 0.4, 0), ("Equalize", 0.6, None)),
    (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
    (("Invert", 0.6, None), ("Equalize", 1.0, None)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
)
"""The policy that the paper of AutoAugment found on ImageNet."""


def _step(low: float, high: float, bins: int, at: int) -> float:
    """Number ``at`` of ``bins`` from low to high, in 32 bits as torch.linspace has them: edges hang on it."""
    if bins == 1:
        return low
    first, last = float(np.float32(low)), float(np.float32(high))
    step = float(np.float32(last - first) / np.float32(bins - 1))
    # From either end, multiplied and added in one, rounded once.
    return float(np.float32(first + step * at if at < bins // 2 else last - step * (bins - 1 - at)))


def magnitude(name: str, at: int, bins: int, size: tuple[int, int], *, wide: bool) -> float:
    """The magnitude number ``at`` of ``bins`` for an image of (height, width)."""
    if name == "Posterize":
        return 8.0 if bins == 1 else 8 - float(np.rint(at / ((bins - 1) / (6 if wide else 4))))
    if name == "Solarize":
        return _step(255.0, 0.0, bins, at)
    if name in ("TranslateX", "TranslateY"):
        side = size[1] if name == "TranslateX" else size[0]
        return _step(0.0, 32.0 if wide else 150.0 / 331.0 * side, bins, at)
    return _step(0.0, (_WIDE if wide else _SPANS)[name], bins, at)


def apply_operation(picture: Any, name: str, amount: float, way: int, fill: Any) -> Any:
    """One operation on a Pillow image."""
    from PIL import Image as Pillow
    from PIL import ImageEnhance, ImageOps

    if name == "Identity":
        return picture
    if name in _ENHANCERS:
        return getattr(ImageEnhance, name)(picture).enhance(1.0 + amount)
    if name in ("AutoContrast", "Equalize", "Invert"):
        return getattr(ImageOps, name.lower())(picture)
    if name == "Posterize":
        return ImageOps.posterize(picture, int(amount))
    if name == "Solarize":
        return ImageOps.solarize(picture, amount)
    if name == "Rotate":
        return picture.rotate(amount, way, fillcolor=fill)
    moved = {
        "ShearX": (1.0, amount, 0.0, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, amount, 1.0, 0.0),
        "TranslateX": (1.0, 0.0, -float(int(amount)), 0.0, 1.0, 0.0),
        "TranslateY": (1.0, 0.0, 0.0, 0.0, 1.0, -float(int(amount))),
    }[name]
    return picture.transform(picture.size, Pillow.Transform.AFFINE, moved, way, fillcolor=fill)


class Chosen(Pixels):
    """Operations that are chosen for each row."""

    bins: int
    interpolation: str
    fill: tuple[int, ...]
    wide: ClassVar[bool] = False

    @property
    def random(self) -> bool:
        """Always."""
        return True

    def apply(self, image: Image, parameters: Any) -> Image:
        """The chosen operations, one after the other."""
        height, width, channels = image.shape
        way, fill = way_of(self.interpolation), fill_of(self.fill, channels)
        picture = pictured(image)
        for name, at, negative in parameters:
            amount = 0.0 if at is None else magnitude(name, at, self.bins, (height, width), wide=self.wide)
            picture = apply_operation(picture, name, -amount if negative else amount, way, fill)
        return arrayed(picture, channels)


def _choice(name: str, at: int, sign: float) -> Choice:
    return (name, None if name in _PLAIN else at, name in _SIGNED and sign < 0.5)


MOST = 8
"""Operations of RandAugment on one image, at most."""


@dataclass(frozen=True)
class RandAugment(Chosen):
    """See ``rand_augment``."""

    count: int
    strength: int
    bins: int
    interpolation: str
    fill: tuple[int, ...]
    shows: ClassVar[str] = "rand_augment"
    draws: ClassVar[int] = 2 * MOST

    def parameters(self, numbers: Numbers) -> list[Any]:
        """As many operations as are wanted, of one magnitude."""
        which = np.floor(numbers[:, : self.count] * len(RAND)).astype(int).tolist()
        signs = numbers[:, MOST : MOST + self.count].tolist()
        return [
            [_choice(RAND[one], self.strength, sign) for one, sign in zip(row, row_signs, strict=True)]
            for row, row_signs in zip(which, signs, strict=True)
        ]


def rand_augment(
    num_ops: int = 2,
    magnitude: int = 9,
    *,
    num_magnitude_bins: int = 31,
    interpolation: str = "nearest",
    fill: int | tuple[int, ...] = 0,
) -> RandAugment:
    """``num_ops`` operations chosen at random, of one magnitude (RandAugment)."""
    op = "rand_augment"
    if not 0 <= num_ops <= MOST:
        raise OptionError(f"{op}(num_ops={num_ops!r}): from 0 to {MOST} operations")
    if not 0 <= magnitude < num_magnitude_bins:
        raise OptionError(f"{op}(magnitude={magnitude!r}): from 0 to {num_magnitude_bins - 1}")
    _check_way(op, interpolation)
    return RandAugment(num_ops, magnitude, num_magnitude_bins, interpolation, as_fill(op, fill))


@dataclass(frozen=True)
class TrivialAugment(Chosen):
    """See ``trivial_augment``."""

    bins: int
    interpolation: str
    fill: tuple[int, ...]
    wide: ClassVar[bool] = True
    shows: ClassVar[str] = "trivial_augment"
    draws: ClassVar[int] = 3

    def parameters(self, numbers: Numbers) -> list[Any]:
        """One operation of any magnitude."""
        which = np.floor(numbers[:, 0] * len(RAND)).astype(int).tolist()
        ats = np.floor(numbers[:, 1] * self.bins).astype(int).tolist()
        return [
            [_choice(RAND[one], at, sign)]
            for one, at, sign in zip(which, ats, numbers[:, 2].tolist(), strict=True)
        ]


def trivial_augment(
    *, num_magnitude_bins: int = 31, interpolation: str = "nearest", fill: int | tuple[int, ...] = 0
) -> TrivialAugment:
    """One operation chosen at random, of a random magnitude from a wide range (TrivialAugment)."""
    op = "trivial_augment"
    if num_magnitude_bins < 1:
        raise OptionError(f"{op}(num_magnitude_bins={num_magnitude_bins!r}): at least one is needed")
    _check_way(op, interpolation)
    return TrivialAugment(num_magnitude_bins, interpolation, as_fill(op, fill))


@dataclass(frozen=True)
class AutoAugment(Chosen):
    """See ``auto_augment``."""

    policy: Policy
    interpolation: str
    fill: tuple[int, ...]
    bins: int = 10
    shows: ClassVar[str] = "auto_augment"
    draws: ClassVar[int] = 5

    def parameters(self, numbers: Numbers) -> list[Any]:
        """The operations of one of the policy's pairs, each as its probability says."""
        out = []
        for one, first, second, *signs in numbers.tolist():
            pair = self.policy[int(one * len(self.policy))]
            out.append(
                [
                    _choice(name, 0 if at is None else at, sign)
                    for (name, p, at), chance, sign in zip(pair, (first, second), signs, strict=True)
                    if chance <= p
                ]
            )
        return out


def auto_augment(
    policy: str | Sequence[Any] = "imagenet",
    *,
    interpolation: str = "nearest",
    fill: int | tuple[int, ...] = 0,
) -> AutoAugment:
    """One of the pairs of operations that AutoAugment found, each with its probability.

    ``policy``: ``"imagenet"``, or pairs of (operation, probability, number of the magnitude from 0 to 9 or None).
    """
    op = "auto_augment"
    if isinstance(policy, str) and policy != "imagenet":
        raise OptionError(f"{op}({policy!r}): expected 'imagenet', or a list of pairs")
    given: Sequence[Any] = IMAGENET if isinstance(policy, str) else policy
    pairs = tuple(
        tuple((str(n), float(p), None if at is None else int(at)) for n, p, at in pair) for pair in given
    )
    known = {*RAND, "Invert"}
    for pair in pairs:
        for name, p, at in pair:
            if len(pair) != 2 or name not in known or not 0 <= p <= 1 or not (at is None or 0 <= at < 10):
                raise OptionError(f"{op}(...): {pair} is no pair of (operation, probability, 0 to 9 or None)")
            if at is None and name not in _PLAIN:
                raise OptionError(f"{op}(...): {name} needs a magnitude")
    if not pairs:
        raise OptionError(f"{op}(...): an empty policy")
    _check_way(op, interpolation)
    return AutoAugment(pairs, interpolation, as_fill(op, fill))


def _check_way(op: str, interpolation: str) -> None:
    if interpolation not in ROTATIONS:
        raise OptionError(f"{op}(interpolation={interpolation!r}): expected nearest, bilinear or bicubic")
