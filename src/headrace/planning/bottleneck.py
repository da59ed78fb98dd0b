"""The model of throughput that headrace goes by: the resource that is busiest with the mix sets the pace.

Stages work side by side, so each resource has to carry its part of all samples, and the one that takes longest
over its part is waited for. An average of rates, as Seneca has it, lets fast samples make up for slow ones, which
they only could if nothing else were busy meanwhile.

What is cached is used as headrace uses it. Encoded and decoded samples last: one serves every job in every epoch.
An augmented one is given to each job once. So to one job it saves nothing, and to several it makes one preparation
out of as many as there are jobs, provided that it can be kept until the last of them has come for it.
"""

from __future__ import annotations

import numpy as np

from headrace.planning.terms import Floats, Terms

RESOURCES = ("storage", "disk", "cpu", "cache", "network", "pcie", "gpu")


def demands(terms: Terms, splits: Floats) -> dict[str, Floats]:
    """Seconds for which each resource is busy with one delivered sample, for each split.

    ``splits``: rows of (encoded, decoded, augmented), shares of the cache. With a fourth column, the share of samples
    that go to the disk tier decoded, in the place of the terms' own.
    """
    encoded, decoded, augmented = splits.T[:3] * terms.cache
    held_decoded = np.minimum(1.0, decoded / ((terms.decoded + terms.overhead) * terms.samples))
    held_encoded = np.minimum(
        1.0 - held_decoded, encoded / ((terms.encoded + terms.overhead) * terms.samples)
    )
    on_disk = splits[:, 3] if splits.shape[1] > 3 else np.full(len(splits), terms.disk_decoded)
    left = 1.0 - held_decoded - held_encoded
    mean = on_disk * terms.decoded + (1.0 - on_disk) * terms.encoded
    disk = np.minimum(left, terms.disk / (mean * terms.samples))
    disk_decoded, disk_encoded = disk * on_disk, disk * (1.0 - on_disk)
    stored = left - disk
    kept = _kept(terms, augmented / (terms.augmented + terms.overhead))
    prepared = 1.0 - kept * (terms.jobs - 1) / terms.jobs
    """Preparations of a delivered sample: the rest was prepared for another job."""
    taken = 1.0 - prepared
    read = taken * terms.augmented + prepared * (held_decoded * terms.decoded + held_encoded * terms.encoded)
    fetched = prepared * stored * terms.encoded
    from_disk = prepared * (disk_decoded * terms.decoded + disk_encoded * terms.encoded)
    is_decoded = held_decoded + disk_decoded
    cpu = (
        taken / terms.copy
        + prepared * (is_decoded / terms.augment + (1.0 - is_decoded) / terms.prepare)
        + prepared * stored / terms.fetch
        + from_disk * terms.disk_cpu / terms.cpus
    )
    ones = np.ones(len(splits))
    return {
        "storage": fetched / terms.storage,
        "disk": from_disk / terms.disk_link,
        "cpu": cpu / terms.nodes,
        "cache": read / terms.cache_link,
        "network": (read + fetched + terms.gradients_network) / (terms.nodes * terms.network),
        "pcie": ones * (terms.augmented + terms.gradients_pcie) / (terms.nodes * terms.pcie),
        "gpu": ones / (terms.nodes * terms.ingest),
    }


def _kept(terms: Terms, room: Floats) -> Floats:
    """The share of augmented samples that can be kept until every job has had them."""
    if terms.jobs < 2:
        return np.zeros(len(room))
    window = max(min(terms.window, terms.samples), 1.0)
    return np.minimum(1.0, room / window)


def throughput(terms: Terms, splits: Floats) -> Floats:
    """Samples per second for each split, over all jobs and nodes."""
    return np.asarray(1.0 / np.maximum.reduce([*demands(terms, splits).values()]), np.float64)


def cautious(terms: Terms, splits: Floats) -> Floats:
    """The same, less where several resources are about equally busy: what to go by when a split is chosen.

    Work comes in bursts. Where one resource is far busier than the others they make up for it; where two are on a
    par, each waits for the other at times: of two that are equally busy, this takes a ninth off (the norm is the
    sixth).
    """
    work = np.stack([*demands(terms, splits).values()])
    busiest = work.max(axis=0)
    squares = (work / busiest) ** 2
    sums: Floats = (squares * squares * squares).sum(axis=0)
    return np.asarray(1.0 / (busiest * sums ** (1.0 / 6.0)), np.float64)
