"""Torchvision's transforms as headrace's steps: known by type and parameters, torchvision itself is not imported.

A pipeline is translated from its beginning for as long as every transform is known and means the same on headrace's
images; from the first that is not, the rest stays the user's code and gets what it would have got: a Pillow image or
a tensor. Random parameters have the same distributions, pixels are those of Pillow but for rounding.

Images here are uint8 pixels until a transform makes floats of them. Moving pixels about and making floats of them
may change places, so crops and flips that follow ``ToTensor`` are put before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import OptionError
from headrace.recipes.calls import Call, deterministic
from headrace.recipes.image import ops as image
from headrace.recipes.op import Op
from headrace.recipes.values import to_pil, to_tensor

DETERMINISTIC = frozenset(
    {
        "CenterCrop",
        "ConvertImageDtype",
        "FiveCrop",
        "Grayscale",
        "Identity",
        "Normalize",
        "PILToTensor",
        "Pad",
        "Resize",
        "RGB",
        "TenCrop",
        "ToDtype",
        "ToImage",
        "ToImageTensor",
        "ToPILImage",
        "ToPureTensor",
        "ToTensor",
    }
)
"""Torchvision's transforms whose result depends on their input alone."""

_FILTERS = {"bilinear": "bilinear", "bicubic": "cubic", "lanczos": "lanczos"}
_DTYPES = {"torch.float32": "float32", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}


class Unknown(Exception):
    """Why a transform stays the user's code."""


@dataclass(frozen=True)
class Note:
    """What became of one transform."""

    step: str
    why: str = ""
    """Why it is still the user's code; empty: it is one of headrace's steps."""

    def __str__(self) -> str:
        return f"{self.step}: {self.why}" if self.why else self.step


@dataclass
class Pipeline:
    """What is translated so far, and what the next transform would be given."""

    steps: list[Op] = field(default_factory=list)
    """On pixels."""
    tensor: bool = False
    """Whether it is a tensor, or a Pillow image."""
    floats: str = ""
    """The dtype of floats, once they are."""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    erasing: list[Op] = field(default_factory=list)

    @property
    def written(self) -> list[Op]:
        """The steps, and how rows are written."""
        out = list(self.steps)
        if self.mean is not None and self.std is not None:
            out.append(image.normalise(tuple(self.mean), tuple(self.std), dtype=self.floats))
        elif self.floats:
            out.append(image.to_float(self.floats))
        if self.tensor:
            out.append(image.layout("NCHW", contiguous=True))
        return out + self.erasing

    def pixels(self) -> None:
        """The next step changes values, or looks at more than one: it is for uint8."""
        if self.floats:
            raise Unknown("it follows a conversion to floats")

    def places(self) -> None:
        """The next step moves pixels about."""
        if self.mean is not None or self.erasing:
            raise Unknown("it follows a normalisation")


def translate(transforms: Sequence[Any]) -> tuple[list[Any], list[Note]]:
    """Steps for a recipe that does what the transforms do with a Pillow image of RGB, and a note for each."""
    pipeline, notes = Pipeline(), []
    for at, transform in enumerate(transforms):
        name = type(transform).__name__
        try:
            if type(transform).__module__.partition(".")[0] != "torchvision":
                raise Unknown("it is not torchvision's own")
            add = _KNOWN.get(name)
            if add is None:
                raise Unknown("headrace has no such step")
            add(pipeline, transform)
        except (Unknown, OptionError, AttributeError, TypeError) as error:
            notes.append(Note(name, str(error) or "its parameters are not known"))
            rest = [as_call(later) for later in transforms[at:]]
            notes += [
                Note(type(later).__name__, "it follows one that is not known")
                for later in transforms[at + 1 :]
            ]
            return [*pipeline.written, deterministic(to_tensor if pipeline.tensor else to_pil), *rest], notes
        notes.append(Note(name))
    if not pipeline.tensor:
        return [*pipeline.written, deterministic(to_pil)], notes
    return pipeline.written, notes


def as_call(transform: Any) -> Call:
    """A transform as it is, called with what came before."""
    own = type(transform).__module__.partition(".")[0] == "torchvision"
    if own and type(transform).__name__ in DETERMINISTIC:
        return Call(transform, True, "plain")
    return Call(transform, False, "plain")


