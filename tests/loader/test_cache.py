"""The cache: what it saves, what it never exceeds, and that nobody sees it in the batches."""

import math
import os
import re
import warnings

import numpy as np
import pytest

import headrace as hr
from headrace.cache import extents
from headrace.core.forms import Form
from headrace.core.sparse import PAGE
from tests.loader.helpers import (
    assert_same,
    counting,
    descendants,
    drain,
    images,
    recipe,
    targets,
    wait_until,
)

SHAPE = (32, 42, 3)
BYTES = math.prod(SHAPE)
EACH = PAGE
"""What a sample costs, encoded or decoded: a page."""
assert BYTES < extents.array_size(SHAPE, "uint8") == EACH


def make(source_recipe, **options):
    options = {"batch_size": 8, "shuffle": True, "seed": 4, "num_workers": 2, **options}
    return hr.DataLoader(source_recipe, **options)


def host(loader):
    return loader._epochs.session.host


def resident(loader):
    """Bytes of the arena and the cache that really take up memory."""
    return sum(os.fstat(fd).st_blocks * 512 for fd in (host(loader).arena.fd, host(loader).cache.arena.fd))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("split", [None, "auto", (0, 1, 0), (1, 0, 0), (1, 2, 0)], ids=str)
def test_when_everything_fits_a_second_epoch_reads_nothing(num_workers, split):
    source_recipe, source = counting(50, shape=SHAPE)
    with make(source_recipe, num_workers=num_workers, cache="1MiB", split=split) as loader:
        first = targets(loader)
        ahead = host(loader).ahead
        second = targets(loader)
        third = targets(loader)
    assert len({str(epoch) for epoch in (first, second, third)}) == 3
    reads = source.reads.tolist()
    if num_workers == 0:
        assert reads == [1] * 50
    else:
        # What the second epoch began with was ordered before the first had ended: the more, the more CPUs there are.
        assert max(reads) <= 2
        again = {index for index, count in enumerate(reads) if count > 1}
        assert again <= {index for batch in second[: ahead + 1] for index in batch}


def test_a_decoded_sample_is_not_decoded_again(tmp_path):
    def decode(data):
        with open(tmp_path / "decoded", "a") as file:
            file.write("x")
        return np.frombuffer(data, np.uint8)[:64].reshape(8, 8).copy()

    source = hr.synthetic.source(30, classes=30)
    for split, decoded in (((0, 1, 0), 31), ((1, 0, 0), 91)):
        (tmp_path / "decoded").write_text("")
        with make(
            hr.Recipe(source, decode=hr.deterministic(decode)), num_workers=0, cache="1MiB", split=split
        ) as loader:
            for _ in range(3):
                drain(loader)
        assert len((tmp_path / "decoded").read_text()) == decoded, "each epoch, and one first sample to try"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("fitting", "form", "split"),
    [(20, "decoded", (0, 1, 0)), (20, "encoded", (1, 0, 0)), (5, "decoded", None)],
)
def test_a_cache_that_fits_a_part_holds_exactly_that_part(num_workers, fitting, form, split):
    source_recipe, source = counting(50, shape=SHAPE)
    with make(source_recipe, num_workers=num_workers, cache=fitting * EACH + 63, split=split) as loader:
        for _ in range(3):
            drain(loader)
        assert wait_until(
            lambda: not host(loader).coordinator.open_orders or loader.stats() is None or num_workers
        )
        held = loader.stats().cache[form]
        assert (held.samples, held.budget) == (fitting, fitting * EACH + 63)
        assert held.bytes <= held.budget
        if num_workers == 0:
            stats = loader.stats()
            assert stats.hits + stats.fetched_samples == stats.samples == 150
            assert stats.hits == 2 * fitting
            assert stats.misses == stats.fetched_samples == source.reads.sum() == 150 - 2 * fitting
            assert stats.hit_rate == pytest.approx(2 * fitting / 150)


def test_hits_and_reads_add_up_with_workers_too():
    source_recipe, source = counting(48, shape=SHAPE)
    with make(source_recipe, cache=20 * EACH, persistent_workers=False) as loader:
        drain(loader)
        stats = loader.stats()
    assert stats.hits == 0
    assert stats.fetched_samples == source.reads.sum() == stats.samples == 48
    assert stats.fetched_bytes == 48 * BYTES


@pytest.mark.parametrize("budget", ["1MiB", 300_000, 40_000, 4500])
@pytest.mark.filterwarnings("ignore:cache= is 4.4 KiB")
def test_the_budget_is_never_exceeded(budget):
    big = (64, 64, 3)
    source_recipe, _ = counting(200, shape=big)
    with make(source_recipe, batch_size=16, cache=budget, split=(1, 2, 0)) as loader:
        for _ in range(3):
            drain(loader)
            stats = loader.stats()
            parts = stats.cache
            slots = stats.arena_bytes - sum(form.bytes for form in parts.values())
            for form in stats.cache.values():
                assert form.bytes <= form.budget
            whole = sum(form.budget for form in stats.cache.values())
            page_rounding = 3 * 65536
            assert resident(loader) <= slots + whole + page_rounding
        assert sum(form.budget for form in parts.values()) <= hr.core.sizes.parse_size(budget, total=0)
        if budget == "1MiB":
            # (they take whole pages: four for three and a bit)
            assert parts["decoded"].bytes > 0.7 * parts["decoded"].budget
            assert parts["encoded"].bytes > 0.9 * parts["encoded"].budget


def test_results_are_the_same_with_and_without(folder):
    def epochs(**options):
        with make(images(folder), **options) as loader:
            return [batch for _ in range(3) for batch in drain(loader)]

    plain = epochs()
    for options in (
        {"cache": "8MiB"},
        {"cache": "8MiB", "split": (1, 0, 0)},
        {"cache": 60_000, "split": (1, 4, 0)},
    ):
        assert_same(epochs(**options), plain)


