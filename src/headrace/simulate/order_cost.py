"""What an order costs, and what comes of it: prices for what the product says is to be done with its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.grants import Grants
from headrace.coordinate.messages import Order
from headrace.coordinate.row_work import COPY, RUN, Rows, RowWork
from headrace.core import random as rnd
from headrace.core.forms import Form
from headrace.simulate.scenario import Costs, Scenario
from headrace.simulate.tally import Paid

Ids = NDArray[np.int64]


class OrderCost(NamedTuple):
    """What is to be done for some rows."""

    seconds: float
    """Of a processor of speed 1."""
    missing: Rows
    """Rows that have to be read."""
    kept: list[tuple[Form, Rows]]
    """Rows that are published, by form, as a worker asks for room for them."""
    decoded: int
    decoded_fully: int
    """Rows of these that are decoded as a whole."""
    prepared: int
    """Rows that are augmented; then those that are copied, and those that are kept in another form than decoded."""
    copied: int
    small: int
    decoding: float
    """Seconds of it, of a processor of speed 1; and of augmenting, with all else that hands do."""
    augmenting: float


def pay(work: OrderCost, paid: Paid) -> None:
    """Count what some rows cost."""
    paid.order += 1
    paid.fetch += len(work.missing)
    paid.decode += work.decoded - work.decoded_fully
    paid.decode_whole += work.decoded_fully
    paid.augment += work.prepared
    paid.copy += work.copied
    paid.keep += work.small


def work_of(order: Order, costs: Costs) -> OrderCost:
    """The work for the rows of an order."""
    todo = RowWork(order)
    missing = todo.missing()
    ways = np.bincount(todo.ways, minlength=4).tolist()
    decoded = int(np.count_nonzero(todo.is_decoded()))
    kept: list[tuple[Form, Rows]] = []
    decoded_fully = 0
    keeps = int(np.bitwise_or.reduce(todo.keep))
    if keeps & (1 << Form.ENCODED):
        kept.append((Form.ENCODED, todo.encoded(missing)))
    if keeps & (1 << Form.AUGMENTED):
        kept.append((Form.AUGMENTED, todo.augmented()))
    small = sum(len(rows) for _, rows in kept)
    if keeps & (1 << Form.DECODED):
        kept.append((Form.DECODED, todo.decoded()))
        decoded_fully = len(kept[-1][1])
    decoding = (decoded - decoded_fully) * costs.decode + decoded_fully * costs.decode_whole
    augmenting = costs.order + ways[RUN] * costs.augment + ways[COPY] * costs.copy + small * costs.keep
    seconds = len(missing) * costs.fetch + decoding + augmenting
    return OrderCost(
        seconds, missing, kept, decoded, decoded_fully, ways[RUN], ways[COPY], small, decoding, augmenting
    )


class Sizes:
    """Bytes of samples, by form."""

    def __init__(self, scenario: Scenario) -> None:
        self._means = np.array(
            [0, *(scenario.bytes_of(form) for form in ("encoded", "decoded", "augmented"))], np.int64
        )
        mix = scenario.data.mix
        self._ends = np.cumsum([share for share, _ in mix])[:-1]
        self._factors = np.array([factor for _, factor in mix])
        self._key = rnd.key(scenario.seed, 0x73697A65)

    def mean(self, form: Form) -> int:
        """Mean bytes of a form."""
        return int(self._means[form])

    def of(self, form: Form, samples: Ids) -> Ids:
        """Bytes of each sample in a form."""
        mean = self._means[form]
        if form == Form.AUGMENTED or not len(self._factors):
            return np.full(len(samples), mean)
        kinds = np.searchsorted(self._ends, rnd.uniforms(self._key, samples)[:, 0], side="right")
        sizes: Ids = np.maximum(1, mean * self._factors[kinds]).astype(np.int64)
        return sizes

    def encoded(self, samples: Ids) -> float:
        """Bytes of samples in storage, in all."""
        if not len(self._factors):
            return float(len(samples) * self._means[Form.ENCODED])
        return float(self.of(Form.ENCODED, samples).sum())


def publish(
    order: Order, kept: Iterable[tuple[Form, Rows]], sizes: Sizes, first: int
) -> tuple[bytes, tuple[int, int, int]]:
    """What a worker publishes of an order that is done (see ``OrderDone.published``), and the sizes that found no
    block large enough. ``first``: the number of the job's first sample."""
    grants, samples = Grants(order.grants), first + order.index_array()
    published: list[Ids] = []
    for form, rows in kept:
        made = sizes.of(form, samples[rows])
        places = grants.take(form, made.tolist())
        offsets = [offset for offset in places if offset is not None]
        if len(offsets) < len(places):
            found = [offset is not None for offset in places]
            rows, made = rows[found], made[found]
        extents = np.empty((len(rows), 4), np.int64)
        extents[:, 0], extents[:, 1], extents[:, 2], extents[:, 3] = rows, int(form), offsets, made
        published.append(extents)
    return b"".join(extents.tobytes() for extents in published), grants.largest_wanted
