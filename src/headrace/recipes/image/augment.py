"""timm's RandAugment, AutoAugment and AugMix: its operations, and how it draws their magnitudes.

They differ from torchvision's in both, so these are steps of their own. Each operation is Pillow's.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headrace.recipes.image.pillow import arrayed, fill_of, pictured, posterized, way_of
from headrace.recipes.image.pixels import Image, Pixels
from headrace.recipes.op import Numbers

NEEDS = 5
"""Random numbers of one operation: whether it happens, two for its magnitude, one for its sign, one its filter."""
_TOP = 10.0
"""The magnitude that stands for the end of a scale."""
_ENHANCERS = ("Color", "Contrast", "Brightness", "Sharpness")
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel", "Rotate")
OPERATIONS = frozenset(
    {
        *(
            "AutoContrast",
            "Equalize",
            "Invert",
            "SolarizeAdd",
            "Desaturate",
            "GaussianBlur",
            "GaussianBlurRand",
        ),
        *("Posterize", "PosterizeIncreasing", "PosterizeOriginal", "Solarize", "SolarizeIncreasing"),
        *(name + kind for name in _ENHANCERS for kind in ("", "Increasing")),
        *_MOVES,
    }
)


@dataclass(frozen=True)
class Augmentation:
    """One operation. ``spread``: of its magnitude, normal; infinite: uniform from 0 to the magnitude."""

    name: str
    p: float
    magnitude: float
    spread: float
    most: float
    translate: float
    """The farthest: in pixels, or as a share of the image's side."""
    fill: tuple[int, ...]
    ways: tuple[str, ...]
    """Filters, one of which is chosen."""


class Drawn(NamedTuple):
    """An operation that happens to a row."""

    what: Augmentation
    level: float
    """Its magnitude, as a share of the whole scale."""
    turn: float
    """A random number: for the sign, or the radius of a blur."""
    way: str


def drawn(what: Augmentation, numbers: Any) -> Drawn | None:
    """What becomes of an operation by its random numbers."""
    chance, first, second, turn, way = numbers
    if what.p < 1 and chance >= what.p:
        return None
    level = what.magnitude
    if what.spread == math.inf:
        level *= first
    elif what.spread > 0:
        level += what.spread * math.sqrt(-2 * math.log1p(-first)) * math.cos(2 * math.pi * second)
    level = max(0.0, min(level, what.most))
    return Drawn(what, level / _TOP, turn, what.ways[int(way * len(what.ways))])


def _within(low: float, high: float, level: float) -> float:
    return max(low, min(high, low + (high - low) * level))


def performed(picture: Any, one: Drawn) -> Any:
    """An operation on a Pillow image."""
    from PIL import ImageEnhance, ImageFilter, ImageOps

    name, level = one.what.name, one.level
    sign = -1.0 if one.turn > 0.5 else 1.0
    if name in _MOVES:
        return _moved(picture, one, sign)
    if name in ("AutoContrast", "Equalize", "Invert"):
        return getattr(ImageOps, name.lower())(picture)
    if name in _ENHANCERS:
        return getattr(ImageEnhance, name)(picture).enhance(level * 1.8 + 0.1)
    if name == "Desaturate":
        return ImageEnhance.Color(picture).enhance(min(1.0, max(0.0, 1.0 - _within(0.5, 1.0, level))))
    if name == "GaussianBlur":
        return picture.filter(ImageFilter.GaussianBlur(radius=_within(0.1, 2.0, level)))
    if name == "GaussianBlurRand":
        most = 2.0 * _within(0.0, 1.0, level)
        return picture.filter(ImageFilter.GaussianBlur(radius=0.1 + (most - 0.1) * one.turn))
    if name.startswith("Posterize"):
        bits = int(level * 4)
        bits = {"PosterizeIncreasing": 4 - bits, "PosterizeOriginal": 4 + bits}.get(name, bits)
        return picture if bits >= 8 else posterized(picture, bits)
    if name == "SolarizeAdd":
        more = min(128, int(level * 110))
        table = [min(255, value + more) if value < 128 else value for value in range(256)]
        return picture.point(table * len(picture.getbands()))
    if name.startswith("Solarize"):
        threshold = min(256, int(level * 256))
        return ImageOps.solarize(picture, 256 - threshold if name == "SolarizeIncreasing" else threshold)
    return getattr(ImageEnhance, name.removesuffix("Increasing"))(picture).enhance(
        max(0.1, 1.0 + sign * level * 0.9)
    )


def _moved(picture: Any, one: Drawn, sign: float) -> Any:
    """Sheared, shifted or turned."""
    from PIL import Image as Pillow

    name, way = one.what.name, way_of(one.way)
    fill = fill_of(one.what.fill, len(picture.getbands()))
    if name == "Rotate":
        return picture.rotate(sign * one.level * 30.0, way, fillcolor=fill)
    amount = sign * one.level * (0.3 if name.startswith("Shear") else one.what.translate)
    if name.endswith("Rel"):
        amount *= picture.width if name == "TranslateXRel" else picture.height
    matrix = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    matrix[{"ShearX": 1, "ShearY": 3}.get(name, 2 if name.startswith("TranslateX") else 5)] = amount
    return picture.transform(picture.size, Pillow.Transform.AFFINE, matrix, way, fillcolor=fill)


