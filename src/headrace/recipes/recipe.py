"""The definition of how a sample goes from form to form."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.core.layout import BFLOAT16, RowLayout
from headrace.recipes.calls import Call, as_op
from headrace.recipes.checks import check_batch, check_followers, gives_texts
from headrace.recipes.collating import collated
from headrace.recipes.fields import Fields
from headrace.recipes.fingerprint import digest
from headrace.recipes.image.annotations import Boxes, Follower, Mask
from headrace.recipes.image.geometry import Geometry
from headrace.recipes.image.mixing import BatchStep
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.reduction import Floor, floor_of
from headrace.recipes.image.rows import Layout, Normalise, RandomErasing
from headrace.recipes.op import UNKNOWN, Op, Size
from headrace.recipes.program import body_fields
from headrace.recipes.ragged import listed_images, stacked_images
from headrace.recipes.subset import SubsetSource
from headrace.recipes.synthetic_decode import SyntheticDecode
from headrace.recipes.views import Views, branches_of, every_step
from headrace.sampling.uniform import epoch_order

if TYPE_CHECKING:
    from headrace.sources.source import Source

_VERSION = 1
"""Part of every fingerprint: raised when equal definitions begin to give different results."""

Step = Op | Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a sample goes from its source to a row of a batch: read, decode, augment, collate.

    - ``source``: where the samples lie, such as ``folder("/data/train")``.
    - ``decode``: turns a sample's bytes into a value: ``image.decode()``, any callable, or None for the bytes
      themselves. It is taken to be deterministic.
    - ``augment``: steps that follow each other: ``image`` steps and any callables. A callable counts as random
      unless it is wrapped in ``deterministic()``. The last may be ``views()``, for several views of each sample.
    - ``collate``: makes a batch of a list of samples; by default their arrays are stacked.
    - ``target_transform``: a callable on the targets.
    - ``follow``: what of the target goes with the geometry of its image: ``image.mask``, ``image.boxes``, or a list.
    - ``batch``: a step on whole batches: ``image.mixup``, ``image.cutmix``, ``image.one_of``.

    A sample is ``(value, target)`` where the source has targets, else the value alone.
    """

    source: Source
    decode: Step | None = None
    augment: Sequence[Step] | Views = ()
    collate: Callable[[list[Any]], Any] | None = None
    target_transform: Callable[[Any], Any] | None = None
    batch: BatchStep | None = None
    follow: Follower | Sequence[Follower] | None = None
    steps: tuple[Op, ...] = field(init=False, repr=False)
    """``augment``, with every callable wrapped."""
    decoder: Op | None = field(init=False, repr=False)
    """``decode``, wrapped if it is a callable."""

    def __post_init__(self) -> None:
        missing = [name for name in ("read_many", "fingerprint", "__len__") if not hasattr(self.source, name)]
        if missing:
            raise OptionError(
                f"Recipe(source={self.source!r}) is no source (it has no {missing[0]}); "
                "use folder(...), files(...), or an object with the methods of headrace.sources.Source"
            )
        augment = (self.augment,) if isinstance(self.augment, Views) else self.augment
        if isinstance(augment, Op) or not isinstance(augment, Sequence):
            raise OptionError(
                f"Recipe(augment={self.augment!r}): expected a list of steps; write augment=[...]"
            )
        decoder = None if self.decode is None else as_op(self.decode, "decode=")
        steps = tuple(as_op(step, f"augment[{at}]") for at, step in enumerate(augment))
        for option in ("collate", "target_transform"):
            value = getattr(self, option)
            if value is not None and not callable(value):
                raise OptionError(f"Recipe({option}={value!r}) is not callable")
        common, branches = branches_of(steps)
        for branch in branches:
            _check_order(decoder, (*common, *branch))
        object.__setattr__(self, "augment", tuple(augment))
        object.__setattr__(self, "decoder", decoder)
        object.__setattr__(self, "steps", steps)
        if self.followers:
            check_followers(self)
        if self.ragged and self.collate is None:
            object.__setattr__(self, "collate", stacked_images if self.size.fixed else listed_images)
        elif self.collate is None and (isinstance(decoder, Fields) or gives_texts(self)):
            object.__setattr__(self, "collate", collated)
        brief = [s for s in every_step(steps) if isinstance(s, Normalise) and s.dtype == BFLOAT16]
        if self.collate is not None and brief:
            raise OptionError(
                "numpy has no bfloat16, so collate= cannot get it; use float32 and cast in collate"
            )
        if self.batch is not None:
            check_batch(self, self.batch)

    def __len__(self) -> int:
        """Samples of the source."""
        return len(self.source)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(
            "a recipe says how samples are made and makes none by itself: use headrace.DataLoader(recipe, ...), and "
            "loader.dataset[i] to look at one sample; for some of the samples write recipe.subset(indices)"
        )

    def subset(self, indices: Sequence[int] | NDArray[Any]) -> Recipe:
        """The same for some of the samples, in the order of ``indices``.

        Samples keep their identities: recipes over parts of one source that share (``share=True``) have one cache.
        """
        return replace(self, source=SubsetSource(self.source, indices))

    def split(self, *parts: float, seed: int | None = 0) -> tuple[Recipe, ...]:
        """Recipes of parts of the samples, each sample in one of them.

        ``parts`` are shares of the whole (``0.9``) or numbers of samples (``1000``); what they leave is one more
        part. So ``train, val = recipe.split(0.9)``. Samples are chosen at random by ``seed``; None takes them in
        order. A part's samples stay in the source's order.
        """
        size = len(self)
        counts = [_count(part, size) for part in parts]
        shares = all(isinstance(part, float) for part in parts)
        if shares and parts and abs(sum(parts) - 1) < 1e-9:
            counts[-1] = size - sum(counts[:-1])
        elif shares or sum(counts) < size:
            counts.append(size - sum(counts))
        if not parts or min(counts) <= 0 or sum(counts) != size:
            raise OptionError(
                f"split({', '.join(map(repr, parts))}) of {size} samples: no part may be empty, and together they "
                "may not be more than there are"
            )
        order = epoch_order(size, seed or 0, 0, shuffle=seed is not None)
        ends = np.cumsum(counts)
        return tuple(
            self.subset(np.sort(order[end - count : end])) for count, end in zip(counts, ends, strict=True)
        )

    def to_dict(self, *, source: bool = True) -> dict[str, Any]:
        """The recipe as plain data, which ``json`` can write; ``from_dict`` makes an equal one of it.

        Code of your own is written by its import path, so it has to have one. ``source=False`` leaves the source out,
        for one that is more than its arguments.
        """
        from headrace.recipes.plain import to_plain

        return to_plain(self, source=source)

    @classmethod
    def from_dict(
        cls,
        data: dict[str, Any],
        *,
        source: Source | None = None,
        trust_code: bool | Collection[str] = False,
    ) -> Recipe:
        """The recipe that ``to_dict`` was called on: equal fingerprints, equal samples.

        ``source``: in the place of the one that is written. ``trust_code``: code that the recipe names is imported,
        which runs it; without it, such a recipe is refused. A list has the modules and packages of which it may be.
        """
        from headrace.recipes.plain import from_plain

        return cls(**from_plain(data, source=source, trust_code=trust_code))

    @cached_property
    def lead(self) -> int:
        """How many leading steps belong to the decoded form: the deterministic ones.

        Normalising and laying out are cheap and make a row up to four times larger, so they do not: the cache
        holds the bytes before them.
        """
        if self.followers:  # boxes are in pixels of the image as it was decoded, so its size has to be known
            return 0
        for at, step in enumerate(self.steps):
            if step.random or isinstance(step, Normalise | Layout):
                return at
        return len(self.steps)

    @cached_property
    def floor(self) -> Floor | None:
        """How small JPEG images may become as they are decoded for the cache; None: they keep their size.

        It belongs to the decoded form, and nothing else of the steps that crop does: recipes of equal floors share.
        """
        if not isinstance(self.decoder, Decode) or not self.decoder.reduce or self.lead:
            return None
        if self.followers:  # boxes and masks are in pixels of the whole
            return None
        return floor_of(self.steps)

    @property
    def followers(self) -> tuple[Follower, ...]:
        """The parts of the target that follow the geometry of their images."""
        return (self.follow,) if isinstance(self.follow, Follower) else tuple(self.follow or ())

    @property
    def ragged(self) -> bool:
        """Whether targets differ in size from sample to sample, so that batches have a list of them: ``collate``
        makes those."""
        return any(isinstance(follower, Boxes) for follower in self.followers)

    def mask_path(self, index: int) -> Any:
        """The file that holds a sample's mask, where its target says so; None: there is none, or user code knows."""
        masks = [follower for follower in self.followers if isinstance(follower, Mask)]
        if len(masks) != 1 or self.target_transform is not None or self.source.targets is None:
            return None
        target: Any = self.source.targets[index]
        if masks[0].key:
            target = target.get(masks[0].key) if isinstance(target, Mapping) else None
        return target if isinstance(target, str | bytes | os.PathLike) else None

    @property
    def size(self) -> Size:
        """Height, width and channels of images as they come out, as far as these are known before any is read."""
        size = self.decoder.size if isinstance(self.decoder, Decode) else UNKNOWN
        for step in self.steps:
            size = step.shape(size) if isinstance(step, Geometry | Pixels) else size
        return size

    @cached_property
    def every_step(self) -> tuple[Op, ...]:
        """All steps one after the other, those of each view where there are several."""
        return every_step(self.steps)

    @property
    def gives_images(self) -> bool:
        """Whether samples are images as headrace writes them, and not what user code made of them."""
        last = self.steps[-1] if self.steps else self.decoder
        return not isinstance(last, Call | Fields | SyntheticDecode | None)

    @property
    def by_pixel(self) -> bool:
        """Of samples that are images: whether they lie in memory pixel by pixel, and not plane by plane."""
        return not any([step.planar for step in self.steps if isinstance(step, Layout)][-1:])

    @property
    def encoded(self) -> bool:
        """Whether samples have an encoded form; without one, decode reads the files for itself."""
        return getattr(self.source, "encoded", True)

    @property
    def user_randomness(self) -> bool:
        """Whether user code may draw from the global generators, which all threads of a process share."""
        return any(isinstance(step, Call) and step.random for step in self.every_step)

    @property
    def user_code(self) -> bool:
        """Whether a worker runs Python code of the user's, which holds the GIL and uses global generators."""
        ops = (self.decoder, *self.every_step)
        return self.target_transform is not None or any(isinstance(op, Call | Fields) for op in ops)

    def fingerprint(self, form: Form) -> str:
        """A digest of all that a form depends on: jobs share a form exactly when these are equal."""
        if form not in self._fingerprints:
            raise OptionError(f"samples have no {form!r} to take a fingerprint of")
        return self._fingerprints[form]

    @cached_property
    def _fingerprints(self) -> dict[Form, str]:
        return self._digests(self.source.fingerprint())

    @cached_property
    def profile_key(self) -> str:
        """As the fingerprint of the augmented form, but files count by their names alone: what was measured of a
        recipe holds when some of its files change. (And to look at a million files takes seconds.)"""
        listing = getattr(self.source, "listing", self.source.fingerprint)
        return self._digests(listing())[Form.AUGMENTED]

    def _digests(self, source: str) -> dict[Form, str]:
        encoded = digest("encoded", _VERSION, source, self.encoded)
        decoder = None if self.decoder is None else self.decoder.plain()
        lead = [step.plain() for step in self.steps[: self.lead]]
        decoded = digest("decoded", encoded, decoder, lead, self._plain_floor)
        rest = [step.plain() for step in self.steps[self.lead :]]
        augmented = digest("augmented", decoded, rest, *self._of_targets)
        return {Form.ENCODED: encoded, Form.DECODED: decoded, Form.AUGMENTED: augmented}

    def share_key(self, form: Form, layout: RowLayout | None = None) -> str:
        """Jobs share a sample's form exactly when the sample's identity and this key are equal.

        As the fingerprint, without the source: its samples are known by their identities. Targets are no part
        of the augmented form either; each job writes its own. ``layout``: how rows lie. It belongs to the
        augmented form, which is stored as bare bytes of a row, and may have been learned from a first sample.

        Raises ``OptionError`` for a step whose definition cannot be told from another's.
        """
        if form == Form.AUGMENTED:
            key = self._augmented_key
        elif form == Form.DECODED:
            key = self._decoded_key
        elif form == Form.ENCODED:
            key = self._encoded_key
        else:
            raise OptionError(f"samples have no {form!r} to share")
        if form != Form.AUGMENTED or layout is None:
            return key
        targets = self.source.targets is not None
        fields = layout.fields[: body_fields(layout, targets=targets)]
        shapes = [(field.shape, field.dtype, field.channels_last) for field in fields]
        return digest("rows", key, shapes, layout.tree.children[0] if targets else layout.tree)

    @property
    def _plain_floor(self) -> list[int] | None:
        return None if self.floor is None else [self.floor.pixels, self.floor.height, self.floor.width]

    @cached_property
    def _of_targets(self) -> list[Any]:
        """What makes targets. They are read whole, however many they are: they are the source's, and always in
        memory."""
        followers = [[follower.plain() for follower in self.followers]] if self.followers else []
        return [digest(self.source.targets, limit=math.inf), self.target_transform, *followers]

    @cached_property
    def rows_key(self) -> str:
        """As the key by which the augmented form is shared, with the targets and what is done with them: where these
        are equal, so are whole rows of samples with equal identities."""
        return digest("rows with targets", self._augmented_key, *self._of_targets)

    # Each by itself: what is wrong with a later step does not keep earlier forms from being shared.

    @cached_property
    def _encoded_key(self) -> str:
        return digest("shared encoded", _VERSION, self.encoded)

    @cached_property
    def _decoded_key(self) -> str:
        decoder = None if self.decoder is None else self.decoder.plain()
        # What else of the source goes into a decoded form: synthetic samples take their shape from it.
        shape = getattr(self.source, "shape", None) if isinstance(self.decoder, SyntheticDecode) else None
        lead = [step.plain() for step in self.steps[: self.lead]]
        return digest("shared decoded", self._encoded_key, decoder, shape, lead, self._plain_floor)

    @cached_property
    def _augmented_key(self) -> str:
        rest = [step.plain() for step in self.steps[self.lead :]]
        return digest("shared augmented", self._decoded_key, rest)


