"""The situation of a loader, as advice is given on it: its sums, its recipe, its cache, its machine."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from headrace.coordinate.directory import Directory
from headrace.core.forms import CACHEABLE, Form
from headrace.host.inline import InlineHost
from headrace.loader.dataset_sessions import ObjectSession
from headrace.loader.device_decoders import can_decode
from headrace.loader.recipe_collate import RecipeCollator
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import Session
from headrace.loader.spec import LoaderSpec
from headrace.measure import Profile
from headrace.planning import Means, Measured, Situation
from headrace.recipes.calls import Call
from headrace.recipes.image import kernels
from headrace.recipes.image.ops import Decode
from headrace.recipes.recipe import Recipe

Entered = tuple[float, float, float, float]


def describe(
    spec: LoaderSpec,
    session: Session,
    recent: Measured,
    total: Measured,
    entered: Entered,
    *,
    memory: float,
    cpus: int,
    profile: Profile | None,
) -> Situation:
    """The situation. ``memory``: bytes that are available. ``cpus``: this rank's part of them."""
    workers = spec.work.workers
    if not isinstance(session, RecipeSession):
        if isinstance(session, ObjectSession):
            workers = session.processes
        means = Means(cpus, max(1, workers), max(1, workers))
        return Situation(
            kind="dataset", recent=recent, total=total, means=means, inline=not workers, own_workers=workers
        )
    host, recipe, staff = session.host, session.recipe, session.workers
    directory = host.coordinator.directory
    shared = session.sharing is not None
    inline = isinstance(host, InlineHost)
    # In a job's own process there is one thread for everything.
    hands, fetchers = (1, 1) if inline else (staff.processes * staff.threads, staff.processes)
    image = isinstance(recipe.decoder, Decode)
    user_code = recipe.user_code or session.collator is not None
    known: dict[str, Any] = {}
    decoded = 0.0
    if isinstance(directory, Directory):
        budget = sum(directory.budgets.values())
        cached = sum(directory.bytes.values())
        decoded = directory.mean(Form.DECODED)
        known = {
            "cache": budget,
            "cached": cached,
            "memory": memory + cached,
            "encoded": directory.mean(Form.ENCODED),
        }
        if budget:
            known["split"] = tuple(directory.budgets[form] / budget for form in CACHEABLE)
    elif shared:
        known = {"cache": spec.options.cache_bytes}
    # Where a cache keeps decoded samples, these are decoded on their own, and so measured on their own.
    apart = not image or (session.caches_decoded and (directory.samples[Form.DECODED] > 0 or entered[2] > 0))
    if (
        not decoded
        and profile is not None
        and profile.sizes is not None
        and profile.sizes.decoded is not None
    ):
        decoded = profile.sizes.decoded.mean
    layout = session.layout
    if not decoded and isinstance(recipe.decoder, Decode) and not recipe.lead and total.decoded:
        pixels = total.pixels / total.decoded
        decoded = (recipe.decoder.size.channels or 3) * pixels
        if recipe.floor is not None:  # a cache would keep them smaller; those of the mean size stand for all
            decoded /= int(recipe.floor.scales(math.sqrt(pixels), math.sqrt(pixels))) ** 2
    if layout is not None:
        known["augmented"] = layout.nbytes(1)
        if image and not recipe.lead and not recipe.user_code and len(layout.fields[0].shape) == 3:
            known["needed_pixels"] = math.prod(sorted(layout.fields[0].shape)[1:])
    if profile is not None and profile.cpu is not None and profile.cpu.augment is not None:
        known["augment_part"] = profile.cpu.augment.cpu / profile.cpu.uncached.cpu
        known["full_part"] = profile.cpu.prepare.cpu / profile.cpu.uncached.cpu
    return Situation(
        kind="recipe",
        recent=recent,
        total=total,
        means=Means(cpus, hands, fetchers),
        inline=inline,
        own_workers=workers if spec.work.own_number else None,
        held=1.0 if recipe.user_randomness else host.totals.gil_held if user_code else None,
        user_in=_user_in(recipe, session.collator),
        user_steps=_user_steps(recipe, session.collator),
        samples=len(recipe.source),
        decoded=decoded,
        shared=shared,
        entered=entered,
        tells_apart=apart,
        slow_kernels=kernels.slow_path() if image else "",
        gpu_could_decode=session.could_leave and session.feed is not None and can_decode(),
        gpu_memory=_gpu_memory(session),
        **known,
    )


def _gpu_memory(session: RecipeSession) -> float:
    """Bytes of a GPU's memory that images could take that are not held there yet."""
    if not session.could_hold or session.feed is None or not can_decode():
        return 0.0
    device = session.feed.device
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0.0


def _user_in(recipe: Recipe, collator: RecipeCollator | None) -> Literal["", "decode", "augment", "both"]:
    ops = (recipe.decoder, *recipe.every_step)
    before = any(isinstance(op, Call) for op in ops[: recipe.lead + 1])
    after = any(isinstance(op, Call) for op in ops[recipe.lead + 1 :]) or collator is not None
    if before and after:
        return "both"
    return "decode" if before else "augment" if after else ""


def _user_steps(recipe: Recipe, collator: RecipeCollator | None) -> tuple[str, ...]:
    names = [str(op) for op in (recipe.decoder, *recipe.every_step) if isinstance(op, Call)]
    if collator is not None:
        names.append(collator.name)
    return tuple(names[:8])
