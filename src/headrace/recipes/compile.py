"""A recipe turned into a program.

With ``caches_decoded``, rows go through the decoded form: decode and the leading deterministic steps are one
chain, the rest another, and a row is the same bit for bit whether its decoded form was cached or not. JPEG images
are decoded as small as all crops that the recipe may draw allow (``Recipe.floor``).
Without it, all steps are one chain, which may read JPEG images at a lower resolution where that suffices.
Where a sample has several views, what they have in common is one more chain, and each of them has its own.

Seconds: decode and the leading steps count as DECODED, the rest as AUGMENTED. A kernel call that reads JPEG
bytes and augments in one is divided: what rows of arrays took in the last such call is AUGMENTED, all else
DECODED; before there was one, rows of bytes count as DECODED in full.
"""

from __future__ import annotations

from typing import Any

from headrace.core.layout import Field
from headrace.recipes.calls import Call
from headrace.recipes.chain import Builder, Chain, State
from headrace.recipes.decoded import DecodedForm
from headrace.recipes.decoders import CallDecoder, Decoder, ImageDecoder, NoDecoder, SyntheticDecoder
from headrace.recipes.fields import Fields, FieldsDecoder
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.resample import Resample
from headrace.recipes.image.stages import Paint
from headrace.recipes.op import Columns
from headrace.recipes.program import Program
from headrace.recipes.recipe import Recipe
from headrace.recipes.runner import RecipeProgram
from headrace.recipes.synthetic_decode import SyntheticDecode
from headrace.recipes.targets import FollowingTargets, Targets
from headrace.recipes.views import Views, branches_of


def decoded_form(recipe: Recipe) -> DecodedForm:
    """What is known of the decoded samples of a recipe where these are cached."""
    state, image, _ = _begin(recipe)
    return DecodedForm(_lead(recipe, state, image, recipe.lead, last=_rows_are_decoded(recipe)).state)


def _rows_are_decoded(recipe: Recipe) -> bool:
    # (targets that follow their images need to know what all of them went through)
    return recipe.lead == len(recipe.steps) and not recipe.followers


def _begin(recipe: Recipe) -> tuple[State, Decode | None, tuple[int, ...] | None]:
    """What is known of samples as the decoder gives them; the decoder, if it is one of images; the shape of those
    that are synthetic."""
    decode = recipe.decoder
    if isinstance(decode, Decode):
        return State("image", decode.size), decode, None
    if isinstance(decode, SyntheticDecode):
        shape = decode.shape if decode.shape is not None else getattr(recipe.source, "shape", None)
        return State("any", known=None if shape is None else Field(shape, "uint8")), None, shape
    return State("any"), None, None


def _lead(recipe: Recipe, state: State, image: Decode | None, split: int, *, last: bool) -> Chain:
    """The first so many steps."""
    builder = Builder(state, decode=image, dct_scaling=image is None or image.reduce)
    return builder.build([*enumerate(recipe.steps)][:split], last=last)


def compile_recipe(recipe: Recipe, *, caches_decoded: bool) -> Program:
    """The program of a recipe, for one thread. ``caches_decoded``: whether decoded forms may be cached."""
    common, branches = branches_of(recipe.steps)
    steps = list(enumerate(recipe.steps))
    split = recipe.lead if caches_decoded else 0
    rows_are_decoded = caches_decoded and _rows_are_decoded(recipe)
    decode = recipe.decoder
    state, image, shape = _begin(recipe)
    reduce = image is None or image.reduce
    lead = _lead(recipe, state, image, split, last=rows_are_decoded)
    trunk = Chain([], lead.state, None)
    outlets = [trunk]
    if not rows_are_decoded:
        # The decoded form is the image itself where nothing leads, and what is cut from it must be the same
        # whether it was read in full or in part.
        options: dict[str, Any] = {"decode": image, "dct_scaling": reduce and not caches_decoded}
        if len(common) > split:
            trunk = Builder(lead.state, **options).build(steps[split : len(common)], last=False)
        outlets, at = [], len(common)
        for branch in branches:
            follow = [*enumerate(branch, at)][max(split - at, 0) :]
            outlets.append(Builder(trunk.state, **options).build(follow, last=True))
            at += len(branch)
    # Views of a sample are cut from one image, which is decoded once and in full.
    firsts = next(([chain] for chain in (lead, trunk) if chain.stages), outlets)
    decoder: Decoder
    if isinstance(decode, Decode):
        fresh = not all(chain.stages and isinstance(chain.stages[0], Resample | Paint) for chain in firsts)
        lazy = len(firsts) == 1 and firsts[0].reads_jpeg
        floor = recipe.floor if caches_decoded else None
        decoder = ImageDecoder(decode, lazy=lazy, fresh=fresh, floor=floor)
    elif isinstance(decode, SyntheticDecode):
        decoder = SyntheticDecoder(decode, shape)
    elif isinstance(decode, Call):
        decoder = CallDecoder(decode)
    elif isinstance(decode, Fields):
        decoder = FieldsDecoder(decode)
    else:
        decoder = NoDecoder()
    targets = Targets(recipe.source.targets, recipe.target_transform)
    if recipe.followers:
        given = recipe.source.targets, recipe.target_transform
        targets = FollowingTargets(*given, recipe.followers, recipe.size)
    return RecipeProgram(
        decoder,
        lead,
        trunk,
        outlets,
        targets,
        Columns(recipe.every_step),
        forked=isinstance(recipe.steps[-1], Views) if recipe.steps else False,
        rows_are_decoded=rows_are_decoded,
        caches=caches_decoded,
        raw=recipe.collate is not None,
    )
