"""What trainers do to a loader, call by call: what comes of it is still ours, and right.

These are the calls of Lightning, Fabric, Accelerate, Hugging Face's Trainer and Ray, so that the default suite sees a
fault; ``tests/trainers`` runs the real ones.
"""

import copy
import inspect
import os
import pickle
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    random_split,
)

import headrace as hr
from headrace.loader import options, place
from tests.loader.helpers import Squares, counting, drain, flat, images, recipe, targets
from tests.recipes.test_datasets import Compose, ImageFolder
from tests.recipes.test_translate import CenterCrop, ToTensor


class Skip:
    """As Accelerate's ``SkipBatchSampler``."""

    def __init__(self, batch_sampler, skip):
        self.batch_sampler, self.skip_batches = batch_sampler, skip

    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number >= self.skip_batches:
                yield batch

    def __len__(self):
        return len(self.batch_sampler) - self.skip_batches


class Shard:
    """As Accelerate's ``BatchSamplerShard``: each process takes every n-th batch."""

    def __init__(self, batch_sampler, rank, world):
        self.batch_sampler, self.rank, self.world = batch_sampler, rank, world

    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number % self.world == self.rank:
                yield batch

    def __len__(self):
        return len(self.batch_sampler) // self.world


KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
        "generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order")  # fmt: skip


def as_accelerate(loader, batch_sampler=None):
    """torch's own class around the parts of a loader."""
    kept = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    return DataLoader(loader.dataset, batch_sampler=batch_sampler or loader.batch_sampler, **kept)


def as_ray(loader, rank, world):
    names = ("dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout",
             "worker_init_fn", "generator")  # fmt: skip
    shuffle = not isinstance(loader.sampler, SequentialSampler)
    sampler = DistributedSampler(loader.dataset, world, rank, shuffle=shuffle)
    return DataLoader(**{name: getattr(loader, name) for name in names}, shuffle=False, sampler=sampler)


def as_lightning(loader, sampler):
    """The class anew, with those attributes that differ from their parameters' defaults."""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    parameters = inspect.signature(loader.__init__).parameters
    given = {n: v for n, v in attributes.items() if n in parameters and parameters[n].default is not v}
    return type(loader)(**{**given, "sampler": sampler, "shuffle": False, "batch_sampler": None})


def as_lightning_predicting(loader):
    batches = BatchSampler(loader.sampler, batch_size=loader.batch_sampler.batch_size, drop_last=False)
    wrapped = Skip(batches, 0)
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    parameters = inspect.signature(loader.__init__).parameters
    given = {n: v for n, v in attributes.items() if n in parameters and parameters[n].default is not v}
    replaced = {
        "sampler": None,
        "shuffle": False,
        "batch_sampler": wrapped,
        "batch_size": 1,
        "drop_last": False,
    }
    return type(loader)(**{**given, **replaced})


REBUILDS = {
    "accelerate": as_accelerate,
    "skip_first_batches": lambda loader: as_accelerate(loader, Skip(loader.batch_sampler, 0)),
    "ray": lambda loader: as_ray(loader, 0, 1),
    "lightning": lambda loader: as_lightning(loader, DistributedSampler(loader.dataset, 1, 0)),
    "predict": as_lightning_predicting,
    "subset": lambda loader: DataLoader(Subset(loader.dataset, range(len(loader.dataset))), batch_size=4),
    "plain": lambda loader: DataLoader(loader.dataset, batch_size=4),
}


