"""The user's own functions: in every place where a recipe or a loader takes one."""

import os
import random
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler, get_worker_info

import headrace as hr
from headrace.loader import staffing
from tests.loader.helpers import (
    Squares,
    assert_same,
    counting,
    drain,
    flat,
    index_of,
    recipe,
    targets,
    wait_until,
)


def to_array(data):
    return np.frombuffer(data, np.uint8)[:12].reshape(3, 4).copy()


def make(decode=to_array, augment=(), size=20, **options):
    options = {"batch_size": 6, "num_workers": 2, "seed": 1, **options}
    source = hr.synthetic.source(size, classes=size)
    return hr.DataLoader(hr.Recipe(source, decode=decode, augment=augment), **options)


class Brighten:
    """Called as albumentations is: by keyword, giving a dict."""

    def __call__(self, *, image):
        return {"image": image.astype(np.int32) + 1000, "other": "ignored"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_functions_closures_lambdas_and_objects(num_workers):
    offset = 100

    def closure(value):
        return value.astype(np.int32) + offset

    steps = [closure, lambda value: value * 2, Brighten()]
    with make(augment=steps, num_workers=num_workers) as loader:
        rows = torch.cat([values.clone() for values, _ in loader])
    source = hr.synthetic.source(20)
    for index in range(20):
        expected = (to_array(source.content(index)).astype(np.int32) + 100) * 2 + 1000
        assert rows[index].tolist() == expected.tolist()


def test_what_functions_return_may_be_nested():
    def nested(data):
        return {"pixels": to_array(data), "more": (np.float32(index_of(data)), [to_array(data)[0]])}

    with make(nested) as loader:
        for values, labels in loader:
            assert list(values) == ["pixels", "more"]
            assert values["pixels"].shape == (len(labels), 3, 4)
            assert values["more"][0].tolist() == labels.tolist()
            assert torch.equal(values["more"][1][0], values["pixels"][:, 0])


def test_random_functions_draw_the_same_numbers_in_any_worker():
    def noisy(value):
        return value * 1000 + random.randrange(100) + np.random.randint(100) + torch.randint(100, ()).item()

    def epochs(num_workers):
        with make(
            augment=[lambda v: v.astype(np.int64), noisy], num_workers=num_workers, shuffle=True
        ) as loader:
            return drain(loader) + drain(loader)

    alone = epochs(0)
    assert_same(epochs(1), alone)
    assert_same(epochs(2), alone)
    by_sample = [dict(zip(b[1].tolist(), b[0].tolist(), strict=True)) for b in alone]
    first, second = ({k: v for b in part for k, v in b.items()} for part in (by_sample[:4], by_sample[4:]))
    assert all(first[index] != second[index] for index in range(20)), "each epoch draws anew"


def test_target_transform():
    source = hr.synthetic.source(20, shape=(2,), classes=20)
    one_hot = hr.Recipe(
        source, decode=hr.synthetic.decode(), target_transform=lambda t: np.eye(20, dtype=np.int8)[t]
    )
    with hr.DataLoader(one_hot, batch_size=6, num_workers=2) as loader:
        labels = torch.cat([labels.clone() for _, labels in loader])
    assert torch.equal(labels, torch.eye(20, dtype=torch.int8))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("where", ["recipe", "loader"])
def test_collate_gets_samples_of_any_size(num_workers, where):
    def decode(data):
        return np.full(1 + index_of(data) % 4, index_of(data))

    def pad(samples):
        longest = max(len(value) for value, _ in samples)
        rows = torch.zeros(len(samples), longest, dtype=torch.int64)
        for row, (value, _) in zip(rows, samples, strict=True):
            row[: len(value)] = torch.as_tensor(value)
        return {"rows": rows, "labels": torch.tensor([label for _, label in samples]), "text": "x" * 100_000}

    source = hr.synthetic.source(20, classes=20)
    ragged = hr.Recipe(source, decode=decode, collate=pad if where == "recipe" else None)
    options = {"collate_fn": pad} if where == "loader" else {}
    with hr.DataLoader(ragged, batch_size=6, num_workers=num_workers, **options) as loader:
        for _ in range(2):
            kept = list(loader)
            assert flat(batch["labels"].tolist() for batch in kept) == list(range(20))
            for batch in kept:
                assert batch["rows"].shape[1] == max(1 + label % 4 for label in batch["labels"].tolist())
                assert torch.equal(batch["rows"][:, 0], batch["labels"])
                assert len(batch["text"]) == 100_000


def test_collate_results_that_grow_move_to_larger_slots():
    def decode(data):
        return np.full(10 ** (index_of(data) % 5), index_of(data), np.int32)

    with make(
        decode, batch_size=2, size=30, collate_fn=lambda samples: [torch.as_tensor(v) for v, _ in samples]
    ) as loader:
        for _ in range(3):
            for at, batch in enumerate(loader):
                for index, value in zip((2 * at, 2 * at + 1), batch, strict=True):
                    assert value.shape == (10 ** (index % 5),)
                    assert (value == index).all()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_that_fails_says_where(num_workers):
    def collate(samples):
        raise KeyError("labels")

    with make(collate_fn=collate, num_workers=num_workers) as loader:
        with pytest.raises(KeyError, match="labels") as caught:
            next(iter(loader))
        assert "in collate" in str(caught.value)


@pytest.mark.parametrize("rule", ["skip", "substitute"])
def test_collate_and_bad_samples(rule):
    def decode(data):
        if index_of(data) in (3, 7):
            raise ValueError("bad")
        return np.array([index_of(data)])

    def collate(samples):
        return [int(value[0]) for value, _ in samples]

    with make(decode, collate_fn=collate, on_error=rule, error_budget=2, batch_size=5) as loader:
        batches = list(loader)
    if rule == "skip":
        assert batches == [[0, 1, 2, 4], [5, 6, 8, 9], [*range(10, 15)], [*range(15, 20)]]
    else:
        assert [len(batch) for batch in batches] == [5] * 4
        assert set(flat(batches)) == set(range(20)) - {3, 7}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "sampler",
    [
        [4, 2, 2, 19],
        range(5, 9),
        np.array([3, 1, 2]),
        [np.int64(3), np.uint8(1)],
        torch.tensor([7, 8]),
    ],
    ids=str,
)
def test_samplers_give_integers_of_any_kind(num_workers, sampler):
    with make(sampler=sampler, batch_size=3, num_workers=num_workers) as loader:
        assert flat(targets(loader)) == [int(index) for index in sampler]
        assert len(loader) == -(-len(sampler) // 3)


def test_samplers_of_torch():
    with make(sampler=SubsetRandomSampler(np.arange(5, 15)), batch_size=4) as loader:
        assert sorted(flat(targets(loader))) == list(range(5, 15))
    with make(sampler=WeightedRandomSampler([1.0] * 20, 50), batch_size=4) as loader:
        assert len(flat(targets(loader))) == 50


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_sampler_gives_batches_of_any_size(num_workers):
    batches = [[1], [2, 3, 4, 5, 6, 7, 8], [9, 9], [0, 19, 3]]
    source = hr.synthetic.source(20, shape=(50,), classes=20)
    plain = hr.Recipe(source, decode=hr.synthetic.decode())
    with hr.DataLoader(plain, batch_sampler=batches, num_workers=num_workers) as loader:
        for _ in range(2):
            found = drain(loader)
            assert [labels.tolist() for _, labels in found] == batches
            for values, labels in found:
                assert [index_of(bytes(value.tolist())) for value in values] == labels.tolist()
        assert len(loader) == 4


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("sampler", "kind"), [([0, 99], IndexError), ([-1], IndexError), (["a"], TypeError)], ids=str
)
def test_keys_that_are_no_samples_are_refused(num_workers, sampler, kind):
    with (
        make(sampler=sampler, num_workers=num_workers) as loader,
        pytest.raises(kind, match="the sampler gave"),
    ):
        list(loader)


