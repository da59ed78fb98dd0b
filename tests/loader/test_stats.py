"""stats(): numbers that agree with each other and with what happened."""

import time

import msgspec
import pytest
import torch

import headrace as hr
from headrace.loader import staffing
from tests.loader.helpers import Squares, counting, drain, flat, recipe, targets


@pytest.mark.parametrize("num_workers", [0, 2])
def test_numbers_agree_with_what_was_delivered(num_workers):
    source_recipe, source = counting(50)
    with hr.DataLoader(
        source_recipe, batch_size=8, num_workers=num_workers, persistent_workers=False
    ) as loader:
        before = loader.stats()
        assert (before.batches, before.samples, before.fetched_samples, before.slots) == (0, 0, 0, 0)
        drain(loader)
        first = loader.stats()
        drain(loader)
        second = loader.stats()
    assert (first.batches, first.samples, first.epoch) == (7, 50, 0)
    assert (second.batches, second.samples, second.epoch) == (14, 100, 1)
    assert first.fetched_samples == 50
    assert first.fetched_bytes == 50 * 60
    assert source.reads.sum() == 100
    assert (first.hits, first.hit_rate, first.bad_samples, first.restarts) == (0, 0.0, 0, 0)
    assert first.workers == num_workers
    assert first.threads >= 1
    assert first.waited >= 0
    assert first.fetch > 0
    assert first.augment + first.decode > 0


def test_numbers_only_grow_and_never_run_ahead_of_the_draws():
    source_recipe, _ = counting(80)
    with hr.DataLoader(
        source_recipe, batch_size=8, num_workers=2, cache="1MiB", shuffle=True, seed=1
    ) as loader:
        last = loader.stats()
        for _ in range(3):
            for _ in loader:
                stats = loader.stats()
                for name in (
                    "batches",
                    "samples",
                    "waited",
                    "fetch",
                    "fetched_samples",
                    "fetched_bytes",
                    "hits",
                    "misses",
                ):
                    assert getattr(stats, name) >= getattr(last, name), name
                most = stats.samples + 8 * (loader._epochs.session.host.ahead + 1)
                assert stats.samples <= stats.hits + stats.fetched_samples <= most
                assert stats.samples <= stats.hits + stats.misses <= most
                assert stats.leased <= stats.slots
                last = stats


def test_stats_can_be_read_at_any_time_and_printed():
    loader = hr.DataLoader(recipe(20), batch_size=8, num_workers=1, cache="1MiB")
    for moment in ("before", "during", "after", "closed"):
        if moment == "during":
            iterator = iter(loader)
            next(iterator)
        if moment == "after":
            list(iterator)
        if moment == "closed":
            loader.close()
        text = str(loader.stats())
        for word in ("delivered", "workers", "spent", "waits", "fetched", "memory"):
            assert word in text
    assert "cache       decoded: 20 samples" in text
    assert "20 samples in 3 batches" in text
    assert msgspec.json.decode(msgspec.json.encode(loader.stats()))["samples"] == 20


def test_what_is_kept_shows():
    with hr.DataLoader(recipe(40), batch_size=8, num_workers=1) as loader:
        kept = list(loader)
        assert loader.stats().leased == 5
        memory = loader.stats().arena_bytes
        assert memory >= 5 * 8 * 60
        del kept
        assert loader.stats().leased == 0


def test_memory_of_the_cache_counts_as_it_fills():
    source_recipe, _ = counting(64, shape=(64, 64, 3))
    with hr.DataLoader(source_recipe, batch_size=8, num_workers=1, cache="8MiB") as loader:
        next(iter(loader))
        early = loader.stats()
        assert early.arena_bytes < 5 << 20, "a budget is not yet use"
        drain(loader)
        late = loader.stats()
        assert late.cache["decoded"].bytes >= 64 * 64 * 64 * 3
        assert late.arena_bytes >= late.cache["decoded"].bytes


def test_torch_datasets_have_stats_too():
    loader = hr.DataLoader(Squares(20), batch_size=4, num_workers=2, persistent_workers=True)
    assert flat(targets(loader)) == list(range(20))
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.workers) == (5, 20, 2)
    assert str(stats)
    loader.close()
    inline = hr.DataLoader(Squares(20), batch_size=4)
    list(inline)
    assert (inline.stats().batches, inline.stats().workers) == (5, 0)


def test_depth_grows_where_an_uneven_loop_waits_beside_idle_workers(monkeypatch):
    """Bursts: a long pause, then batches as fast as they come. More of them ahead fill the pause."""
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 2)  # (with more, enough are ahead from the start)
    # Storage that takes its time, and no processor: on a busy machine workers are idle as well.
    source = hr.synthetic.source(1600, bytes_per_sample=64, latency=0.01)
    uneven = hr.Recipe(source, hr.synthetic.decode(shape=(4,)))
    with hr.DataLoader(uneven, batch_size=16, num_workers=2) as loader:
        before = None
        for number, _ in enumerate(loader):
            before = loader.stats().slots if number == 4 else before
            if before is not None and loader.stats().slots > before:
                break
            if number % 4 == 0:
                time.sleep(0.1)
        assert loader.stats().slots > before


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_an_epoch_is_no_reason_to_prepare_more_ahead(stream):
    """Workers have nothing to do then, and the loop waits for the first batch of the next. (An epoch of eight batches
    is too short to tell anything else by it.)"""

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            time.sleep(0.002)
            return index

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            for index in range(worker.id, 40, worker.num_workers):
                time.sleep(0.002)
                yield index

    options = {"batch_size": 5, "num_workers": 2, "persistent_workers": True}
    with hr.DataLoader(Stream() if stream else Slow(), **options) as loader:
        for _ in range(12):
            assert sorted(index for batch in loader for index in batch.tolist()) == list(range(40))
        assert loader._epochs.session.host.ahead == 3


@pytest.mark.parametrize("cpus", [1, 2, 16, 64])
@pytest.mark.parametrize("batch_size", [1, 16, 256])
def test_depth_may_grow_however_many_hands_there_are(monkeypatch, cpus, batch_size):
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: cpus)
    with hr.DataLoader(recipe(20), batch_size=batch_size, num_workers=1) as loader:
        next(iter(loader))
        assert loader._epochs.session._depth.most > loader._epochs.session.host.ahead


def test_a_datasets_loader_begins_with_a_batch_for_each_worker_and_one_more():
    with hr.DataLoader(list(range(40)), batch_size=2, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader._epochs.session.host.ahead == 3
        assert loader._epochs.session._depth.most == 4
    # One more would be no small thing where batches are large.
    with hr.DataLoader(torch.zeros(40, 1 << 20), batch_size=4, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader._epochs.session.host.ahead == 2
        assert loader._epochs.session._depth.most == 4
    with hr.DataLoader(list(range(40)), batch_size=2, num_workers=2, prefetch_factor=3) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader._epochs.session.host.ahead == 6 and loader._epochs.session._depth is None