def _count(part: float, size: int) -> int:
    """A part's number of samples, given as that or as a share."""
    if isinstance(part, bool) or not isinstance(part, int | float) or part <= 0:
        raise OptionError(f"split({part!r}): write shares such as 0.9, or numbers of samples")
    if isinstance(part, float):
        if part > 1:
            raise OptionError(f"split({part!r}): a share lies below 1, a number of samples is an int")
        return round(part * size)
    return part


def _check_order(decoder: Op | None, steps: Sequence[Op]) -> None:
    """Refuse steps in an order that cannot work, so that nobody finds out in the middle of an epoch."""
    if not isinstance(decoder, Call | Decode | Fields | SyntheticDecode | None):
        raise OptionError(
            f"decode={decoder}: this is a step of augment=; decode takes image.decode() or a callable"
        )
    value: Op | None = decoder
    written: Normalise | Layout | None = None
    dtype = ""
    for at, step in enumerate(steps):
        if isinstance(step, Call):
            if dtype == BFLOAT16:
                raise OptionError(
                    f"augment[{at}], {step}: user code cannot get bfloat16; put it before normalise"
                )
            value, written, dtype = step, None, ""
            continue
        if isinstance(step, Views):
            raise OptionError(
                f"augment[{at}], {step}: must be the last step, and can have no views of its own"
            )
        if isinstance(step, BatchStep):
            raise OptionError(f"augment[{at}], {step}: works on whole batches; write batch=...")
        if isinstance(step, Decode) or not isinstance(
            step, Geometry | Pixels | Normalise | Layout | RandomErasing
        ):
            raise OptionError(f"augment[{at}], {step}: this belongs into decode=")
        if isinstance(value, Fields):
            raise OptionError(
                f"augment[{at}], {step}: needs an image, and fields() gives a dict; write it behind image.decode() "
                "in fields(), or in a function of your own"
            )
        if value is None:
            raise OptionError(f"augment[{at}], {step}: needs an image; pass decode=image.decode()")
        if written is not None and isinstance(step, Geometry | Pixels | Normalise):
            raise OptionError(f"augment[{at}], {step}: works on uint8 pixels; put it before {written}")
        if isinstance(step, Normalise | Layout):
            written = step
            dtype = step.dtype if isinstance(step, Normalise) else dtype