def test_a_sampler_that_fails_says_so():
    def failing():
        yield from (1, 2, 3)
        raise ArithmeticError("sampler broke")

    class Sampler:
        def __iter__(self):
            return failing()

        def __len__(self):
            return 10

    with (
        make(sampler=Sampler(), batch_size=2, num_workers=1) as loader,
        pytest.raises(ArithmeticError, match="broke"),
    ):
        list(loader)


def test_code_that_holds_the_interpreter_lock_gets_processes(monkeypatch):
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 4)

    def slow(value):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return value

    with make(
        augment=[hr.deterministic(slow)], size=4000, batch_size=10, num_workers=None, shuffle=True
    ) as loader:
        found = []
        for _, labels in loader:
            found += labels.tolist()
            if loader.stats().gil_held >= 0:
                break
        stats = loader.stats()
        assert stats.gil_held > 0.4
        assert (stats.workers, stats.threads) == (4, 1)
        assert wait_until(lambda: len(loader._epochs.session.host.workers) == 4)
        assert len(set(found)) == len(found)


def test_code_that_releases_the_interpreter_lock_gets_threads(monkeypatch):
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 4)

    def slow(value):
        time.sleep(0.02)
        return np.array([os.getpid(), threading.get_native_id()])

    with make(augment=[hr.deterministic(slow)], size=4000, batch_size=10, num_workers=2) as loader:
        found, seen, adapted = [], {}, 0
        for where, labels in loader:
            found += labels.tolist()
            for process, thread in where.tolist():
                seen.setdefault(process, set()).add(thread)
            adapted += loader.stats().gil_held >= 0
            if adapted == 20:
                break
        stats = loader.stats()
        assert stats.gil_held < 0.4
        assert (stats.workers, stats.threads) == (2, 2)
        assert [len(threads) for threads in seen.values()] == [2, 2]
        assert found == list(range(len(found)))


def test_random_functions_get_a_process_each(monkeypatch):
    """Threads of one process would draw from the same global generators."""
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 3)
    with make(augment=[lambda value: value + np.random.randint(9)], num_workers=None, size=40) as loader:
        drain(loader)
        stats = loader.stats()
        assert (stats.workers, stats.threads, stats.gil_held) == (3, 1, -1.0)