def test_cached_samples_are_safe_from_what_user_code_does_to_them():
    def spoil(value):
        value = np.array(value, copy=False) if value.flags.writeable else value
        if value.flags.writeable:
            value[:] = 0
        return value.astype(np.int16)

    source = hr.synthetic.source(16, shape=(8,), classes=16)
    spoiling = hr.Recipe(source, decode=hr.synthetic.decode(), augment=[spoil])
    with make(spoiling, num_workers=0, cache="1MiB", shuffle=False) as loader:
        drain(loader)
        second = drain(loader)
    for values, labels in second:
        for row, index in zip(values, labels.tolist(), strict=True):
            content = list(source.content(index)[:8])
            assert row.tolist() in (content, [0] * 8)


def test_a_budget_for_augmented_samples_is_depth():
    shallow, deep = [], []
    for cache, found in ((None, shallow), ("4MiB", deep)):
        source_recipe, source = counting(200, shape=SHAPE)
        with make(
            source_recipe, cache=cache, split=(0, 0, 1) if cache else None, persistent_workers=False
        ) as loader:
            iterator = iter(loader)
            next(iterator)
            wait_until(lambda s=source: s.reads.sum() == 200, 0.7 if cache is None else 20)
            found.append(int(source.reads.sum()))
            del iterator
    assert deep == [200]
    assert shallow[0] < 200


def test_samples_of_one_batch_that_come_twice_are_cached_once():
    source_recipe, source = counting(8, shape=SHAPE)
    with hr.DataLoader(
        source_recipe, batch_size=6, sampler=[1, 1, 1, 2, 2, 1] * 3, num_workers=0, cache="1MiB"
    ) as loader:
        assert [batch[1].tolist() for batch in loader] == [[1, 1, 1, 2, 2, 1]] * 3
        assert loader.stats().cache["decoded"].samples == 2
    assert source.reads.tolist()[1:3] == [4, 2], "once for each row of the first batch"


def test_the_cache_is_kept_between_epochs_even_if_one_is_left_early():
    source_recipe, source = counting(40, shape=SHAPE)
    with make(source_recipe, num_workers=0, cache="1MiB") as loader:
        drain(loader)
        for _ in range(3):
            next(iter(loader))
        drain(loader)
    assert source.reads.tolist() == [1] * 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "lots"}, "not a size"),
        ({"cache": -1}, "negative"),
        ({"cache": 8}, "8 bytes, and no sample has room in less than 4096; write a size such as '8GiB'"),
        ({"cache": 1.5}, "neither a number of bytes nor a share of the memory; write '1.5GiB'"),
        ({"cache": "9999TiB"}, "of memory are available"),
        ({"split": (0, 1, 0)}, "nothing to split"),
        ({"cache": "1MiB", "split": (1, 2)}, "not a split"),
        ({"cache": "1MiB", "split": (0, 0, 0)}, "not all zero"),
        ({"cache": "1MiB", "split": "most"}, "not a split"),
    ],
    ids=str,
)
def test_options_that_cannot_be_obeyed_are_refused(options, message):
    with pytest.raises(hr.OptionError, match=message):
        hr.DataLoader(recipe(), **options)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_cache_in_which_no_sample_has_room_is_told_once(num_workers):
    """How large samples are is known when some were prepared."""
    source_recipe, _ = counting(20, shape=(64, 64, 3))
    with (
        warnings.catch_warnings(record=True) as said,
        make(source_recipe, num_workers=num_workers, cache=5000) as loader,
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            drain(loader)
    (warning,) = [one for one in said if "cache=" in str(one.message)]
    assert re.match(
        r"cache= is 4.9 KiB, and a sample takes 12.\d KiB, so nothing is cached", str(warning.message)
    )
    with make(source_recipe, num_workers=num_workers, cache=20_000) as loader, warnings.catch_warnings():
        warnings.filterwarnings("error", message="cache=")
        drain(loader)
        drain(loader)


def test_a_dataset_of_torch_cannot_be_cached():
    with pytest.raises(hr.OptionError, match="needs a recipe"):
        hr.DataLoader([1, 2, 3], cache="1MiB")


def test_memory_of_the_cache_is_free_when_the_loader_is_closed_while_others_live():
    """Workers of a second loader are forked while the first has its cache; they must not keep it alive."""
    source_recipe, _ = counting(100, shape=(64, 64, 3))
    first = make(source_recipe, cache="4MiB", num_workers=1)
    drain(first)
    fd = os.dup(host(first).cache.arena.fd)
    with make(recipe(20), num_workers=1) as second:
        drain(second)
        assert os.fstat(fd).st_blocks * 512 > 1_000_000
        first.close()
        assert len(descendants()) == 1
        left = os.fstat(fd).st_blocks * 512
        os.close(fd)
        assert left < 300_000, f"{left} bytes of a closed loader are still there"


def test_forms_are_counted_apart():
    source_recipe, _ = counting(40, shape=SHAPE)
    with make(source_recipe, num_workers=0, cache=20 * EACH, split=(1, 1, 0)) as loader:
        for _ in range(2):
            drain(loader)
        cache = loader.stats().cache
        directory = host(loader).coordinator.directory
    assert (cache["encoded"].samples, cache["decoded"].samples) == (10, 10)
    assert directory.hits[Form.ENCODED] + directory.hits[Form.DECODED] <= 20
    assert directory.hits[Form.NONE] + directory.hits[Form.ENCODED] + directory.hits[Form.DECODED] == 80
