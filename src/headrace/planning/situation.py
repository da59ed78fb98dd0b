"""What a job's loader measured, and what it has to work with: all that advice rests on."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.planning.measured import Means, Measured
from headrace.planning.search import Split


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A loader at one moment. What is not known is 0."""

    kind: Literal["recipe", "dataset"]
    """Of a torch dataset little is known: work is work, whatever it is."""
    recent: Measured
    """Sums over the last while; older ones count less."""
    total: Measured
    """Sums over the whole run."""
    means: Means
    inline: bool = False
    """There are no workers: samples are prepared by whoever asks for a batch."""
    own_workers: int | None = None
    """The number of processes that the user gave."""
    held: float | None = None
    """Share of the time for which user code holds the interpreter lock, as ``planning.staff`` has it."""
    user_in: Literal["", "decode", "augment", "both"] = ""
    """Where code of the user's runs."""
    user_steps: tuple[str, ...] = ()
    """What it is called."""
    samples: int = 0
    encoded: float = 0.0
    """Mean bytes of a sample."""
    decoded: float = 0.0
    augmented: float = 0.0
    needed_pixels: float = 0.0
    """Of a finished image; 0 where samples are no images, or are made smaller before they are cached."""
    cache: float = 0.0
    """Bytes."""
    split: Split = (0.0, 0.0, 0.0)
    cached: float = 0.0
    """Bytes that it holds."""
    memory: float = 0.0
    """Bytes that a cache on this machine could have."""
    shared: bool = False
    """The cache is that of all jobs on the machine."""
    entered: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Samples that were in the cache in no form, encoded, decoded and augmented, of late."""
    slow_kernels: str = ""
    """Why images are decoded by the slower kernels; empty where they are not."""
    gpu_could_decode: bool = False
    """Batches are in the memory of a GPU, which could decode images, and does not."""
    gpu_memory: float = 0.0
    """Bytes of it that are free, where decoded images could be held there, and are not."""
    tells_apart: bool = False
    """Decoding and augmenting are measured apart. Without a cache for decoded samples, images are read and
    augmented in one, and all of it counts as decoding."""
    augment_part: float = 0.0
    """Where a profile says it: the part of preparing a sample without a cache that augmenting alone takes."""
    full_part: float = 0.0
    """And what preparing takes, to the same, where decoded samples are to be cached and so decoded in full."""
