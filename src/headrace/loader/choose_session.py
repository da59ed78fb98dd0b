"""Which session prepares a loader's batches: it follows from the dataset, the workers and whether it shares."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

from headrace.loader.dataset_sessions import AssignedSession, ObjectSession
from headrace.loader.inline_sessions import InlineIterableSession, InlineSession
from headrace.loader.learning import first_here
from headrace.loader.objects import ObjectTask
from headrace.loader.pinning import wants_pinning
from headrace.loader.recipe_dataset import RecipeDataset
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import Session
from headrace.loader.sharing import Sharing
from headrace.loader.state import LoaderState
from headrace.recipes.image import kernels
from headrace.recipes.image.ops import Decode
from headrace.recipes.recipe import Recipe

if TYPE_CHECKING:
    from headrace.loader.dataloader import DataLoader


def choose_session(loader: DataLoader[Any], seed: int, resume: LoaderState | None) -> Session:
    """A new session of ``loader``; an iterable dataset's goes on from ``resume``."""
    pin = wants_pinning(loader.pin_memory, loader.pin_memory_device)
    common: dict[str, Any] = {
        "in_order": loader._in_order,
        "context": loader.multiprocessing_context or multiprocessing.get_context(),
        "book": loader._book,
        "pin": pin,
    }
    if loader._recipe is not None:
        return _recipe_session(loader, loader._recipe, seed, common)
    if loader.num_workers == 0:
        return _inline_session(loader, resume, pin)
    every = loader.snapshot_every_n_steps
    task = ObjectTask(
        dataset=loader.dataset,
        collate_fn=loader.collate_fn,
        auto_collation=loader._auto_collation,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        on_error=loader._options.on_error,
        num_workers=loader.num_workers,
        base_seed=seed,
        worker_init_fn=loader.worker_init_fn,
        persistent=loader._keeps,
        resume=resume.workers if resume is not None else None,
        snapshot_every=every and max(1, every // loader.num_workers),
    )
    common["ahead"] = None if loader._prefetch is None else loader.num_workers * loader._prefetch
    if task.assigned:
        return AssignedSession(task, last=resume.last if resume is not None else -1, **common)
    return ObjectSession(task, **common)


def _recipe_session(
    loader: DataLoader[Any], recipe: Recipe, seed: int, common: dict[str, Any]
) -> RecipeSession:
    options, workers, prefetch = loader._options, loader.num_workers, loader._prefetch
    first = first_here(options.rank)
    if first and isinstance(recipe.decoder, Decode):
        kernels.say_slow_path()  # here and not in the kernels, which every worker has
    batch_size = loader._batch_size
    sharing = None
    if options.share:
        sharing = Sharing(
            recipe,
            options,
            batch_size=batch_size,
            drop_last=loader._drops_last,
            explicit=not loader._ordering.drawn_by_host,
        )
    return RecipeSession(
        recipe,
        batch_size=batch_size if loader._auto_collation else None,
        budgets=options.budgets,
        plans=options.plans,
        num_workers=workers,
        own_number=loader._own_number,
        ahead=None if prefetch is None else max(1, workers * prefetch),
        collator=loader._collator,
        dataset=None if isinstance(loader.dataset, RecipeDataset) else loader.dataset,
        worker_init_fn=loader.worker_init_fn,
        base_seed=seed,
        sharing=sharing,
        learns=first,
        **common,
    )


def _inline_session(loader: DataLoader[Any], resume: LoaderState | None, pin: bool) -> InlineSession:
    common: dict[str, Any] = {"auto_collation": loader._auto_collation, "book": loader._book, "pin": pin}
    if not loader._iterable:
        return InlineSession(loader.dataset, loader.collate_fn, **common)
    return InlineIterableSession(
        loader.dataset,
        loader.collate_fn,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        resume=resume.workers[0] if resume is not None and resume.workers else None,
        **common,
    )
