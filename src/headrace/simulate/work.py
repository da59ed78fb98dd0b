"""What an order costs, and what comes of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core import random as rnd
from headrace.core.forms import Form
from headrace.simulate.scenario import Costs, Scenario

Ids = NDArray[np.int64]
Forms = NDArray[np.uint8]
_ENCODED, _DECODED, _AUGMENTED = (1 << form for form in (Form.ENCODED, Form.DECODED, Form.AUGMENTED))
_KEEPS = [[mask for mask in range(16) if mask & bit] for bit in (_ENCODED, _DECODED, _AUGMENTED)]


class Work(NamedTuple):
    """What is to be done for some rows."""

    seconds: float
    """Of a processor of speed 1."""
    fetched: int
    """Rows that have to be read."""
    decoded: int
    prepared: int
    """Rows that are augmented."""
    decoding: float
    """Seconds of it, of a processor of speed 1; and of augmenting, with all else that hands do."""
    augmenting: float


def work_of(forms: Forms, keep: Forms | None, costs: Costs) -> Work:
    """The work for the rows of a batch, by the form in which each enters and what is kept of it."""
    none, encoded, decoded, augmented = np.bincount(forms, minlength=4).tolist()
    to_decode = none + encoded
    whole = small = 0
    if keep is not None and keep.any():
        counts = np.bincount(keep, minlength=16).tolist()
        kept_encoded, whole, kept_augmented = (sum(counts[mask] for mask in masks) for masks in _KEEPS)
        small = kept_encoded + kept_augmented
    decoding = (to_decode - whole) * costs.decode + whole * costs.decode_whole
    augmenting = (
        costs.order + (to_decode + decoded) * costs.augment + augmented * costs.copy + small * costs.keep
    )
    seconds = none * costs.fetch + decoding + augmenting
    return Work(seconds, none, to_decode, to_decode + decoded, decoding, augmenting)


def fill_of(forms: Forms, keep: Forms, costs: Costs) -> Work:
    """The work for rows that are prepared into the cache only: nothing is done beyond what is kept."""
    to_augment = (keep & _AUGMENTED) != 0
    whole = ((keep & _DECODED) != 0) & (forms < Form.DECODED)
    decoded = whole | (to_augment & (forms < Form.DECODED))
    fetched = (decoded | ((keep & _ENCODED) != 0)) & (forms == Form.NONE)
    small = int(np.count_nonzero(to_augment)) + int(np.count_nonzero(keep & _ENCODED))
    n_decoded, n_whole = int(np.count_nonzero(decoded)), int(np.count_nonzero(whole))
    n_fetched, n_augmented = int(np.count_nonzero(fetched)), int(np.count_nonzero(to_augment))
    decoding = (n_decoded - n_whole) * costs.decode + n_whole * costs.decode_whole
    augmenting = costs.order + n_augmented * costs.augment + small * costs.keep
    seconds = n_fetched * costs.fetch + decoding + augmenting
    return Work(seconds, n_fetched, n_decoded, n_augmented, decoding, augmenting)


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

    def of(self, forms: Ids, samples: Ids) -> Ids:
        """Bytes of each sample in a form."""
        sizes = self._means[forms]
        if len(self._factors):
            kinds = np.searchsorted(self._ends, rnd.uniforms(self._key, samples)[:, 0], side="right")
            varied = np.maximum(1, sizes * self._factors[kinds]).astype(np.int64)
            sizes = np.where(forms == int(Form.AUGMENTED), sizes, varied)
        return sizes

    def encoded(self, samples: Ids) -> float:
        """Bytes of samples in storage, in all."""
        if not len(self._factors):
            return float(len(samples) * self._means[Form.ENCODED])
        return float(self.of(np.full(len(samples), Form.ENCODED, np.int64), samples).sum())
