"""What the constructor takes, keeps and refuses, and what may be set afterwards."""

import inspect
import os

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, get_worker_info

from tests.parity.datasets import Numbers, Stream, identity
from tests.parity.equality import assert_same, error_from

pytestmark = pytest.mark.parity

MAP_ERRORS = [
    ({"num_workers": -1}, ValueError, "num_workers option should be non-negative"),
    ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
    ({"timeout": -0.5, "num_workers": 1}, ValueError, "timeout option should be non-negative"),
    ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified in multiprocessing"),
    ({"prefetch_factor": -1, "num_workers": 1}, ValueError, "prefetch_factor option should be non-negative"),
    ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
    ({"sampler": [0], "shuffle": True}, ValueError, "sampler option is mutually exclusive with shuffle"),
    ({"batch_sampler": [[0]], "batch_size": 2}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "batch_size": None}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "shuffle": True}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "sampler": [0]}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "drop_last": True}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None option disables auto-batching"),
    ({"batch_size": 0}, ValueError, "batch_size should be a positive integer value, but got batch_size=0"),
    ({"batch_size": -3}, ValueError, "batch_size should be a positive integer value, but got batch_size=-3"),
    (
        {"batch_size": 2, "drop_last": 1},
        ValueError,
        "drop_last should be a boolean value, but got drop_last=1",
    ),
    ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context can only be used with"),
    (
        {"multiprocessing_context": "thread", "num_workers": 1},
        ValueError,
        "multiprocessing_context option should specify a valid start method in",
    ),
    (
        {"multiprocessing_context": 3, "num_workers": 1},
        TypeError,
        "multiprocessing_context option should be a valid context object",
    ),
    ({"num_workers": "2"}, TypeError, "num_workers|not supported between instances"),
    ({"no_such_option": 1}, TypeError, "no_such_option"),
]

STREAM_ERRORS = [
    ({"shuffle": True}, "expected unspecified shuffle option, but got shuffle=True"),
    ({"sampler": [0, 1]}, r"expected unspecified sampler option, but got sampler=\[0, 1\]"),
    ({"batch_sampler": [[0]]}, r"expected unspecified batch_sampler option, but got batch_sampler=\[\[0\]\]"),
    ({"sampler": [0], "shuffle": True}, "expected unspecified shuffle option"),
    ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching"),
    ({"batch_size": 0}, "batch_size should be a positive integer value"),
    ({"num_workers": -2}, "num_workers option should be non-negative"),
]


@pytest.mark.parametrize(("options", "error", "text"), MAP_ERRORS, ids=[str(o) for o, _, _ in MAP_ERRORS])
def test_refused(loader_class, options, error, text):
    with pytest.raises(error, match=text):
        loader_class(Numbers(4), **options)


@pytest.mark.parametrize(("options", "text"), STREAM_ERRORS, ids=[str(o) for o, _ in STREAM_ERRORS])
def test_refused_for_streams(loader_class, options, text):
    with pytest.raises(ValueError, match=text):
        loader_class(Stream(4), **options)


def test_streams_take_shuffle_when_it_is_false(loader_class):
    assert len(list(loader_class(Stream(4), shuffle=False, batch_size=2))) == 2


def test_a_dataset_is_required(loader_class):
    with pytest.raises(TypeError, match="dataset"):
        loader_class()


def test_rare_options_come_by_name_only(loader_class):
    positional = [Numbers(4), 1, None, None, None, 0, None, False, False, 0, None, None, None]
    assert len(list(loader_class(*positional))) == 4
    with pytest.raises(TypeError, match="positional"):
        loader_class(*positional, 2)


@pytest.mark.filterwarnings("ignore:Exception ignored in.*DataLoaderIter.__del__")
@pytest.mark.parametrize(
    ("options", "name"),
    [({"timeout": 5}, "timeout"), ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor")],
)
def test_refused_before_the_first_batch(loader_class, options, name):
    """Whether the constructor or the iterator refuses is left open."""
    caught = error_from(lambda: next(iter(loader_class(Numbers(4), **options))))
    assert isinstance(caught, AssertionError | ValueError)
    assert name in str(caught)


def test_more_workers_than_processors_warn(loader_class):
    too_many = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match=f"This DataLoader will create {too_many} worker processes in total"):
        loader_class(Numbers(4), num_workers=too_many)


