"""``headrace.DataLoader``: torch's, with another engine."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils import data as torch_data

from headrace.core.errors import BadSample, LoaderClosed, OptionError, StateError
from headrace.loader.disk_tier import Disk, Redis
from headrace.loader.epochs import Begun, Epochs, turn
from headrace.loader.iterator import EpochIterator
from headrace.loader.options import Chosen, count_workers, place
from headrace.loader.ordering import Ordering
from headrace.loader.rebuilt import adopt
from headrace.loader.setup import PIPES, SKIPS, Setup, complete, read_spec
from headrace.loader.spec import LoaderSpec
from headrace.loader.stateful import is_stateful
from headrace.loader.stats import Stats

T_co = TypeVar("T_co", covariant=True)

_TORCH_PARAMETERS = inspect.signature(torch_data.DataLoader.__init__).parameters


class DataLoader(torch_data.DataLoader[T_co]):
    """Loads data as ``torch.utils.data.DataLoader`` does, faster, resumable, and cached where you say so.

    All parameters of torch's loader mean what they mean there. ``dataset`` may also be a ``headrace.Recipe``;
    then batches are prepared row by row, by all workers together, straight into shared memory.

    Parameters that torch does not have:

    - ``num_workers``: None (the default) is chosen for you with a recipe, and 0, as in torch, with a dataset;
      ``"auto"`` chooses for a dataset too.
    - ``cache``: memory for prepared samples: bytes, ``"8GiB"``, or a share of RAM (``0.25``, ``"25%"``).
    - ``disk``: room for samples on a local disk, below the cache: bytes, ``"200GiB"``, a share of the file system, or
      a ``headrace.Disk``. It outlasts the job, and all jobs of this user and machine share it (docs/disk.md).
    - ``tier``: the same in a Redis or Valkey server, for many machines: its URL, or a ``headrace.Redis``.
      ``"cluster"``: decoded samples in the memory of the nodes of ``share="ray"``; None: there, where it is measured
      to pay; False: not there.
    - ``split``: how the cache is divided, ``(encoded, decoded, augmented)``; by default as measurements suggest.
    - ``seed``: makes order and augmentations reproducible; with it, an epoch is a pure function of
      (seed, epoch).
    - ``rank``, ``world_size``: the share of each step that this process takes. With a recipe they are found
      in torch.distributed or the environment.
    - ``share``: prepare samples together with all jobs of this user and machine that share (a recipe is needed).
      ``"ray"``: and read them from the memory of a whole cluster (docs/cluster.md). None: as the environment
      variable ``HEADRACE_SHARE`` says.
    - ``sampling``: ``"uniform"``, or with ``share`` ``"auto"`` (the default there), ``"opportunistic"`` or
      ``"dependent"``; ``eviction``: what has to go when the shared cache is full (docs/sharing.md).
    - ``native``: prepare images of torchvision's folder datasets with headrace's kernels, and with its own steps in
      the place of the transforms that it knows (``loader.stats()`` says which), also for a ``collate_fn`` of yours;
      False leaves all of it to the dataset (docs/dropin.md).
    - ``device``: batches come in the memory of this GPU (``"cuda"``, ``"cuda:1"``, a ``torch.device``), copied while
      the step before still runs; ``"auto"``: this process' own, or the CPU where there is none (docs/gpu.md).
    - ``gpu_decode``: that GPU decodes JPEG images, too, as far as it is of use; a number: this share of them. Which
      ones depends on how fast both are, and pixels differ a little by who decodes them.
    - ``gpu_cache``: memory of that GPU for decoded images: bytes, ``"20GiB"``, or a share of it. What is there is
      neither read nor decoded nor copied again.
    - ``snapshot_every_n_steps``: how often the states of datasets and samplers that keep one are taken, where batches
      are prepared ahead (0: never). None: with every batch if they are small. Whatever it is, a state that is
      loaded goes on exactly where it was saved; what came after the last one taken is read again.
    - ``on_error``: ``"raise"``, ``"skip"`` or ``"substitute"`` for samples that cannot be prepared, the latter
      two as long as ``error_budget`` (a number, or a share of the dataset) allows.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = None,
        cache: int | float | str | None = None,
        disk: Disk | int | float | str | None = None,
        tier: Redis | str | bool | None = None,
        split: Sequence[float] | str | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        error_budget: int | float = 0.01,
        share: bool | str | None = None,
        sampling: str | None = None,
        eviction: str | None = None,
        native: bool = True,
        device: Any = None,
        gpu_decode: bool | float = False,
        gpu_cache: int | float | str | None = None,
    ) -> None:
        setup = complete(
            {
                "dataset": dataset,
                "batch_size": batch_size,
                "shuffle": shuffle,
                "sampler": sampler,
                "batch_sampler": batch_sampler,
                "num_workers": num_workers,
                "collate_fn": collate_fn,
                "pin_memory": pin_memory,
                "drop_last": drop_last,
                "timeout": timeout,
                "worker_init_fn": worker_init_fn,
                "multiprocessing_context": multiprocessing_context,
                "generator": generator,
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
                "pin_memory_device": pin_memory_device,
                "in_order": in_order,
            },
            {
                "cache": cache,
                "disk": disk,
                "tier": tier,
                "split": split,
                "seed": seed,
                "on_error": on_error,
                "error_budget": error_budget,
                "share": share,
                "sampling": sampling,
                "eviction": eviction,
                "native": native,
                "device": device,
                "gpu_decode": gpu_decode,
                "gpu_cache": gpu_cache,
            },
        )
        self._make_torchs(setup)
        # Trainers find a loader's parameters in its attributes.
        for name, value in setup.own.items():
            setattr(self, name, value)
        self.rank, self.world_size = rank, world_size
        self._spec = read_spec(
            setup,
            self,
            batched=self._auto_collation,
            keys=self._index_sampler,
            rank=rank,
            world_size=world_size,
            snapshot_every=snapshot_every_n_steps,
        )
        self.snapshot_every_n_steps = self._spec.order.snapshot_every
        self._epochs = Epochs(self._spec, setup.carried.told)
        self._early: Iterator[Any] | None = None
        """An iterator that was made before somebody asked for it."""

    def _make_torchs(self, setup: Setup) -> None:
        """Be torch's loader, with all its attributes."""
        arguments = {name: value for name, value in setup.torch.items() if name in _TORCH_PARAMETERS}
        with warnings.catch_warnings():
            if not setup.own_number:
                # The number is ours, so torch need not warn that the user chose too many.
                warnings.simplefilter("ignore", UserWarning)
            # As it was before somebody wrapped it: Lightning's wrapper takes what it sees for our own parameters.
            inspect.unwrap(torch_data.DataLoader.__init__)(self, **arguments)

    def _now(self) -> LoaderSpec:
        """The spec, with those of torch's attributes that may be set on a loader at any time."""
        spec = self._spec
        return replace(
            spec,
            data=replace(spec.data, dataset=self.dataset, collate_fn=self.collate_fn),
            batches=replace(spec.batches, batched=self._auto_collation),
            order=replace(
                spec.order,
                samplers=(self.sampler, self.batch_sampler),
                keys=self._index_sampler,
                generator=self.generator,
                snapshot_every=self.snapshot_every_n_steps,
            ),
            work=replace(
                spec.work,
                workers=self.num_workers,
                context=self.multiprocessing_context,
                init=self.worker_init_fn,
                pin_memory=self.pin_memory,
                pin_memory_device=self.pin_memory_device,
            ),
        )

    def _settled(self) -> LoaderSpec:
        """The spec as of now, with rank and world size: a process group may have come since the loader was made."""
        epochs = self._epochs
        if isinstance(self.num_workers, Chosen) and epochs.session is None:
            self.num_workers = count_workers(self.num_workers, choose=True)
        spec = self._now()
        if not spec.order.finds_place or (epochs.live is not None and epochs.live() is not None):
            return spec
        rank, world_size = place(None, None, True)
        if (rank, world_size) == (spec.options.rank, spec.options.world_size):
            return spec
        shuffled = spec.order.ours and spec.order.shuffle
        options = spec.options.placed(rank, world_size, ordered=not shuffled)
        self._spec = replace(self._spec, options=options)
        epochs.move(self._spec)
        return self._now()

    # -- iteration ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of one epoch."""
        early, self._early = self._early, None
        if early is not None and not self._epochs.closed:
            return early
        if self._epochs.closed:
            raise LoaderClosed("the loader was closed; make a new one")
        if not self.num_workers and self.timeout:
            raise ValueError("timeout needs num_workers > 0: without workers there is nothing to wait for")
        if self.num_workers and self.prefetch_factor == 0:
            raise ValueError("prefetch_factor must be at least 1")
        if PIPES and isinstance(self.dataset, PIPES):
            return super().__iter__()
        if self._spec.order.skips_alone and place(None, None, True)[1] > 1:
            raise OptionError(SKIPS)
        with turn():  # threads may begin at once, and only one of them can have the session
            beside = self._epochs.running() is not None
            return self._epochs.start(self._settled(), self._iterate, beside=beside)

    def _iterate(self, begun: Begun) -> EpochIterator:
        return EpochIterator(self, self._epochs, self._now, begun, self._IterableDataset_len_called)

    # -- order and resume ---------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration runs. Without it, epochs count up by themselves."""
        if epoch < 0:
            raise OptionError(f"set_epoch({epoch}): epochs count from 0")
        self._early = None
        self._epochs.tell(self._now(), epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands, counting what was delivered to you. Plain values, small, JSON-able, but for what
        your own datasets and samplers say of themselves where that is not (docs/resume.md)."""
        spec = self._settled()
        unread = self._epochs.untouched and not self._epochs.closed
        if unread and spec.data.iterable and is_stateful(self.dataset):
            # Such a dataset says where it is once it was asked for its iterator; the next epoch goes on with it.
            self._early = iter(self)
        return self._epochs.state(self._now())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state`` at the next iteration, also with other workers, ranks or batch size."""
        self._early = None
        if self._epochs.running() is not None:
            raise StateError(
                "load_state_dict() after iteration began: load the state before the first batch is asked for, "
                "or finish (or drop) the running iterator first"
            )
        self._epochs.go_on(self._settled(), state)

    # -- the rest -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one epoch."""
        steps = Ordering(self._settled()).steps(None)
        return super().__len__() if steps is None else steps

    @property
    def bad_samples(self) -> list[BadSample]:
        """Every sample that could not be prepared so far: its index, name and the reason."""
        return list(self._epochs.book.bad.values())

    def stats(self) -> Stats:
        """Numbers about this loader: what was delivered, where time went, what the cache holds."""
        return self._epochs.stats(self._now())

    def close(self) -> None:
        """Stop workers and free memory. Batches that you keep stay valid."""
        epochs: Epochs | None = getattr(self, "_epochs", None)
        if epochs is None or epochs.closed:
            return
        epochs.closed = True
        self._early = None
        epochs.drop_session(self._now())

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


adopt(DataLoader)
