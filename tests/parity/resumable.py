"""Datasets and samplers that keep their place in every way there is, for tests of resuming."""

import itertools
import random

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, Sampler, get_worker_info
from torchdata.stateful_dataloader.sampler import RandomSampler as KeptRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SIZE = 14


def shard() -> range:
    """The numbers of this worker: the first has most, so that shards end at different times."""
    info = get_worker_info()
    if info is None:
        return range(SIZE)
    sizes = {1: [14], 2: [9, 5], 3: [2, 8, 4]}[info.num_workers]
    start = sum(sizes[: info.id])
    return range(start, start + sizes[info.id])


class Numbers(Dataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return SIZE


class Noisy(Numbers):
    """Draws from all three global generators."""

    def __getitem__(self, index):
        return index, torch.rand(1).item(), random.random(), np.random.rand()


class Counted(Numbers):
    """Counts what it gave."""

    def __init__(self):
        self.given = 0

    def __getitem__(self, index):
        self.given += 1
        return index, self.given

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Stream(IterableDataset):
    """A generator without a state."""

    def __iter__(self):
        yield from shard()


class NoisyStream(IterableDataset):
    """Draws its order, and something for every sample."""

    def __iter__(self):
        order = list(shard())
        random.shuffle(order)
        for number in order:
            yield number, torch.rand(1).item(), np.random.rand()


class OwnIterator(IterableDataset):
    """Its own iterator, without a state, started over by every ``iter()``."""

    def __iter__(self):
        self.numbers = iter(shard())
        return self

    def __next__(self):
        return next(self.numbers)


class KeptOwnIterator(IterableDataset):
    """Its own iterator with a state, started over by every ``iter()``."""

    def __init__(self):
        self.at = 0
        self.epoch = 0

    def __iter__(self):
        self.at = 0
        self.epoch += 1
        return self

    def __next__(self):
        numbers = shard()
        if self.at >= len(numbers):
            raise StopIteration
        self.at += 1
        return numbers[self.at - 1], self.epoch

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class KeptStream(IterableDataset):
    """A generator over a dataset that keeps the state."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        numbers = shard()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OddlyKeptStream(KeptStream):
    """The same, with a state that is not plain."""

    def state_dict(self):
        return {
            "at": torch.tensor([self.at]),
            3: (np.arange(self.at), {1, 2}),
            "none": float("nan"),
        }

    def load_state_dict(self, state):
        assert set(state) == {"at", 3, "none"} and state["none"] != state["none"]
        assert type(state[3]) is tuple and state[3][1] == {1, 2}
        self.at = int(state["at"])
        assert state[3][0].tolist() == list(range(self.at))


class Cursor:
    """An iterator with a state."""

    def __init__(self, numbers, epoch=0):
        self.numbers, self.epoch, self.at = numbers, epoch, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1], self.epoch

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class CursorStream(IterableDataset):
    """The iterator keeps the state, the dataset does not."""

    def __iter__(self):
        return Cursor(shard())


class TwiceKeptStream(IterableDataset):
    """Both do: the dataset counts epochs, the iterator samples."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return Cursor(shard(), self.epoch)

    def state_dict(self):
        return {"epoch": self.epoch - 1}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


MAPS = {"map": Numbers, "noisy map": Noisy, "stateful map": Counted}
STREAMS = {
    "generator": Stream,
    "noisy generator": NoisyStream,
    "own iterator": OwnIterator,
    "stateful own iterator": KeptOwnIterator,
    "stateful dataset": KeptStream,
    "stateful dataset, odd state": OddlyKeptStream,
    "stateful iterator": CursorStream,
    "both stateful": TwiceKeptStream,
}


class KeptSampler(Sampler):
    """A sampler with a state: another order in every epoch."""

    def __init__(self):
        self.epoch = self.at = 0

    def __iter__(self):
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.at < SIZE:
            self.at += 1
            yield order[self.at - 1]
        self.epoch, self.at = self.epoch + 1, 0

    def __len__(self):
        return SIZE

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


class CursorSampler(Sampler):
    """A sampler whose iterator has a state."""

    def __iter__(self):
        return KeysOf(list(range(SIZE - 1, -1, -1)))

    def __len__(self):
        return SIZE


class KeysOf(Cursor):
    def __next__(self):
        return super().__next__()[0]


class KeptBatches(KeptSampler):
    """A batch sampler with a state."""

    def __iter__(self):
        keys = super().__iter__()
        while batch := list(itertools.islice(keys, 3)):
            yield batch


def seeded():
    return torch.Generator().manual_seed(5)


SAMPLERS = {
    "default": lambda data: {"batch_size": 3},
    "shuffle": lambda data: {"batch_size": 3, "shuffle": True},
    "shuffle with a generator": lambda data: {"batch_size": 3, "shuffle": True, "generator": seeded()},
    "random sampler": lambda data: {"batch_size": 3, "sampler": RandomSampler(data)},
    "random sampler, seeded": lambda data: {
        "batch_size": 3,
        "sampler": RandomSampler(data, generator=seeded()),
    },
    "with replacement": lambda data: {
        "batch_size": 3,
        "sampler": RandomSampler(data, replacement=True, num_samples=40),
    },
    "torchdata's random sampler": lambda data: {
        "batch_size": 3,
        "sampler": KeptRandomSampler(data, generator=seeded()),
    },
    "torchdata's distributed sampler": lambda data: {
        "batch_size": 3,
        "sampler": StatefulDistributedSampler(data, num_replicas=1, rank=0),
    },
    "stateful sampler": lambda data: {"batch_size": 3, "sampler": KeptSampler()},
    "stateful sampler, drop_last": lambda data: {
        "batch_size": 3,
        "drop_last": True,
        "sampler": KeptSampler(),
    },
    "stateful sampler, one by one": lambda data: {"batch_size": None, "sampler": KeptSampler()},
    "stateful iterator of a sampler": lambda data: {"batch_size": 3, "sampler": CursorSampler()},
    "stateful batch sampler": lambda data: {"batch_sampler": KeptBatches()},
    "torch's batch sampler": lambda data: {
        "batch_sampler": BatchSampler(RandomSampler(data, generator=seeded()), 3, drop_last=True)
    },
}