def test_signature(loader_class):
    """Every option of torch is here, at the same position; a default is the same, or chosen by the loader."""
    expected = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    actual = inspect.signature(loader_class.__init__).parameters
    for name, parameter in expected.items():
        assert name in actual
        assert actual[name].default in (parameter.default, None), name
        assert actual[name].kind == parameter.kind, name
    positional = [name for name, p in expected.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(actual)[: len(positional)] == positional


def test_generic_in_annotations(loader_class):
    assert loader_class[int].__origin__ is loader_class


DEFAULTS = {
    "batch_size": 1,
    "num_workers": 0,
    "pin_memory": False,
    "pin_memory_device": "",
    "drop_last": False,
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "generator": None,
    "prefetch_factor": None,
    "persistent_workers": False,
    "in_order": True,
}


def test_attributes_by_default(loader_class):
    dataset = Numbers(5)
    loader = loader_class(dataset)
    for name, value in DEFAULTS.items():
        assert getattr(loader, name) == value, name
    assert loader.dataset is dataset
    assert isinstance(loader.sampler, SequentialSampler)
    assert list(loader.sampler) == [0, 1, 2, 3, 4]
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert loader.batch_sampler.batch_size == 1
    assert loader.batch_sampler.drop_last is False
    assert loader.batch_sampler.sampler is loader.sampler


def test_attributes_as_given(loader_class):
    given = {
        "batch_size": 3,
        "sampler": [1, 2],
        "num_workers": 2,
        "collate_fn": identity,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 9.5,
        "worker_init_fn": print,
        "generator": torch.Generator(),
        "prefetch_factor": 4,
        "persistent_workers": True,
        "pin_memory_device": "cuda",
        "in_order": False,
    }
    loader = loader_class(Numbers(5), multiprocessing_context="spawn", **given)
    for name, value in given.items():
        assert getattr(loader, name) is value, name
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert loader.batch_sampler.sampler is given["sampler"]
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (3, True)


def test_attributes_that_follow_from_others(loader_class):
    generator = torch.Generator()
    shuffled = loader_class(Numbers(5), shuffle=True, generator=generator, num_workers=1)
    assert isinstance(shuffled.sampler, RandomSampler)
    assert sorted(shuffled.sampler) == [0, 1, 2, 3, 4]
    assert shuffled.prefetch_factor == 2
    own = [[0, 1], [2]]
    batched = loader_class(Numbers(5), batch_sampler=own)
    assert batched.batch_sampler is own
    assert batched.batch_size is None
    assert batched.drop_last is False
    single = loader_class(Numbers(5), batch_size=None)
    assert single.batch_size is None
    assert single.batch_sampler is None
    assert isinstance(single.sampler, SequentialSampler)


FIXED = ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]


@pytest.mark.parametrize("name", FIXED)
def test_fixed_once_made(loader_class, name):
    loader = loader_class(Numbers(4), batch_size=2)
    before = getattr(loader, name)
    with pytest.raises(
        ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"
    ):
        setattr(loader, name, None)
    assert getattr(loader, name) is before


def test_the_others_may_be_set(loader_class):
    loader = loader_class(Numbers(4), batch_size=2)
    loader.collate_fn = identity
    assert_same(list(loader), [[0, 1], [2, 3]])
    loader.note = "mine"
    assert loader.note == "mine"
    loader = loader_class(Numbers(4), batch_size=2, num_workers=1)
    loader.worker_init_fn = lambda worker_id: setattr(get_worker_info().dataset, "offset", 7)
    assert_same(list(loader), [torch.tensor([7, 8]), torch.tensor([9, 10])])
    loader.num_workers = 0
    assert_same(list(loader), [torch.tensor([0, 1]), torch.tensor([2, 3])])
    loader.num_workers = 1
    with pytest.raises(ValueError, match="should specify a valid start method"):
        loader.multiprocessing_context = "thread"


def test_a_subclass_with_its_own_init(loader_class):
    class Doubling(loader_class):
        def __init__(self, dataset, **options):
            self.factor = 2
            super().__init__(dataset, collate_fn=self.double, **options)

        def double(self, samples):
            return torch.tensor(samples) * self.factor

    loader = Doubling(Numbers(4), batch_size=2)
    assert_same(list(loader), [torch.tensor([0, 2]), torch.tensor([4, 6])])
    with pytest.raises(ValueError, match="after Doubling is initialized"):
        loader.batch_size = 3


def test_a_subclass_that_never_ends_an_epoch(loader_class):
    """A known recipe to keep workers: the batch sampler repeats, so one iterator serves all epochs."""

    class Repeat:
        def __init__(self, inner):
            self.inner = inner

        def __iter__(self):
            for _ in range(1_000):
                yield from iter(self.inner)
            raise AssertionError("read far ahead of what was asked for")

    class Endless(loader_class):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self):
            return len(self.batch_sampler.inner)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    loader = Endless(Numbers(5), batch_size=2, num_workers=1)
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
