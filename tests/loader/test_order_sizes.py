"""How batches are cut into orders while others help, and when they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.layout import Field, RowLayout
from headrace.host.embedded import ProcessHost
from headrace.loader import recipe_depth
from headrace.loader.recipe_depth import RecipeDepth, RecipeOrders
from headrace.planning import Spent


class FakeHost(ProcessHost):
    """What a depth looks at."""

    def __init__(self, orders: RecipeOrders) -> None:
        self.ahead, self.spare = orders.ahead, 0
        self.coordinator: Any = SimpleNamespace(rows_per_order=orders.rows, outstanding=0)
        self.totals: Any = SimpleNamespace(waited=0.0, spent=Spent())
        self.slots: Any = SimpleNamespace(keep=0)


def orders_of(batch: int, helpers: Any, ahead: int | None = None) -> RecipeOrders:
    spec: Any = SimpleNamespace(
        batches=SimpleNamespace(size=batch),
        work=SimpleNamespace(ahead=ahead),
        data=SimpleNamespace(collator=None),
    )
    staffing: Any = SimpleNamespace(hands=1, workers=1)
    return RecipeOrders(spec, staffing, None, helpers)


def go_on(depth: RecipeDepth, host: FakeHost, *, rows: int, helped: int, each: float = 0.0) -> None:
    """Sixteen batches, of which so many rows are made elsewhere; each that is made here takes 1 ms, and ``each`` what
    is said of those elsewhere."""
    host.totals.spent.helped += helped
    host.totals.spent.helped_cpu += helped * each
    host.totals.spent.cpu += 1e-3 * (rows - helped)
    for _ in range(16):
        depth.taken()


def test_orders_are_small_while_others_help_and_as_ever_where_they_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe_depth.environment, "fixed_staff", lambda: True)
    there = 8
    orders, alone = orders_of(64, lambda: there), orders_of(64, lambda: 0)
    assert (orders.rows, alone.rows) == (16, 32)
    assert orders.ahead * 64 > 2 * 9 * 16, "each helper has something to do from the first batch on"
    host = FakeHost(orders)
    depth = RecipeDepth(host, orders, SimpleNamespace(hands=1, workers=1), 0)  # type: ignore[arg-type]
    depth.laid_out(RowLayout((Field((8, 8, 3), "uint8"),)))
    go_on(depth, host, rows=1024, helped=900)
    assert host.coordinator.rows_per_order == 16
    go_on(depth, host, rows=1024, helped=0)
    assert host.coordinator.rows_per_order == 32, "nobody helps, and orders are as large as is worth while"
    go_on(depth, host, rows=1024, helped=10)
    assert host.coordinator.rows_per_order == 16
    there = 0  # (they are gone, and what came last came from them)
    go_on(depth, host, rows=1024, helped=10)
    assert host.coordinator.rows_per_order == 32


def test_orders_grow_where_rows_are_cheap_elsewhere_and_shrink_again_where_they_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe_depth.environment, "fixed_staff", lambda: True)
    orders = orders_of(64, lambda: 3)
    host = FakeHost(orders)
    depth = RecipeDepth(host, orders, SimpleNamespace(hands=1, workers=1), 0)  # type: ignore[arg-type]
    depth.laid_out(RowLayout((Field((8, 8, 3), "uint8"),)))
    seen = []
    for each in (4e-3, 1e-3, 1.4e-3, 0.0, 4e-3, 0.3e-3):
        go_on(depth, host, rows=1024, helped=900, each=each)
        seen.append(host.coordinator.rows_per_order)
    assert seen == [16, 32, 32, 32, 16, 64], (
        "by what was spent last; a little less or not known changes nothing"
    )


def test_what_users_have_chosen_stays() -> None:
    assert orders_of(64, lambda: 8, ahead=3).ahead == 3
