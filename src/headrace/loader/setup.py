"""Setting up a loader: from its arguments, and what the parts that it is made of carry, to torch's and the spec."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch.utils import data as torch_data

from headrace.core.errors import OptionError
from headrace.loader.mixing import check_batch_steps
from headrace.loader.native import Native, look_for
from headrace.loader.options import Chosen, count_workers, read_options, read_snapshots, wants_sharing
from headrace.loader.own_order import (
    Carried,
    OwnOrder,
    OwnRandomSampler,
    OwnSequentialSampler,
    carried_by,
    own_batches,
    skipped,
)
from headrace.loader.rebuilt import DEFAULTS, inherit
from headrace.loader.recipe_collate import RecipeCollator
from headrace.loader.recipe_dataset import RecipeDataset, recipe_of, refuse_sources
from headrace.loader.spec import BatchSpec, DataSpec, LoaderSpec, OrderSpec, WorkSpec

PIPES = tuple(
    kind for name in ("IterDataPipe", "MapDataPipe") if (kind := getattr(torch_data, name, None)) is not None
)
"""Datasets that torch alone can read."""

SKIPS = (
    "skip_first_batches() counts batches of an order that this loader does not have: it draws with a shared host, or "
    "has ranks that it finds by itself. Prepare the loader with Accelerate first, or go on from loader.state_dict() "
    "(docs/trainers.md)."
)


@dataclass(frozen=True)
class Setup:
    """A loader's arguments, completed."""

    given: dict[str, Any]
    """Torch's, as they were given."""
    torch: dict[str, Any]
    """Torch's, as its own loader is to get them."""
    own: dict[str, Any]
    """Those that torch does not have and that belong to the data."""
    carried: Carried
    """What the loader's parts are to carry."""
    native: Native
    own_number: bool
    """The user chose the number of workers."""
    keeps: bool
    """Workers stay from one epoch to the next."""


def complete(given: dict[str, Any], own: dict[str, Any]) -> Setup:
    """Arguments of torch's loader and our own, completed by what the parts carry that a loader is made of."""
    dataset, workers, samplers = given["dataset"], given["num_workers"], _samplers(given)
    recipe, carried = recipe_of(refuse_sources(dataset)) or (None, None)
    carried = inherit(
        own,
        given["collate_fn"],
        given["prefetch_factor"],
        given["persistent_workers"],
        carried or carried_by(*samplers),
    )
    own = {**DEFAULTS, **carried.options}
    stored = bool(own["cache"] or own["share"] or own["disk"] or own["tier"])
    if recipe is not None:
        native = Native(recipe, carried.collate_fn or recipe.collate)
        dataset = RecipeDataset(recipe, carried)
    else:
        native = look_for(
            dataset,
            carried.collate_fn,
            native=bool(own["native"]),
            batched=_batched(given),
            workers=workers != 0 and workers is not None,
            keeps=stored,
        )
    number = count_workers(workers, choose=recipe is not None)
    # A recipe cannot change between epochs, so its workers, and what they cached, may stay. A dataset might, but with
    # workers that go after each epoch there would be no use in a cache.
    stays = recipe is not None or (native.recipe is not None and stored)
    keeps = stays if carried.persistent_workers is None else carried.persistent_workers
    lasting = keeps and number > 0 if carried.persistent_workers is None else carried.persistent_workers
    sampler, shuffle = given["sampler"], given["shuffle"]
    ordered = any(part is not None for part in samplers) or isinstance(dataset, torch_data.IterableDataset)
    if not ordered and not isinstance(dataset, PIPES):
        # What torch would make, except that it can be told the epoch.
        if shuffle:
            generator = given["generator"]
            sampler, shuffle = OwnRandomSampler(dataset, carried, own["seed"], generator=generator), None
        else:
            sampler = OwnSequentialSampler(dataset, carried, own["seed"])
    torch = {
        **given,
        "dataset": dataset,
        "shuffle": shuffle,
        "sampler": sampler,
        "num_workers": number,
        "collate_fn": carried.collate_fn,
        "prefetch_factor": carried.prefetch_factor,
        "persistent_workers": lasting,
    }
    own_number = isinstance(workers, int) and not isinstance(workers, Chosen)
    return Setup(given, torch, own, carried, native, own_number, keeps)


