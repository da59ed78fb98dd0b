"""A recipe turned into a program.

With ``caches_decoded``, rows go through the decoded form: decode and the leading deterministic steps are one
chain, the rest another, and a row is the same bit for bit whether its decoded form was cached or not. JPEG images
are decoded as small as all crops that the recipe may draw allow (``Recipe.floor``).
Without it, all steps are one chain, which may read JPEG images at a lower resolution where that suffices.

Seconds: decode and the leading steps count as DECODED, the rest as AUGMENTED. A kernel call that reads JPEG
bytes and augments in one is divided: what rows of arrays took in the last such call is AUGMENTED, all else
DECODED; before there was one, rows of bytes count as DECODED in full.
"""

from __future__ import annotations

from headrace.core.layout import Field
from headrace.recipes.calls import Call
from headrace.recipes.chain import Builder, Chain, State
from headrace.recipes.decoders import CallDecoder, Decoder, ImageDecoder, NoDecoder, SyntheticDecoder
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.stages import Paint
from headrace.recipes.op import Columns
from headrace.recipes.program import Program
from headrace.recipes.recipe import Recipe
from headrace.recipes.runner import RecipeProgram
from headrace.recipes.spin import SyntheticDecode
from headrace.recipes.targets import Targets


def compile_recipe(recipe: Recipe, *, caches_decoded: bool) -> Program:
    """The program of a recipe, for one thread. ``caches_decoded``: whether decoded forms may be cached."""
    steps = list(enumerate(recipe.steps))
    split = recipe.lead if caches_decoded else 0
    whole = caches_decoded and split == len(steps)
    decode = recipe.decoder
    state = State("any")
    image: Decode | None = None
    shape: tuple[int, ...] | None = None
    if isinstance(decode, Decode):
        state, image = State("image", decode.size), decode
    elif isinstance(decode, SyntheticDecode):
        shape = decode.shape if decode.shape is not None else getattr(recipe.source, "shape", None)
        state = State("any", known=None if shape is None else Field(shape, "uint8"))
    reduce = image is None or image.reduce
    lead = Builder(state, decode=image, dct_scaling=reduce).build(steps[:split], last=whole)
    rest = Chain([], lead.state, None)
    if not whole:
        # The decoded form is the image itself where nothing leads, and what is cut from it must be the same
        # whether it was read in full or in part.
        builder = Builder(lead.state, decode=image, dct_scaling=reduce and not caches_decoded)
        rest = builder.build(steps[split:], last=True)
    first = lead if lead.stages else rest
    decoder: Decoder
    if isinstance(decode, Decode):
        fresh = not (first.stages and (first.reads_jpeg or isinstance(first.stages[0], Paint)))
        floor = recipe.floor if caches_decoded else None
        decoder = ImageDecoder(decode, lazy=first.reads_jpeg, fresh=fresh, floor=floor)
    elif isinstance(decode, SyntheticDecode):
        decoder = SyntheticDecoder(decode, shape)
    elif isinstance(decode, Call):
        decoder = CallDecoder(decode)
    else:
        decoder = NoDecoder()
    targets = Targets(recipe.source.targets, recipe.target_transform)
    return RecipeProgram(
        decoder,
        lead,
        rest,
        targets,
        Columns(recipe.steps),
        whole=whole,
        caches=caches_decoded,
        raw=recipe.collate is not None,
    )