# -- what is known ------------------------------------------------------------------------------------------


def _size(size: Any) -> int | tuple[int, int]:
    """As torchvision keeps it: a number, or a list of one or two."""
    if isinstance(size, int):
        return size
    sides = tuple(int(side) for side in size)
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _pair(size: Any) -> tuple[int, int]:
    sides = _size(size)
    return (sides, sides) if isinstance(sides, int) else sides


def _filter(pipeline: Pipeline, transform: Any) -> dict[str, Any]:
    """How it resamples."""
    mode = getattr(transform.interpolation, "value", transform.interpolation)
    if mode == "nearest":
        return {"interpolation": "nearest"}
    if mode not in _FILTERS:
        raise Unknown(f"interpolation {mode}")
    if pipeline.tensor and getattr(transform, "antialias", True) is False:
        raise Unknown("antialias=False")
    return {"interpolation": _FILTERS[mode], "antialias": True}


def _plain_fill(fill: Any) -> int | tuple[int, ...]:
    """A fill for pixels; v2 keeps one for each type of input."""
    if isinstance(fill, dict):
        found = [value for kind, value in fill.items() if "others" in str(kind)] or list(fill.values())
        if len({str(value) for value in fill.values()}) > 1 or not found:
            raise Unknown("a fill for each type of input")
        fill = found[0]
    if fill is None:
        return 0
    values = (fill,) if isinstance(fill, int | float) else tuple(fill)
    if any(value != int(value) for value in values):
        raise Unknown(f"fill {fill}")
    whole = tuple(int(value) for value in values)
    return whole[0] if len(whole) == 1 else whole