def read_spec(
    setup: Setup,
    loader: torch_data.DataLoader[Any],
    *,
    batched: bool,
    keys: Any,
    rank: int | None,
    world_size: int | None,
    snapshot_every: Any,
) -> LoaderSpec:
    """The spec of ``loader``, which torch has made; all that it has not checked is checked here.

    ``batched``: it collates lists of samples. ``keys``: the sampler that it reads.
    """
    own = own_batches(setup.given["batch_sampler"])
    if own is not None and not _same(own.dataset, loader.dataset):
        own = None
    data = _read_data(setup, loader)
    order = _read_order(setup, loader, own, keys, finds=rank is None, snapshot_every=snapshot_every)
    check_batch_steps(data.recipe, setup.carried.collate_fn, batched=batched)
    shuffled = order.ours and order.shuffle
    share, cluster = wants_sharing(setup.own["share"], data.recipe is not None)
    options = read_options(
        samples=None if data.iterable else size_of(loader.dataset),
        described=data.recipe is not None,
        rank=rank,
        world_size=world_size,
        find_rank=order.finds_place,
        sampler=not order.ours,
        ordered=not shuffled or own is not None,
        unknown="; ".join(setup.native.own),
        **{**setup.own, "share": share, "cluster": cluster},
    )
    alone = options.world_size == 1 or data.described or not shuffled
    if options.seed is None and not alone and order.generator is None:
        # Ranks must agree without talking, whatever each of them seeded torch with.
        options = replace(options, seed=0)
    if order.skips_alone and options.share and setup.own["sampling"] != "uniform":
        raise OptionError(SKIPS)
    # (the batches of a trainer that divides nothing say what they are)
    cut = setup.given["batch_sampler"] if own is not None else loader
    return LoaderSpec(
        data=data,
        batches=BatchSpec(cut.batch_size or 1, cut.drop_last, batched),
        order=order,
        work=_read_work(setup, loader),
        options=options,
    )


def _read_data(setup: Setup, loader: torch_data.DataLoader[Any]) -> DataSpec:
    native, collate_fn = setup.native, setup.carried.collate_fn
    collator = None
    if native.recipe is not None and native.collate_fn is not None:
        # (a recipe's own collate gets lists, also of one)
        lists = _batched(setup.given) or (isinstance(loader.dataset, RecipeDataset) and collate_fn is None)
        collator = RecipeCollator(native.collate_fn, setup.own["on_error"], lists, native.present)
    return DataSpec(loader.dataset, native.recipe, native, loader.collate_fn, collator)


def _read_order(
    setup: Setup,
    loader: torch_data.DataLoader[Any],
    own: OwnOrder | None,
    keys: Any,
    *,
    finds: bool,
    snapshot_every: Any,
) -> OrderSpec:
    """``whole``: our own order again, by way of a trainer that divides nothing, or divides what it gets.
    ``finds``: rank and world size were not given."""
    described = isinstance(loader.dataset, RecipeDataset)
    samplers, batches = _samplers(setup.given), loader.batch_sampler
    if type(batches) is torch_data.BatchSampler and setup.given["batch_sampler"] is None:
        batches.carried = setup.carried  # type: ignore[attr-defined]
    # The user gave no sampler: then the order is ours.
    default = all(part is None for part in samplers) or own is not None
    told, carries = setup.carried.told, carried_by(*samplers) is not None
    skips = carried_by(samplers[1]) is not None and skipped(samplers[1]) > 0
    told.rebuilt |= carries and not skips
    return OrderSpec(
        samplers=(loader.sampler, batches),
        keys=keys,
        made=(loader.sampler, batches, loader.sampler if own is None else own) if default else None,
        shuffle=bool(setup.given["shuffle"]) if own is None else own.shuffled,
        in_order=setup.given["in_order"],
        finds_place=described and finds and default and own is None,
        skips_alone=skips and not told.rebuilt and described,
        generator=loader.generator,
        snapshot_every=read_snapshots(snapshot_every),
    )


def _read_work(setup: Setup, loader: torch_data.DataLoader[Any]) -> WorkSpec:
    return WorkSpec(
        workers=int(loader.num_workers),
        own_number=setup.own_number,
        prefetch=setup.carried.prefetch_factor,
        keeps=setup.keeps,
        context=loader.multiprocessing_context,
        init=loader.worker_init_fn,
        pin_memory=loader.pin_memory,
        pin_memory_device=loader.pin_memory_device,
    )


def _samplers(given: dict[str, Any]) -> tuple[Any, Any]:
    return given["sampler"], given["batch_sampler"]


def _batched(given: dict[str, Any]) -> bool:
    return given["batch_size"] is not None or given["batch_sampler"] is not None


def _same(one: Any, other: Any) -> bool:
    """Whether two datasets are one, or of one recipe."""
    return getattr(one, "recipe", one) is getattr(other, "recipe", other)


def size_of(dataset: Any) -> int | None:
    """Its length, where it has one."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
