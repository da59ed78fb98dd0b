"""Writes the traces that the toy plant makes: ``python -m tests.planning.threads.make_traces``."""

from __future__ import annotations

import random

from headrace.planning.threads import Node
from tests.planning.threads.plant import Loop, Plant, ToyRank
from tests.planning.threads.trace import FOLDER, save


def main() -> None:
    """Each with noise, of 10 % and more."""
    one = Plant(Node(16, 0, 256), (ToyRank(train_seconds=0.02),))
    slow = tuple(ToyRank(latency=0.2 if rank == 7 else 0.02, batch=32) for rank in range(8))
    heavy = tuple(ToyRank(prepare_cpu_seconds=0.03 if rank == 1 else 0.005, batch=32) for rank in range(4))
    runs: dict[str, tuple[str, float, list[Plant]]] = {
        "toy-moving-bottleneck": (
            "One rank; storage slows down, then decoding gets heavier.",
            0.1,
            [one, one.changed(latency=0.1), one.changed(latency=0.1, prepare_cpu_seconds=0.02)],
        ),
        "toy-slow-directory": (
            "Eight ranks, one of them with slow storage.",
            0.1,
            [Plant(Node(16, 0, 96), slow)] * 2,
        ),
        "toy-heavy-samples": (
            "Four ranks on eight CPUs, one with heavy samples.",
            0.2,
            [Plant(Node(8, 0, 64), heavy)] * 2,
        ),
        "toy-shared-bandwidth": (
            "Eight ranks that get all that storage gives, and then twice as much.",
            0.1,
            [Plant(Node(16, 2, 256), slow, reads_per_second=rate) for rate in (800.0, 1600.0)],
        ),
        "toy-two-cpus": (
            "Two ranks on two CPUs, with reads that take time of their CPUs.",
            0.2,
            [Plant(Node(2, 0, 32), (ToyRank(read_cpu_seconds=0.002),) * 2)] * 2,
        ),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, (what, noise, plants) in runs.items():
        loop = Loop(noise=noise, luck=random.Random(name))
        looks = [(plant.node, needs) for plant in plants for needs, _ in loop.run(plant, 20)]
        save(FOLDER / f"{name}.jsonl", what, looks, most_turns=6)


if __name__ == "__main__":
    main()