@pytest.mark.parametrize("rebuild", REBUILDS.values(), ids=REBUILDS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_recipes_loader_stays_ours(rebuild, num_workers):
    described, source = counting(24)
    given = {"cache": "8MiB", "seed": 5, "on_error": "skip", "error_budget": 3, "split": (0, 1, 0)}
    loader = hr.DataLoader(described, batch_size=4, shuffle=True, num_workers=num_workers, **given)
    rebuilt = rebuild(loader)
    assert type(rebuilt) is hr.DataLoader
    assert {name: getattr(rebuilt, name) for name in given} == given
    with rebuilt:
        for _ in range(6):
            assert sorted(flat(targets(rebuilt))) == list(range(24))
    # (with workers, the next epoch's samples may be read before this epoch has cached them; with many, all of them)
    most = 24 if not rebuilt.num_workers else 4 * 24
    assert 24 <= source.reads.sum() <= most, "the cache is kept"


@pytest.mark.parametrize("rebuild", REBUILDS.values(), ids=REBUILDS)
def test_every_epoch_has_crops_of_its_own(folder, rebuild):
    loader = hr.DataLoader(images(folder), batch_size=4, shuffle=True, num_workers=0, seed=1)
    rebuilt = rebuild(loader)
    rows = [row.numpy().tobytes() for _ in range(3) for batch in rebuilt for row in batch[0]]
    assert len(rows) == len(set(rows)) == 72


@pytest.mark.parametrize(
    "rebuild", [REBUILDS[name] for name in ("accelerate", "skip_first_batches", "predict")]
)
def test_a_loader_without_anything_special_keeps_what_it_chose_itself(rebuild):
    loader = hr.DataLoader(recipe(24), batch_size=4, shuffle=True)
    rebuilt = rebuild(loader)
    spec = rebuilt._spec
    assert spec.work.prefetch is None and spec.data.collator is None and not spec.work.own_number


@pytest.mark.parametrize("seed", [None, 3])
def test_batches_divided_by_a_trainer_are_divided_once(monkeypatch, seed):
    """Also where each rank could find out by itself which one it is."""
    world, shares = 2, []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        generator = torch.Generator().manual_seed(0)  # trainers see to it that ranks agree on these
        loader = hr.DataLoader(
            recipe(32), batch_size=4, shuffle=True, seed=seed, num_workers=0, generator=generator
        )
        rebuilt = as_accelerate(loader, Shard(loader.batch_sampler, rank, world))
        epochs = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            epochs.append(flat(targets(rebuilt)))
        shares.append(epochs)
    for one, other in zip(*shares, strict=True):
        assert sorted(one + other) == list(range(32))
    assert shares[0][0] != shares[0][1]


@pytest.mark.parametrize("kind", ["recipe", "dataset"])
def test_ranks_of_a_distributed_sampler(kind):
    shares = []
    for rank in range(2):
        data = recipe(24) if kind == "recipe" else Squares(24)
        loader = hr.DataLoader(data, batch_size=4, shuffle=True, seed=2, num_workers=0)
        rebuilt = as_lightning(loader, DistributedSampler(loader.dataset, 2, rank, seed=9))
        epochs = []
        for epoch in range(2):
            rebuilt.sampler.set_epoch(epoch)
            epochs.append(flat(targets(rebuilt)))
        shares.append(epochs)
        assert epochs[0] != epochs[1]
    for epoch in range(2):
        expected = DistributedSampler(range(24), 2, 0, seed=9)
        expected.set_epoch(epoch)
        assert shares[0][epoch] == list(expected), "as the sampler says"
        assert sorted(shares[0][epoch] + shares[1][epoch]) == list(range(24))


def test_what_a_dataset_loader_was_told_is_kept():
    class Broken(Squares):
        def __getitem__(self, index):
            if index == 5:
                raise ValueError("bad")
            return super().__getitem__(index)

    options = {"batch_size": 4, "on_error": "skip", "error_budget": 3, "seed": 4}
    for given in ({"shuffle": True}, {"sampler": RandomSampler(range(20))}):
        loader = hr.DataLoader(Broken(20), **given, **options)
        for rebuilt in (
            as_accelerate(loader),
            as_lightning(loader, DistributedSampler(loader.dataset, 1, 0)),
        ):
            assert type(rebuilt) is hr.DataLoader
            assert sorted(flat(targets(rebuilt))) == [n for n in range(20) if n != 5]


def test_batches_are_not_skipped_in_an_order_that_was_not_given_out(monkeypatch):
    """A loader with ranks of its own, or whose host draws, that is handed to ``skip_first_batches`` as it is."""
    shared = hr.DataLoader(recipe(24), batch_size=4, shuffle=True, share=True, cache="8MiB")
    with pytest.raises(hr.OptionError, match="skip_first_batches"):
        as_accelerate(shared, Skip(shared.batch_sampler, 1))
    loader = hr.DataLoader(recipe(24), batch_size=4, shuffle=True, seed=1, num_workers=0)
    whole = flat(targets(loader))
    loader.set_epoch(0)
    rest = as_accelerate(loader, Skip(loader.batch_sampler, 2))
    assert flat(targets(rest)) == whole[8:]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rest = as_accelerate(loader, Skip(loader.batch_sampler, 2))
    with pytest.raises(hr.OptionError, match="skip_first_batches"):
        next(iter(rest))
    prepared = as_accelerate(loader, Shard(loader.batch_sampler, 0, 2))
    rest = as_accelerate(prepared, Skip(prepared.batch_sampler, 1))
    assert len(flat(targets(rest))) == 8, "prepared, the trainer's own count holds"


def test_torchs_loader_of_other_things_is_torchs():
    sampler = RandomSampler(range(8))
    hr.DataLoader(Squares(8), sampler=sampler)
    assert type(DataLoader(Squares(8), sampler=sampler)) is DataLoader
    assert type(DataLoader(Squares(8), 4, True)) is DataLoader
    assert type(DataLoader(dataset=Squares(8), batch_size=4)) is DataLoader

    class Own(DataLoader):
        pass

    assert type(Own(hr.DataLoader(recipe(8)).dataset, batch_size=2)) is Own


def test_a_loader_that_is_none_of_ours_draws_anew_or_says_what_it_cannot_do(folder):
    class Own(DataLoader):
        """As torchdata's ``StatefulDataLoader``."""

    loader = Own(hr.DataLoader(images(folder), num_workers=0).dataset, batch_size=4)
    rows = [row.numpy().tobytes() for _ in range(2) for batch in loader for row in batch[0]]
    assert len(set(rows)) == 48
    cached = hr.DataLoader(images(folder), cache="8MiB", num_workers=0).dataset
    with pytest.raises(hr.OptionError, match=r"cache='8MiB' was asked for.*headrace.DataLoader\(recipe"):
        list(Own(cached, batch_size=4))


def test_a_look_at_a_sample_is_another_look_each_time(folder):
    dataset = hr.DataLoader(images(folder), seed=3, num_workers=0).dataset
    assert not torch.equal(dataset[3][0], dataset[3][0])
    torch.manual_seed(1)
    one = dataset[3][0]
    torch.manual_seed(1)
    assert torch.equal(one, dataset[3][0])
    assert dataset[-1][1] == dataset[23][1] != dataset[0][1]
    with pytest.raises(IndexError):
        dataset[24]
    assert len(pickle.loads(pickle.dumps(dataset))) == 24


# -- epochs ----------------------------------------------------------------------------------------------------


def epochs_of(loader, count):
    return [flat(targets(loader)) for _ in range(count)]


@pytest.mark.parametrize("kind", ["recipe", "dataset"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_sampler_can_be_told_the_epoch(kind, num_workers):
    data = recipe(24) if kind == "recipe" else Squares(24)
    made = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": num_workers}
    with hr.DataLoader(data, **made) as loader:
        expected = epochs_of(loader, 5)
    with hr.DataLoader(data, **made) as loader:
        for epoch in (3, 4, 0, 0):
            loader.sampler.set_epoch(epoch)
            assert flat(targets(loader)) == expected[epoch]
        assert flat(targets(loader)) == expected[1], "and counts on by itself"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_sampler_may_be_told_after_the_iterator_was_made(num_workers):
    """As Lightning does after a restart."""
    made = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": num_workers}
    with hr.DataLoader(recipe(24), **made) as loader:
        expected = epochs_of(loader, 5)
    with hr.DataLoader(recipe(24), **made) as loader:
        iterator = iter(loader)
        loader.sampler.set_epoch(3)
        assert flat(targets(iterator)) == expected[3]
        assert flat(targets(loader)) == expected[4]


def test_a_state_of_an_epochs_end_and_a_trainer_that_is_in_the_next():
    made = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 0}
    loader = hr.DataLoader(recipe(24), **made)
    expected = epochs_of(loader, 3)
    loader.set_epoch(1)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = loader.state_dict()  # all batches were delivered, and nobody asked for one more
    loader = hr.DataLoader(recipe(24), **made)
    loader.load_state_dict(state)
    iterator = iter(loader)
    loader.sampler.set_epoch(2)
    assert flat(targets(iterator)) == expected[2]


@pytest.mark.parametrize("kind", ["own", "foreign"])
@pytest.mark.parametrize(("saved", "num_workers"), [(1, 0), (2, 0), (2, 2)])
def test_a_state_and_a_trainer_that_counts_from_its_own_start(kind, saved, num_workers):
    """As Fabric and Accelerate do: their counters begin at 0 in every process."""

    def make():
        order = {"shuffle": True} if kind == "own" else {"sampler": DistributedSampler(range(24), 1, 0)}
        return hr.DataLoader(recipe(24), batch_size=4, seed=3, num_workers=num_workers, **order)

    loader, expected = make(), []
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        expected.append(flat(targets(loader)))
    loader.set_epoch(saved)
    iterator = iter(loader)
    before = flat([next(iterator)[1].tolist() for _ in range(2)])
    state = loader.state_dict()
    del iterator
    loader.close()
    loader = make()
    loader.load_state_dict(state)
    for count in range(3):
        loader.sampler.set_epoch(count)
        found = flat(targets(loader))
        assert (before + found if count == 0 else found) == expected[saved + count]
    loader.close()


def test_a_foreign_sampler_that_is_told_moves_the_epoch_and_one_that_is_not_does_not_stop_it(folder):
    def run(told):
        loader = hr.DataLoader(images(folder), batch_size=24, num_workers=0, seed=1,
                               sampler=DistributedSampler(range(24), 1, 0, shuffle=False))  # fmt: skip
        found = []
        for epoch in told:
            if epoch is not None:
                loader.sampler.set_epoch(epoch)
            found.append(next(iter(loader))[0].numpy().tobytes())
        return found

    counted = run([None] * 4)
    assert len(set(counted)) == 4
    assert run([0, 1, 2, 3]) == counted
    assert run([3]) == counted[3:]


def test_a_batch_sampler_that_repeats_has_new_orders():
    """A known way to keep workers: one iterator for all epochs."""
    loader = hr.DataLoader(recipe(24), batch_size=4, shuffle=True, seed=3, num_workers=0)
    orders = [flat(list(loader.batch_sampler)) for _ in range(3)]
    assert all(sorted(order) == list(range(24)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_an_iterator_that_has_given_out_all_is_over_for_the_next_one():
    """Lightning counts batches, and holds on to the iterator while it makes the next one."""
    for order in ({"shuffle": True}, {"sampler": RandomSampler(range(24))}):
        described, source = counting(24)
        with hr.DataLoader(described, batch_size=4, cache="8MiB", num_workers=0, **order) as loader:
            for _ in range(3):
                iterator = iter(loader)
                assert sorted(flat(next(iterator)[1].tolist() for _ in range(6))) == list(range(24))
        assert source.reads.tolist() == [1] * 24


def test_an_iterator_dropped_after_its_last_batch_has_ended():
    """Hugging Face's Trainer does that. What is prepared of the next epoch is not begun a second time."""
    with hr.DataLoader(recipe(24), batch_size=4, shuffle=True, seed=3, num_workers=1) as loader:
        for epoch in range(3):
            iterator = iter(loader)
            for _ in range(6):
                next(iterator)
            del iterator
            assert loader.state_dict()["epoch"] == epoch + 1
            assert loader.state_dict()["position"] == 0
            assert loader._epochs.fed == (3, epoch + 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_and_a_distributed_sampler_that_is_told_after_the_iterator_was_made(num_workers):
    def make():
        sampler = DistributedSampler(range(24), 1, 0)
        return hr.DataLoader(recipe(24), batch_size=4, seed=3, num_workers=num_workers, sampler=sampler)

    with make() as loader:
        loader.sampler.set_epoch(1)
        iterator = iter(loader)
        before = flat([next(iterator)[1].tolist() for _ in range(2)])
        state = loader.state_dict()
        rest = flat(targets(iterator))
    with make() as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        loader.sampler.set_epoch(1)
        assert flat(targets(iterator)) == rest
    assert sorted(before + rest) == list(range(24))


# -- rank and workers --------------------------------------------------------------------------------------------


def test_rank_is_read_when_iteration_begins(monkeypatch):
    made = {"batch_size": 4, "shuffle": True, "num_workers": 0}
    loaders = [hr.DataLoader(recipe(32), **made) for _ in range(2)]
    assert [len(loader) for loader in loaders] == [8, 8]
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        assert len(loader) == 4
        shares.append([flat(targets(loader)) for _ in range(2)])
    for one, other in zip(*shares, strict=True):
        assert Counter(one + other) == Counter(range(32))


def test_ranks_agree_although_one_of_them_ran_before(monkeypatch):
    loaders = [hr.DataLoader(recipe(32), batch_size=4, shuffle=True, num_workers=0) for _ in range(2)]
    drain(loaders[0])
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        loader.set_epoch(1)
        shares.append(flat(targets(loader)))
    assert sorted(flat(shares)) == list(range(32))


@pytest.mark.parametrize(
    ("environment", "cpus"),
    [
        ({}, 16),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, 2),
        ({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, 4),
        ({"RANK": "3", "WORLD_SIZE": "64"}, 1),
        ({"RANK": "0", "WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "2(x2)"}, 8),
        ({"RANK": "0", "WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "6"}, 6),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "4",
                "LOCAL_WORLD_SIZE": "4",
                "SLURM_CPUS_PER_TASK": "6",
                "TORCHELASTIC_RUN_ID": "one",
            },
            1,
        ),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 16),
    ],
)
def test_ranks_on_one_machine_divide_it(monkeypatch, environment, cpus):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
                 "TORCHELASTIC_RUN_ID"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(place, "usable_cpus", lambda: 16)
    assert place.cpus_per_rank() == cpus
    assert options.count_workers("auto", choose=True) <= cpus
    assert options.count_workers(7, choose=True) == 7, "the user's number is obeyed"


def test_a_loader_made_before_the_ranks_were_known_starts_its_part_of_the_workers(monkeypatch):
    from headrace.loader import staffing

    for module in (place,):
        monkeypatch.setattr(module, "usable_cpus", lambda: 8)
    loader = hr.DataLoader(recipe(32), batch_size=4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert staffing.cpus_per_rank() == 1
    with loader:
        drain(loader)
        assert (loader.stats().workers, loader.stats().threads) == (1, 2), "twice its part, if it is late"
        assert loader.num_workers == 1


# -- parts of recipes ----------------------------------------------------------------------------------------------


def test_subsets_of_recipes():
    whole = recipe(24)
    chosen = [5, 3, 17, 23]
    for part in (whole.subset(chosen), Subset(whole, chosen), Subset(hr.DataLoader(whole).dataset, chosen),
                 Subset(Subset(whole, [23, 17, 5, 3]), [2, 3, 1, 0])):  # fmt: skip
        assert len(part) == 4
        loader = hr.DataLoader(part, batch_size=2, num_workers=0)
        assert targets(loader) == [[5, 3], [17, 23]]
        assert [int(loader.dataset[at][1]) for at in range(4)] == chosen


def test_random_split_of_a_recipe():
    parts = random_split(recipe(24), [0.75, 0.25], torch.Generator().manual_seed(0))
    found = [
        sorted(flat(targets(hr.DataLoader(part, batch_size=5, shuffle=True, num_workers=0))))
        for part in parts
    ]
    assert [len(part) for part in found] == [18, 6]
    assert sorted(flat(found)) == list(range(24))


def test_copies_of_a_loader_without_iterator():
    loader = hr.DataLoader(recipe(24), batch_size=4, num_workers=0, seed=1)
    assert targets(copy.copy(loader)) == targets(loader)


# -- Lightning's hooks -----------------------------------------------------------------------------------------------

_HOOK = """
import functools, inspect, sys
if "{first}" == "torch":
    import torch
import headrace as hr
from torch.utils.data import DataLoader, DistributedSampler

saved = {{}}
def wrap(cls):
    init = cls.__init__
    @functools.wraps(init)
    def wrapper(obj, *args, **kwargs):
        names = [name for name in inspect.signature(init).parameters if name != "self"][: len(args)]
        saved.setdefault(id(obj), (type(obj), args, dict(kwargs), names))
        init(obj, *args, **kwargs)
    cls.__init__ = wrapper
for cls in [DataLoader, *DataLoader.__subclasses__()]:
    if "__init__" in vars(cls):
        wrap(cls)
recipe = hr.Recipe(hr.synthetic.source(20, shape=(2,), classes=20), decode=hr.synthetic.decode())
loader = hr.DataLoader(recipe, 4, True, num_workers=0, cache="1MiB", seed=3)
sampler = DistributedSampler(loader.dataset, 2, 1)
if id(loader) in saved:
    kind, args, kwargs, names = saved[id(loader)]
    kwargs = {{**dict(zip(names, args)), **kwargs}}
else:
    parameters = inspect.signature(loader.__init__).parameters
    kwargs = {{n: v for n, v in vars(loader).items() if n in parameters and v is not parameters[n].default}}
rebuilt = type(loader)(**{{**kwargs, "sampler": sampler, "shuffle": False, "batch_sampler": None}})
assert (rebuilt.cache, rebuilt.seed) == ("1MiB", 3), (rebuilt.cache, rebuilt.seed)
print(sorted(n for _, numbers in rebuilt for n in numbers.tolist()) == sorted(sampler))
"""


@pytest.mark.parametrize("first", ["torch", "headrace"])
@pytest.mark.slow
def test_a_loader_made_while_constructors_are_wrapped(first):
    """Lightning wraps them while the user's hooks run, those of the classes that it knows then."""
    ran = subprocess.run(
        [sys.executable, "-c", _HOOK.format(first=first)],
        capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ran.stdout.strip() == "True", ran.stderr


# -- what cannot be a dataset ----------------------------------------------------------------------------------------


def test_paths_and_sources_are_no_datasets(folder):
    for wrong in (str(folder), folder, hr.folder(folder)):
        with pytest.raises(hr.OptionError, match=r"Make a recipe: headrace.Recipe\("):
            hr.DataLoader(wrong)


def test_the_package_lists_what_it_has():
    assert {"DataLoader", "Stats", "Recipe", "folder"} <= set(dir(hr))


# -- torchvision's datasets ---------------------------------------------------------------------------------------


def mixed(samples):
    """A collate function that draws."""
    images, labels = torch.utils.data.default_collate(samples)
    return images + torch.rand(()), labels


NATIVE = {
    **{name: REBUILDS[name] for name in ("accelerate", "skip_first_batches", "predict")},
    "lightning": lambda loader: as_lightning(loader, DistributedSampler(loader.dataset, 1, 0, shuffle=False)),
    "lightning, with the user's sampler": lambda loader: as_lightning(
        as_lightning(loader, SequentialSampler(loader.dataset)), SequentialSampler(loader.dataset)
    ),
}


@pytest.mark.parametrize("collate_fn", [None, mixed])
@pytest.mark.parametrize("rebuild", NATIVE.values(), ids=NATIVE)
def test_a_folder_dataset_stays_native(folder, rebuild, collate_fn):
    files = sorted(str(path) for path in folder.rglob("*.jpg"))[:8]
    dataset = ImageFolder(
        [(path, at) for at, path in enumerate(files)], transform=Compose([CenterCrop(8), ToTensor()])
    )
    for native in (False, True):
        given = {"cache": "8MiB", "seed": 5, "native": native, "on_error": "skip"}
        options = {"batch_size": 4, "num_workers": 1, "collate_fn": collate_fn, **given}
        loader = hr.DataLoader(dataset, **options)
        rebuilt = rebuild(loader)
        assert type(rebuilt) is hr.DataLoader and rebuilt.dataset is dataset
        assert {name: getattr(rebuilt, name) for name in given} == given
        assert rebuilt._spec.data.native.steps == (("decoding", "CenterCrop", "ToTensor") if native else ())
        assert (rebuilt._spec.data.collator is None) == (collate_fn is None), (
            "torch's own default is none of the user's"
        )
        assert rebuilt._spec.data.native.recipe is not None
    if collate_fn is not None:
        with rebuilt, hr.DataLoader(dataset, **options) as plain:
            for (images, labels), (same, others) in zip(rebuilt, plain, strict=True):
                assert labels.tolist() == others.tolist()
                assert torch.equal(images, same), "and draws the same"
