"""Decode steps of a set cost."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any

import numpy as np
import pytest

from headrace import image, synthetic
from headrace.core.layout import Field
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes import synthetic_decode as spin_module
from headrace.recipes.synthetic_decode import spin
from tests.recipes.helpers import order, rows


def test_shapes_are_declared_and_content_comes_from_the_sample() -> None:
    source = synthetic.source(5, bytes_per_sample=100, shape=(8, 6, 3), classes=2)
    program = compile_recipe(Recipe(source, synthetic.decode()), caches_decoded=True)
    assert program.layout is not None
    assert program.layout.fields == (Field((8, 6, 3), "uint8"), Field((), "int64"))
    got = rows(Recipe(source, synthetic.decode()), [3, 4], caches=True)
    want = np.resize(np.frombuffer(source.content(3), np.uint8), (8, 6, 3))
    np.testing.assert_array_equal(got[0][0], want)
    assert got[1].tolist() == [1, 0]
    flat = compile_recipe(Recipe(source, synthetic.decode(shape=(7,))), caches_decoded=False)
    assert flat.layout is not None
    assert flat.layout.fields[0] == Field((7,), "uint8")


def test_image_steps_follow() -> None:
    source = synthetic.source(4, shape=(40, 40, 3))
    recipe = Recipe(source, synthetic.decode(), [image.random_resized_crop(16), image.horizontal_flip()])
    program = compile_recipe(recipe, caches_decoded=True)
    assert program.layout is not None
    assert program.layout.fields[0] == Field((16, 16, 3), "uint8", channels_last=True)
    cold, work = rows(recipe, [0, 1], caches=True), order(source, [0, 1], keep=True)
    program.run(work, [np.empty((2, 16, 16, 3), np.uint8)])
    warm = rows(recipe, [0, 1], caches=True, cached=work.kept)
    np.testing.assert_array_equal(cold[0], warm[0])


def test_the_cost_is_in_proportion_to_what_the_machine_does_per_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(spin_module, "_rounds_per_second", lambda: 1000.0)
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda name, secret, salt, rounds: asked.append(rounds))
    for seconds in (0.5, 2.0, 1e-9, 0.0):
        spin(seconds, holds_gil=False)
    assert asked == [500, 2000, 1]


def test_the_machine_is_measured_in_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])

    def work(name: str, secret: bytes, salt: bytes, rounds: int) -> None:
        clock[0] += rounds / 64_000

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", work)
    assert spin_module._rounds_per_second.__wrapped__() == pytest.approx(64_000)


def test_with_the_gil_it_spins_until_its_processor_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks) / 10)
    spin(2.0, holds_gil=True)
    assert next(ticks) == 21


def test_only_the_one_that_holds_the_gil_keeps_others_waiting() -> None:
    """While a spinning thread is inside its one call, this thread gets to run Python code all the time."""
    spin(0.001, holds_gil=False)
    done = threading.Event()

    def work(**options: Any) -> None:
        spin(0.2, **options)
        done.set()

    thread = threading.Thread(target=work, kwargs={"holds_gil": False})
    thread.start()
    rounds = 0
    while not done.is_set():
        rounds += 1
    thread.join()
    assert rounds > 10
