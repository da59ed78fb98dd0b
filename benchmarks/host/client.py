"""A job without workers: it asks for draws, takes them and says at once that they are done. Started by ``direct``.

All that a job does to be dealt batches is the product's own (``SharedClient``, ``SharedDraws``, ``Coordinator``,
``SharedDirectory``), and so are the reports, which go over a worker's connection; only nothing is prepared, and what
is published was never written. (The shared host maps no cache memory, so it does not see the difference.)

Takes its orders as JSON on the command line, and ``go`` on its standard input; answers with lines of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from headrace.channel.asking import greet
from headrace.channel.channel import send_within, wait
from headrace.coordinate.coordinator import Coordinator, Slot
from headrace.coordinate.grants import reports
from headrace.coordinate.messages import Order, OrderDone, encoder
from headrace.coordinate.protocol import PROTOCOL, Hello, Join
from headrace.coordinate.shared_directory import SharedDirectory
from headrace.coordinate.shared_draws import SharedDraws
from headrace.core.forms import CACHEABLE, Form
from headrace.host.client import SharedClient
from headrace.planning import Spent

_SLOT = Slot(0, 0)
_AHEAD = 3
"""Batches that are in the making at a time."""
_PATIENCE = 30.0
DECODE_S, AUGMENT_S, LONG_S = 300e-6, 25e-6, 1e-3
"""What decoding and augmenting a small image is said to take; and augmenting, where it is to be worth sharing."""


class Client:
    """One job."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._samples, self._bytes = wanted["samples"], wanted["bytes"]
        self.client = SharedClient(self._identities)
        batch, number = wanted["batch"], wanted["number"]
        self.client.open(
            Join(
                name=f"job {number}",
                group=f"{number}",
                rank=0,
                world_size=1,
                dataset="small",
                label="small",
                samples=self._samples,
                encoded="e",
                decoded="d",
                augmented="a" if wanted["alike"] else f"a{number}",
                body=self._bytes,
                budget=4 * self._samples * max(self._bytes, 4096),
                split=None,
                sampling=wanted["sampling"],
                eviction="auto",
                batch_size=batch,
                drop_last=False,
            )
        )
        self._channel = self.client.dial(_PATIENCE)
        _, attached = greet(self._channel, Hello(PROTOCOL, "worker", 0, self.client.token), _PATIENCE)
        if attached is not None:
            attached.close()
        directory = SharedDirectory(self.client, dict.fromkeys(CACHEABLE, 0))
        self._coordinator = Coordinator(directory, rows_per_order=batch)
        self._augment_s = LONG_S if wanted["alike"] else AUGMENT_S
        self._epoch = 0
        self.batches = 0

    def _identities(self) -> np.ndarray:
        return np.arange(2 * self._samples, dtype=np.int64).reshape(-1, 2)

    def run(self, epochs: int | None, until: float) -> None:
        """Some epochs, or for as long as is said."""
        last = None if epochs is None else self._epoch + epochs
        orders: list[Order] = []
        while time.monotonic() < until:
            while self._coordinator.outstanding < _AHEAD:
                found = self._coordinator.credit(_SLOT)
                if found is None:
                    if self._coordinator.later:
                        break
                    if self._epoch == last:
                        if not orders:
                            return
                        break
                    self._coordinator.feed(SharedDraws(self.client, seed=0, epoch=self._epoch))
                    self._epoch += 1
                    continue
                orders += found
            if not orders and (self._coordinator.later or self._coordinator.held):
                wait(self.client.fileno(), 0.1)
            self.client.pump()
            for drawn in self.client.take_updates():
                orders += self._coordinator.release(drawn)
            for order in orders:
                self._finish(order)
            orders.clear()
            while self._coordinator.take() is not None:
                self.batches += 1

    def _finish(self, order: Order) -> None:
        """An order is done, in no time."""
        rows = len(order.indices) // 8
        forms = np.frombuffer(order.forms, np.uint8) if order.forms else np.zeros(rows, np.uint8)
        decoded = int(np.count_nonzero(forms < int(Form.DECODED)))
        augmented = int(np.count_nonzero(forms < int(Form.AUGMENTED)))
        done = OrderDone(order.id, [])
        done.spent = Spent(
            decode=DECODE_S * decoded,
            augment=self._augment_s * augmented,
            fetched=decoded,
            decoded=decoded,
            prepared=augmented,
            cpu=DECODE_S * decoded + self._augment_s * augmented,
        )
        if order.grants:
            done.published = self._published(order)
        if order.ticket >= 0:
            for report in reports(order, done):
                send_within(self._channel, _PATIENCE, encoder.encode(report))
        self._coordinator.done(done)

    def _published(self, order: Order) -> bytes:
        """Every block that was granted, as if it were filled."""
        keep = np.frombuffer(order.keep, np.uint8)
        grants = np.frombuffer(order.grants, np.int64).reshape(-1, 3)
        parts = []
        for form in CACHEABLE:
            rows = np.flatnonzero(keep & (1 << int(form)))
            blocks = grants[grants[:, 0] == int(form)]
            found = np.empty((min(len(rows), len(blocks)), 4), np.int64)
            found[:, 0], found[:, 1] = rows[: len(found)], int(form)
            found[:, 2] = blocks[: len(found), 1]
            found[:, 3] = np.minimum(self._bytes, blocks[: len(found), 2])
            parts.append(found)
        return np.concatenate(parts).tobytes()


def main() -> None:
    """Fill the cache, wait for the others, ask for as much as there is."""
    wanted = json.loads(sys.argv[1])
    client = Client(wanted)
    never = time.monotonic() + 600
    print(json.dumps({"opened": True}), flush=True)
    sys.stdin.readline()
    client.run(1, never)
    print(json.dumps({"first": client.batches}), flush=True)
    sys.stdin.readline()
    client.run(wanted["settle"], never)
    print(json.dumps({"settled": client.batches}), flush=True)
    sys.stdin.readline()
    before, cpu, begun = client.batches, time.process_time(), time.monotonic()
    client.run(None, begun + wanted["seconds"])
    took = {"seconds": time.monotonic() - begun, "cpu_s": time.process_time() - cpu}
    print(json.dumps({"batches": client.batches - before, **took}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
