"""Seneca's model of throughput, as published: equations 1 to 9.

Each sample is served at the rate of the slowest thing on its way, and those rates are averaged over the samples.
Decoded and augmented samples may differ in size here; where they do not, this is the paper's M times S_data. Bytes
of gradients, which come once per batch, are divided by the samples of the batch: the paper adds them to the bytes
of one sample.
"""

from __future__ import annotations

import numpy as np

from headrace.planning.terms import Floats, Terms, contents


def rates(terms: Terms) -> tuple[float, float, float, float]:
    """Samples per second from the encoded, the decoded and the augmented cache, and from storage: 5, 3, 1, 7."""
    nodes = terms.nodes
    network, pcie = terms.gradients_network, terms.gradients_pcie
    to_gpu = min(nodes * terms.pcie / (terms.augmented + pcie), nodes * terms.ingest)

    def cached(size: float) -> float:
        return min(terms.cache_link / size, nodes * terms.network / (size + network), to_gpu)

    augmented = cached(terms.augmented)
    decoded = min(cached(terms.decoded), nodes * terms.augment)
    encoded = min(cached(terms.encoded), nodes * terms.prepare)
    return encoded, decoded, augmented, min(encoded, terms.storage / terms.encoded)


def throughput(terms: Terms, splits: Floats) -> Floats:
    """Samples per second for each split, over all nodes: equation 9, with the contents of 2, 4, 6 and 8."""
    held = contents(terms, splits)
    served = np.zeros(len(splits))
    for samples, rate in zip(
        (held.encoded, held.decoded, held.augmented, held.storage), rates(terms), strict=True
    ):
        served[samples > 0] += samples[samples > 0] * rate  # (where there are none, any rate will do)
    return np.asarray(served / terms.samples, np.float64)