def _resize(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    if transform.size is None:
        raise Unknown("size=None")
    options = _filter(pipeline, transform)
    pipeline.steps.append(image.resize(_size(transform.size), max_size=transform.max_size, **options))


def _resized_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    options = _filter(pipeline, transform)
    pipeline.steps.append(
        image.random_resized_crop(
            _pair(transform.size), scale=tuple(transform.scale), ratio=tuple(transform.ratio), **options
        )
    )


def _center_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    pipeline.steps.append(image.center_crop(_pair(transform.size)))


def _random_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    padding = transform.padding
    if padding is None:
        padding = 0
    elif not isinstance(padding, int):
        padding = tuple(int(side) for side in padding)
        padding = padding[0] if len(padding) == 1 else padding
    fill = _plain_fill(transform.fill)
    if pipeline.floats and fill != 0:
        raise Unknown(f"fill {fill} after a conversion to floats")
    pipeline.steps.append(
        image.random_crop(
            _pair(transform.size),
            padding=padding,
            padding_mode=str(getattr(transform.padding_mode, "value", transform.padding_mode)),
            fill=fill,
            pad_if_needed=bool(transform.pad_if_needed),
        )
    )


def _flip(make: Callable[[float], Op]) -> Callable[[Pipeline, Any], None]:
    def add(pipeline: Pipeline, transform: Any) -> None:
        if pipeline.erasing:
            raise Unknown("it follows an erasing")
        pipeline.steps.append(make(float(transform.p)))

    return add


def _color_jitter(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    names = ("brightness", "contrast", "saturation", "hue")
    bounds = {name: getattr(transform, name) for name in names}
    pipeline.steps.append(
        image.color_jitter(
            **{name: (float(pair[0]), float(pair[1])) for name, pair in bounds.items() if pair is not None}
        )
    )


def _grayscale(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    if transform.num_output_channels != 3:
        raise Unknown("one channel comes out")
    pipeline.steps.append(image.grayscale(1.0))


def _random_grayscale(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    pipeline.steps.append(image.grayscale(float(transform.p)))


def _gaussian_blur(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    kernel = _pair(transform.kernel_size)
    sigma = tuple(float(edge) for edge in transform.sigma)
    pipeline.steps.append(image.gaussian_blur((kernel[1], kernel[0]), sigma=(sigma[0], sigma[-1])))


def _way(transform: Any) -> dict[str, Any]:
    mode = getattr(transform.interpolation, "value", transform.interpolation)
    return {"interpolation": str(mode), "fill": _plain_fill(transform.fill)}


def _policies(pipeline: Pipeline) -> None:
    pipeline.pixels()
    if pipeline.tensor:
        raise Unknown("on tensors its operations are not Pillow's")


def _rand_augment(pipeline: Pipeline, transform: Any) -> None:
    _policies(pipeline)
    pipeline.steps.append(
        image.rand_augment(
            int(transform.num_ops),
            int(transform.magnitude),
            num_magnitude_bins=int(transform.num_magnitude_bins),
            **_way(transform),
        )
    )


def _trivial_augment(pipeline: Pipeline, transform: Any) -> None:
    _policies(pipeline)
    bins = int(transform.num_magnitude_bins)
    pipeline.steps.append(image.trivial_augment(num_magnitude_bins=bins, **_way(transform)))


def _auto_augment(pipeline: Pipeline, transform: Any) -> None:
    _policies(pipeline)
    policy = getattr(transform, "policies", None) or transform._policies
    pipeline.steps.append(image.auto_augment(policy, **_way(transform)))


def _to_tensor(pipeline: Pipeline, transform: Any) -> None:
    if pipeline.tensor:
        raise Unknown("it is a tensor already")
    pipeline.tensor, pipeline.floats = True, "float32"


def _to_image(pipeline: Pipeline, transform: Any) -> None:
    pipeline.tensor = True


def _to_dtype(pipeline: Pipeline, transform: Any) -> None:
    dtype, scales = str(transform.dtype), getattr(transform, "scale", True)
    if not pipeline.tensor:
        raise Unknown("it is given an image of Pillow's")
    if dtype == "torch.uint8" and not pipeline.floats:
        return
    if dtype not in _DTYPES or not scales or pipeline.mean is not None or pipeline.erasing:
        raise Unknown(f"to {transform.dtype} there" if scales else "scale=False")
    if pipeline.floats and pipeline.floats != _DTYPES[dtype]:
        raise Unknown(f"to {transform.dtype} from {pipeline.floats}")
    pipeline.floats = _DTYPES[dtype]


def _normalize(pipeline: Pipeline, transform: Any) -> None:
    if not pipeline.floats or pipeline.mean is not None or pipeline.erasing:
        raise Unknown("it is given no floats from 0 to 1")
    if pipeline.floats != "float32":
        raise Unknown(f"in {pipeline.floats}, which rounds in between")
    mean, std = ([float(value) for value in _listed(values)] for values in (transform.mean, transform.std))
    if len(mean) not in (1, 3) or len(std) not in (1, 3):
        raise Unknown(f"{len(mean)} means for three channels")
    pipeline.mean, pipeline.std = mean, std


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, int | float) else list(values)


def _erasing(pipeline: Pipeline, transform: Any) -> None:
    if not pipeline.floats:
        raise Unknown("it is given no floats")
    value = transform.value
    if value is None:
        value = "random"
    elif not isinstance(value, str | int | float):
        value = tuple(float(one) for one in value)
        value = value[0] if len(value) == 1 else value
    pipeline.erasing.append(
        image.random_erasing(
            float(transform.p), scale=tuple(transform.scale), ratio=tuple(transform.ratio), value=value
        )
    )


def _nothing(pipeline: Pipeline, transform: Any) -> None:
    pass


_KNOWN: dict[str, Callable[[Pipeline, Any], None]] = {
    "AutoAugment": _auto_augment,
    "CenterCrop": _center_crop,
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _to_dtype,
    "GaussianBlur": _gaussian_blur,
    "Grayscale": _grayscale,
    "Identity": _nothing,
    "Normalize": _normalize,
    "PILToTensor": _to_image,
    "RGB": _nothing,
    "RandAugment": _rand_augment,
    "RandomCrop": _random_crop,
    "RandomErasing": _erasing,
    "RandomGrayscale": _random_grayscale,
    "RandomHorizontalFlip": _flip(image.horizontal_flip),
    "RandomResizedCrop": _resized_crop,
    "RandomVerticalFlip": _flip(image.vertical_flip),
    "Resize": _resize,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToImageTensor": _to_image,
    "ToPureTensor": _nothing,
    "ToTensor": _to_tensor,
    "TrivialAugmentWide": _trivial_augment,
}