def _chain(picture: Any, operations: Any) -> Any:
    for one in operations:
        if one is not None:
            picture = performed(picture, one)
    return picture


class Augment(Pixels):
    """A step of such operations."""

    @property
    def random(self) -> bool:
        """Always."""
        return True

    def plain(self) -> Any:
        """With the operations as plain data."""
        return [type(self).__name__, dataclasses.asdict(self)]  # type: ignore[call-overload]

    def apply(self, image: Image, parameters: Any) -> Image:
        """The drawn operations, one after the other."""
        return arrayed(_chain(pictured(image), parameters), image.shape[2])


@dataclass(frozen=True)
class RandomOperations(Augment):
    """RandAugment: ``count`` of the operations, each as likely as the others; with weights, none of them twice."""

    operations: tuple[Augmentation, ...]
    count: int
    weights: tuple[float, ...] | None
    shows: ClassVar[str] = "timm's RandAugment"

    @property
    def draws(self) -> int:
        """Which operation, and what it needs, for each."""
        return self.count * (1 + NEEDS)

    def parameters(self, numbers: Numbers) -> list[Any]:
        """The operations of each row, None in the place of one that does not happen."""
        return [
            [
                drawn(self.operations[which], row[self.count + NEEDS * at : self.count + NEEDS * (at + 1)])
                for at, which in enumerate(self._chosen(row[: self.count]))
            ]
            for row in numbers.tolist()
        ]

    def _chosen(self, numbers: list[float]) -> list[int]:
        if self.weights is None:
            return [int(number * len(self.operations)) for number in numbers]
        left, out = np.array(self.weights), []
        for number in numbers:
            edges = np.cumsum(left)
            which = int(np.searchsorted(edges, number * edges[-1], side="right"))
            out.append(which)
            left[which] = 0
        return out


@dataclass(frozen=True)
class PolicyOperations(Augment):
    """AutoAugment: one of the lists of operations."""

    policy: tuple[tuple[Augmentation, ...], ...]
    shows: ClassVar[str] = "timm's AutoAugment"

    @property
    def draws(self) -> int:
        """Which list, and what its operations need."""
        return 1 + NEEDS * max(len(operations) for operations in self.policy)

    def parameters(self, numbers: Numbers) -> list[Any]:
        """The operations of each row, None in the place of one that does not happen."""
        out = []
        for which, *rest in numbers.tolist():
            operations = self.policy[int(which * len(self.policy))]
            out.append([drawn(one, rest[NEEDS * at : NEEDS * (at + 1)]) for at, one in enumerate(operations)])
        return out


@dataclass(frozen=True)
class MixedOperations(Augment):
    """AugMix: chains of operations, blended with each other and with the image.

    ``depth``: of each chain; 0 stands for 1 to 3 at random. (Weights are those of its ``alpha=1``.)
    """

    operations: tuple[Augmentation, ...]
    width: int
    depth: int
    shows: ClassVar[str] = "timm's AugMix"

    @property
    def _longest(self) -> int:
        return self.depth or 3

    @property
    def draws(self) -> int:
        """The weights of the chains and of their blend; for each chain its length, and its operations."""
        return self.width + 1 + self.width * (1 + self._longest * (1 + NEEDS))

    def parameters(self, numbers: Numbers) -> list[Any]:
        """For each row the weight of the blend, and the chains with their weights."""
        shares = -np.log1p(-numbers[:, : self.width])
        shares = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
        blends = numbers[:, self.width].astype(np.float32)
        length = 1 + self._longest * (1 + NEEDS)
        out = []
        for row, rest in enumerate(numbers[:, self.width + 1 :].tolist()):
            chains = [self._one(rest[length * at : length * (at + 1)]) for at in range(self.width)]
            out.append((blends[row], list(zip(shares[row], chains, strict=True))))
        return out

    def _one(self, numbers: list[float]) -> list[Drawn | None]:
        depth, out = self.depth or 1 + int(numbers[0] * 3), []
        for at in range(depth):
            which, *rest = numbers[1 + (1 + NEEDS) * at : 1 + (1 + NEEDS) * (at + 1)]
            out.append(drawn(self.operations[int(which * len(self.operations))], rest))
        return out

    def apply(self, image: Image, parameters: Any) -> Image:
        """The chains, mixed by their weights, and blended with the image."""
        from PIL import Image as Pillow

        blend, chains = parameters
        picture = pictured(image)
        mixed = np.zeros(image.shape, np.float32)
        for share, chain in chains:
            mixed += share * arrayed(_chain(picture, chain), image.shape[2]).astype(np.float32)
        whole = pictured(np.clip(mixed, 0, 255).astype(np.uint8))
        return arrayed(Pillow.blend(picture, whole, float(blend)), image.shape[2])
