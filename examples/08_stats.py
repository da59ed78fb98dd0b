"""Where the time goes: loader.stats() says which stage is the short one.

Storage and decoding are simulated here, so that each of the three can be made the slow one in turn.
"""

from __future__ import annotations

import time

import headrace as hr


def short_stage(*, latency: float = 0.0, decode: float = 0.0, step: float = 0.0) -> hr.Stats:
    """One epoch with reads, decoding and training steps that take so many seconds."""
    recipe = hr.Recipe(
        source=hr.synthetic.source(192, shape=(8, 8, 3), latency=latency),
        decode=hr.synthetic.decode(cost=decode),
    )
    with hr.DataLoader(recipe, batch_size=16, num_workers=1) as loader:
        for _ in loader:
            time.sleep(step)
        return loader.stats()


def main() -> None:
    """A slow loop, slow storage, a slow CPU."""
    for name, costs in {
        "slow training step": {"step": 0.05},
        "slow storage": {"latency": 0.02},
        "slow decoding": {"decode": 0.004},
    }.items():
        stats = short_stage(**costs)
        print(f"{name}: the loop waited {stats.waited:.2f} s")
        print(f"  spent: fetch {stats.fetch:.2f} s, decode {stats.decode:.2f} s")
        waits = f"{stats.wait_order:.2f} s, {stats.wait_fetch:.2f} s, {stats.wait_room:.2f} s"
        print(f"  wait_order, wait_fetch, wait_room: {waits}")
    print(stats)


if __name__ == "__main__":
    main()