def test_collate_functions_get_threads_and_draw_alone(monkeypatch):
    """Samples are prepared beside each other; who draws from generators that all threads share is alone with them."""

    def decode(data):
        time.sleep(0.01)
        return np.array([index_of(data)])

    def collate(samples):
        first = torch.rand(())
        time.sleep(0.001)
        return torch.stack([first, torch.rand(())]), threading.get_native_id()

    def drawn(cpus, batches):
        monkeypatch.setattr(staffing, "cpus_per_rank", lambda: cpus)
        found, threads, adapted = [], set(), 0
        with make(decode, size=4000, batch_size=4, num_workers=1, seed=4, collate_fn=collate) as loader:
            for numbers, thread in loader:
                found.append(numbers.tolist())
                adapted += loader.stats().gil_held >= 0
                threads |= {thread} if adapted > 8 else set()
                if len(found) == batches or (batches is None and adapted == 24):
                    return found, threads, loader.stats(), loader._epochs.session.host.ahead

    found, threads, stats, ahead = drawn(4, None)
    assert stats.gil_held < 0.4 and (stats.workers, stats.threads) == (1, 4)
    assert len(threads) > 1 and ahead == 5, "a batch for each, and one to come"
    alone, threads, stats, ahead = drawn(1, 12)
    assert (stats.workers, stats.threads, ahead) == (1, 1, 2)
    assert found[:12] == alone and len(threads) <= 1


def test_a_number_of_workers_of_ones_own_is_kept(monkeypatch):
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 8)

    def slow(value):
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        return value

    with make(augment=[hr.deterministic(slow)], size=600, batch_size=10, num_workers=1) as loader:
        for _ in loader:
            if loader.stats().gil_held >= 0:
                break
        assert (loader.stats().workers, loader.stats().threads) == (1, 1)


def test_worker_init_fn_runs_in_each_worker_before_anything_else(tmp_path):
    def init(worker):
        info = get_worker_info()
        assert (info.id, info.num_workers) == (worker, 2)
        (tmp_path / f"{worker}-{os.getpid()}").touch()
        os.environ["INITIALISED"] = "yes"

    def decode(data):
        assert os.environ.get("INITIALISED") == "yes"
        return to_array(data)

    with make(decode, worker_init_fn=init) as loader:
        drain(loader)
        drain(loader)
        workers = {f"{worker.id}-{worker.pid}" for worker in loader._epochs.session.host.workers}
    assert {path.name for path in tmp_path.iterdir()} == workers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_user_code_runs_in_the_main_thread_of_its_process(num_workers):
    def decode(data):
        return np.array(threading.current_thread() is threading.main_thread())

    with make(decode, num_workers=num_workers) as loader:
        assert all(values.all() for values, _ in loader)


def test_functions_may_not_ruin_the_jobs_random_numbers():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    with make(augment=[lambda value: value + np.random.randint(9)], num_workers=0) as loader:
        drain(loader)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == expected


def test_system_exit_in_user_code_does_not_end_the_job():
    def decode(data):
        if index_of(data) == 13:
            raise SystemExit(3)
        return to_array(data)

    with make(decode) as loader, pytest.raises(RuntimeError, match="SystemExit"):
        list(loader)


def test_samples_can_be_looked_at_one_by_one():
    loader = make(augment=[Brighten()])
    value, label = loader.dataset[7]
    assert label == 7
    assert value.tolist() == (to_array(hr.synthetic.source(20).content(7)).astype(np.int32) + 1000).tolist()
    assert len(loader.dataset) == 20


def test_datasets_of_torch_take_auto_workers():
    loader = hr.DataLoader(Squares(20), batch_size=4, num_workers="auto", persistent_workers=True)
    assert flat(targets(loader)) == list(range(20))
    assert loader.stats().workers == loader.num_workers >= 1
    loader.close()
    with pytest.raises(TypeError, match="auto"):
        hr.DataLoader(Squares(20), num_workers="many")


def test_a_recipe_of_bytes_alone_needs_a_collate():
    _, source = counting(6)
    with (
        hr.DataLoader(hr.Recipe(source), batch_size=3, num_workers=1) as loader,
        pytest.raises(hr.HeadraceError, match="collate="),
    ):
        list(loader)
    with hr.DataLoader(
        hr.Recipe(source, collate=lambda samples: [index_of(data) for data, _ in samples]),
        batch_size=3,
        num_workers=1,
    ) as loader:
        assert list(loader) == [[0, 1, 2], [3, 4, 5]]


def test_a_recipe_without_targets_gives_values_alone():
    plain = hr.Recipe(hr.synthetic.source(6, shape=(3,)), decode=hr.synthetic.decode())
    with hr.DataLoader(plain, batch_size=4, num_workers=1) as loader:
        assert [tuple(batch.shape) for batch in loader] == [(4, 3), (2, 3)]
    assert recipe(3).source.targets is not None
