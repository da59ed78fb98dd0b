"""Storage that cannot give everything just now: samples come late, and none is lost or taken for a bad one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.core.errors import StorageUnavailable
from tests.loader.helpers import flat, targets
from tests.recipes.helpers import jpeg, picture, png
from tests.sources.http_store import HttpSource, HttpStore, content, serving

SIZE = 48


def decode(data: Any) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()


def loader(store: HttpStore, num_workers: int, **options: Any) -> Any:
    recipe = hr.Recipe(HttpSource(store, SIZE), decode=decode)
    return hr.DataLoader(recipe, **{"batch_size": 8, "num_workers": num_workers, **options})


def moody(store: HttpStore, index: int, times: int) -> str:
    """Refuses a third of the samples once or twice each time that they are wanted, and drops some connections."""
    if index % 3 == 0:
        return "busy" if times % 3 else "give"
    return "drop" if index % 5 == 1 and times % 2 else "give"


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_every_sample_comes_once_whatever_was_refused(num_workers: int) -> None:
    with serving(moody) as store, loader(store, num_workers, shuffle=True) as made:
        for _ in range(2):
            batches = list(made)
            assert sorted(flat([labels.tolist() for _, labels in batches])) == list(range(SIZE))
            for values, labels in batches:
                for value, label in zip(values, labels, strict=True):
                    assert value.numpy().tobytes() == content(int(label))
        assert not made.bad_samples
        assert made.stats().restarts == 0
        assert store.asked[3] >= 6 and store.asked[1] >= 4 and store.asked[2] >= 2


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("how", ["refused", "held back"])
def test_an_order_that_waits_holds_up_no_other(num_workers: int, how: str) -> None:
    """A sample is not given before those of later orders were asked for: else nothing would ever come."""
    later = range(8, 16)

    def stuck(store: HttpStore, index: int, times: int) -> str:
        if index != 1:
            return "give"
        if how == "held back":
            store.wait_for(later)
            return "give"
        with store.changed:
            return "give" if set(later) <= set(store.asked) else "busy"

    with serving(stuck) as store, loader(store, num_workers) as made:
        assert flat(targets(made)) == list(range(SIZE))
        assert not made.bad_samples


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_storage_never_gives_ends_the_epoch(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "0.5")

    def busy(store: HttpStore, index: int, times: int) -> str:
        return "busy" if index == 21 else "give"

    with (
        serving(busy) as store,
        loader(store, num_workers, on_error="skip", error_budget=SIZE) as made,
        pytest.raises(StorageUnavailable) as caught,
    ):
        list(made)
    text = str(caught.value)
    assert f"storage did not give sample 21 (http://127.0.0.1:{store.server_port}/21) for " in text
    assert "NotNow: status 503" in text and "HEADRACE_STORAGE_PATIENCE" in text
    assert not made.bad_samples, "it is not one that was skipped"
    assert store.asked[21] > 2


def test_a_read_that_never_ends_ends_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "1")

    def silent(store: HttpStore, index: int, times: int) -> str:
        if index == 21:
            store.wait_for([-1])
        return "give"

    with serving(silent) as store:
        with loader(store, 1) as made, pytest.raises(StorageUnavailable, match="it does not answer"):
            list(made)
        assert store.asked[21] > 1, "it was tried by other threads, too"
        with store.changed:
            store.asked[-1] = 1
            store.changed.notify_all()


def test_a_read_that_hangs_is_tried_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "5")

    def once(store: HttpStore, index: int, times: int) -> str:
        if index == 21 and times == 1:
            store.wait_for([-1])
        return "give"

    with serving(once) as store:
        with loader(store, 1) as made:
            assert flat(targets(made)) == list(range(SIZE))
            assert not made.bad_samples
        with store.changed:
            store.asked[-1] = 1
            store.changed.notify_all()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_is_one_at_once(num_workers: int) -> None:
    def gone(store: HttpStore, index: int, times: int) -> str:
        return "gone" if index == 7 else moody(store, index, times)

    with serving(gone) as store, loader(store, num_workers, on_error="skip") as made:
        assert flat(targets(made)) == [index for index in range(SIZE) if index != 7]
        assert [bad.index for bad in made.bad_samples] == [7]
        assert store.asked[7] <= 2, "once in this epoch, and in the next one, if that has been begun"


def deadly(data: Any) -> np.ndarray:
    if data[0] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return decode(data)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_that_are_killed_with_many_orders_in_hand(num_workers: int) -> None:
    """Their orders are given to others, and what killed them runs alone until it is known."""
    with serving(moody) as store:
        recipe = hr.Recipe(HttpSource(store, SIZE), decode=deadly)
        options = {"batch_size": 16, "num_workers": num_workers, "on_error": "skip"}
        with hr.DataLoader(recipe, **options) as made:
            assert flat(targets(made)) == [index for index in range(SIZE) if index != 13]
            assert [bad.index for bad in made.bad_samples] == [13]
            assert "killed the worker" in made.bad_samples[0].reason


def test_a_mask_that_is_not_there_is_missed_at_once(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(picture(40, 50, number)))
        (tmp_path / f"{number}.png").write_bytes(png(picture(40, 50, number)[..., :1]))
    masks = [str(tmp_path / f"{number}.png") for number in range(8)]
    source = hr.files([tmp_path / f"{number}.jpg" for number in range(8)], targets=masks)
    recipe = hr.Recipe(source, hr.image.decode(), [hr.image.resize((16, 16))], follow=hr.image.mask())
    os.unlink(masks[3])
    with hr.DataLoader(recipe, batch_size=4, num_workers=1, on_error="skip", error_budget=8) as made:
        assert [len(found) for _, found in made] == [3, 4]
        assert [bad.index for bad in made.bad_samples] == [3]


def test_a_loader_that_is_closed_waits_for_no_storage() -> None:
    """Nobody sleeps out the hour that storage asks for: the test would not end."""

    def busy(store: HttpStore, index: int, times: int) -> str:
        return "give" if index < 8 else "busy"

    with serving(busy, retry_after="3600") as store:
        with loader(store, 1) as made:
            assert next(iter(made))[1].tolist() == list(range(8))
            store.wait_for([8])
        with loader(store, 1) as made:
            iterator = iter(made)
            assert next(iterator)[1].tolist() == list(range(8))
            del iterator
            assert next(iter(made))[1].tolist() == list(range(8)), (
                "what is left behind holds up no other epoch"
            )
