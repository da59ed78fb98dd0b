"""Which session prepares a loader's batches: it follows from the dataset, the workers and whether it shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headrace.cluster.joining import Joined, join
from headrace.loader.dataset_sessions import AssignedSession, ObjectSession
from headrace.loader.device import IN_FLIGHT, DeviceFeed, find_device
from headrace.loader.device_cache import cache_bytes
from headrace.loader.device_decoders import find_decoder
from headrace.loader.device_memory import device_memory
from headrace.loader.finishing import Finisher, divide
from headrace.loader.inline_sessions import InlineIterableSession, InlineSession
from headrace.loader.learning import first_here
from headrace.loader.left_rows import Leaves
from headrace.loader.objects import ObjectTask
from headrace.loader.pinning import wants_pinning
from headrace.loader.placing import find_rail
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import ErrorBook, Hosted, Session
from headrace.loader.sharing import Sharing
from headrace.loader.spec import LoaderSpec
from headrace.loader.state import LoaderState
from headrace.recipes.image import kernels
from headrace.recipes.image.ops import Decode

Expect = Callable[[Joined], None]


def choose_session(
    spec: LoaderSpec, book: ErrorBook, seed: int, resume: LoaderState | None, expect: Expect | None = None
) -> Session:
    """A new session of a loader; an iterable dataset's goes on from ``resume``. ``expect``: tells a cluster what
    it is about to be asked for; it reads while workers start."""
    device = find_device(spec.options.device)
    pins = device is None and wants_pinning(spec.work.pin_memory, spec.work.pin_memory_device)
    session: Any = _choose(spec, book, seed, resume, pins, device, expect)
    if device is not None:
        session.feed = DeviceFeed(device, chosen=":" in (spec.options.device or ""))
        if isinstance(session, Hosted):
            session.host.slots.beside = IN_FLIGHT
    chosen: Session = session
    return chosen


def _choose(
    spec: LoaderSpec,
    book: ErrorBook,
    seed: int,
    resume: LoaderState | None,
    pins: bool,
    device: torch.device | None,
    expect: Expect | None,
) -> Any:
    if spec.data.recipe is not None:
        return _recipe_session(spec, book, seed, pins, device, expect)
    if spec.work.workers == 0:
        if not spec.data.iterable:
            return InlineSession(spec, book, pins=pins)
        mark = resume.workers[0] if resume is not None and resume.workers else None
        return InlineIterableSession(spec, book, pins=pins, resume=mark)
    task = _object_task(spec, seed, resume)
    if not task.assigned:
        return ObjectSession(spec, task, book, pins=pins)
    return AssignedSession(spec, task, book, pins=pins, last=resume.last if resume is not None else -1)


def _object_task(spec: LoaderSpec, seed: int, resume: LoaderState | None) -> ObjectTask:
    every = spec.order.snapshot_every
    return ObjectTask(
        dataset=spec.data.dataset,
        collate_fn=spec.data.collate_fn,
        auto_collation=spec.batches.batched,
        batch_size=spec.batches.size,
        drop_last=spec.batches.drop_last,
        on_error=spec.options.on_error,
        num_workers=spec.work.workers,
        base_seed=seed,
        worker_init_fn=spec.work.init,
        persistent=spec.work.keeps,
        resume=resume.workers if resume is not None else None,
        snapshot_every=every and max(1, every // spec.work.workers),
    )


def _recipe_session(
    spec: LoaderSpec,
    book: ErrorBook,
    seed: int,
    pins: bool,
    device: torch.device | None,
    expect: Expect | None,
) -> RecipeSession:
    recipe, options = spec.data.recipe, spec.options
    assert recipe is not None
    finisher = leaves = None
    if device is not None and spec.data.collator is None:
        recipe, tail = divide(recipe)
        finisher = None if tail is None else Finisher(tail, device)
    first = first_here(options.rank)
    if first and isinstance(recipe.decoder, Decode):
        kernels.say_slow_path()  # here and not in the kernels, which every worker has
    pool = None
    if options.cluster is not False:
        pool = join(recipe.source, must=options.cluster is True, find_rail=find_rail, says=first)
        if pool is not None and expect is not None:
            expect(pool)
    sharing = None
    if options.share:
        sharing = Sharing(
            recipe,
            options,
            batch_size=spec.batches.size,
            drop_last=spec.batches.drop_last,
            explicit=not spec.drawn_by_host,
            near=pool is not None,
        )
    if device is not None and (options.gpu_decode or options.gpu_cache):
        leaves = Leaves(
            device,
            find_decoder(device),
            options.gpu_decode,
            cache_bytes(options.gpu_cache, device, shared=sharing is not None),
            sharing.device_pool(device, device_memory) if sharing is not None else None,
        )
    return RecipeSession(
        spec,
        recipe,
        book,
        seed=seed,
        pins=pins,
        sharing=sharing,
        pool=pool,
        learns=first,
        finisher=finisher,
        leaves=leaves,
    )
