"""Scenarios: what is simulated. Plain data, read from TOML and checked before anything runs."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size
from headrace.eviction import EVICTIONS
from headrace.planning import split_budget
from headrace.sampling import SAMPLERS

Size = int | float | str
"""Bytes as people write them: ``1000``, ``"8GiB"``; for a cache also ``"20%"`` of the decoded dataset."""
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Loader = Literal["shared", "alone", "plain"]
Keeps = Literal["recent", "soonest", "soonest on demand"]
Placement = Literal["rendezvous", "own"]
Peers = Literal["measured", "always"]
SAMPLINGS = (*SAMPLERS, "uniform")


class Data(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The dataset: how many samples, and the mean bytes of one in each form."""

    samples: Count
    encoded: Size = 49_457
    decoded: Size = 548_404
    augmented: Size = 150_528
    mix: list[tuple[Share, Annotated[float, msgspec.Meta(gt=0, le=1000)]]] = []
    """Where sizes differ: pairs of a share of all samples and their size, encoded and decoded, beside the mean."""


class Costs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Seconds of processor time. The defaults are those of the photos of ``make bench-sharing``, on an Arm
    Neoverse-N1: about 500x375 pixels, decoded, a random crop of them resized to 224x224. They are one fit to all
    cases of that benchmark, so each stands for what goes with it, too: wake-ups, messages, cold caches."""

    fetch: Seconds = 20e-6
    """A row that is read from storage; how long the bytes take is up to the links."""
    decode: Seconds = 848e-6
    """A row of which only the part that is needed is decoded."""
    decode_whole: Seconds = 1_358e-6
    """A row that is decoded as a whole, because the decoded form is kept, and written into the cache."""
    augment: Seconds = 133e-6
    """A decoded row that is augmented."""
    copy: Seconds = 23e-6
    """An augmented row that is copied from the cache."""
    keep: Seconds = 14e-6
    """A row that is written into the cache in its encoded or augmented form."""
    order: Seconds = 500e-6
    """An order, in the worker that claims and reports it."""
    batch: Seconds = 930e-6
    """A batch, in the training process."""
    draw: Seconds = 520e-6
    """A draw, in the shared host."""
    row: Seconds = 12e-6
    """Each row of a draw, in the shared host."""
    report: Seconds = 270e-6
    """A finished order, in the shared host."""
    store: Seconds = 14e-6
    """Each row that was published, in the shared host."""
    wait: Seconds = 86e-6
    """Each row that waits for what others prepare, in the shared host."""
    noise: Share = 0.4
    """By how much the work of orders differs: the standard deviation of its logarithm."""


class Nodes(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Machines that are alike."""

    count: Count = 1
    cpus: Count = 2
    speed: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    """Of a processor, beside one for which the costs hold."""
    cache: Size = 0
    """Of the shared host, which each machine has one of: bytes, or a share of the decoded dataset."""
    page_cache: Size = 0
    """Bytes of files that are kept in memory, for all jobs of the machine."""
    keeps: Keeps = "recent"
    """Which: those that were read most recently, as a system does, or those that are needed soonest, some of them
    fetched ahead; without that where nothing is to be fetched before a worker asks for it."""
    peers: bool = False
    """Whether machines that keep what is needed soonest take files over from each other."""
    network: Size = math.inf
    """Bytes per second into a machine; and to other machines of a cluster, as many again."""
    delay: Seconds = 0.0
    """For a message between this machine and another."""
    pool: Size = 0
    """Bytes that it gives to the memory of the cluster."""
    helpers: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    """Processes that prepare rows for ranks on other machines, with what processor time nobody else wants."""


class Storage(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where encoded samples come from."""

    rate: Size = math.inf
    """Bytes per second."""
    latency: Seconds = 0.0
    """From asking for a sample to its first byte."""
    shared: bool = True
    """Whether all machines have the rate together; else each has it for itself."""


class Cluster(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What machines do that give memory or helpers to a cluster. The defaults are what the product does."""

    placement: Placement = "rendezvous"
    """Where samples lie: each on one machine, or on every one whose ranks have used it."""
    preload: bool = True
    """Whether machines read samples before they are asked for, in the order of their use."""
    peers: Peers = "measured"
    """Whether the machine that has a sample is asked always, or unless it was measured to be slower than storage."""
    pacing: bool = True
    """Whether bytes that are on their way to a rank are limited, or only the orders that a helper has at a time."""
    megabyte: Seconds = 1.2e-3
    """Of processor time, at each end, for a megabyte between machines. (TLS on an Arm Neoverse-N1.)"""


class Job(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A training run, or several that are alike."""

    name: str = "job"
    count: Count = 1
    first: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The first machine that it runs on."""
    nodes: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Machines that it runs on; 0: all."""
    ranks: Count = 1
    """On each machine."""
    batch: Count = 64
    """Samples of a batch, for each rank."""
    epochs: Annotated[int, msgspec.Meta(ge=0)] = 4
    """0: until the others have ended."""
    step: Seconds = 0.0
    """For which the GPU works on a batch."""
    jitter: Share = 0.0
    """By how much steps differ: the standard deviation of their logarithm."""
    loader: Loader = "shared"
    """headrace sharing with others, headrace alone, or a plain loader: no cache, a batch is made by one worker."""
    sampling: str = "auto"
    eviction: str = "auto"
    split: tuple[float, float, float] | None = None
    cache: Size = 0
    """Bytes of its own cache, for a job that is alone."""
    workers: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Processes that prepare, for each rank; 0: headrace's own choice."""
    ahead: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Batches kept ahead; 0: headrace's own choice."""
    part: tuple[Share, Share] = (0.0, 1.0)
    """The stretch of the dataset that it trains on, in shares of all samples."""
    augmentation: str = ""
    """Jobs share augmented samples if these are equal."""
    drop_last: bool = False
    start: Seconds = 0.0
    """When it starts."""
    after: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """It starts when the job before it is through so many epochs."""


class Measure(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The stretch of time that counts. Jobs with no end of their own do not matter for it."""

    warmup: Annotated[int, msgspec.Meta(ge=0)] = 1
    """It begins when every job is through so many epochs."""
    barrier: bool = False
    """Whether jobs wait for each other then."""
    until: Literal["first", "last"] = "last"
    """It ends when the first, or the last, of the jobs ends."""


class Scenario(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Data, machines and jobs."""

    data: Data
    jobs: list[Job]
    nodes: list[Nodes] = msgspec.field(default_factory=lambda: [Nodes()])
    storage: Storage = msgspec.field(default_factory=Storage)
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    costs: Costs = msgspec.field(default_factory=Costs)
    measure: Measure = msgspec.field(default_factory=Measure)
    about: str = ""
    seed: int = 0

    @property
    def machines(self) -> int:
        """Machines in all."""
        return sum(group.count for group in self.nodes)

    def check(self) -> None:
        """Raise OptionError, saying what to write, if this cannot be run."""
        self._check_sizes()
        if not self.jobs:
            _refuse("jobs", "there is none; write at least one [[jobs]]")
        if not any(job.epochs for job in self.jobs):
            _refuse("jobs.epochs", "no job ever ends; write a number of epochs for at least one")
        for place, job in enumerate(self.jobs):
            self._check_job(f"jobs[{place}]", place, job)
        for place, group in enumerate(self.nodes):
            if group.keeps != "recent":
                self._check_keeps(f"nodes[{place}]")
        self._check_cluster()

    @property
    def pools(self) -> bool:
        """Whether machines have memory together."""
        return any(self.pool_of(group) for group in self.nodes)

    def pool_of(self, group: Nodes, option: str = "pool") -> int:
        """Bytes that a machine gives to the memory of the cluster."""
        return parse_size(group.pool, total=self.data.samples * self.bytes_of("encoded"), option=option)

    def _check_cluster(self) -> None:
        """What a cluster can do, the product can, and is not mixed with what the product does otherwise."""
        pooled = self.pools
        for place, group in enumerate(self.nodes):
            name = f"nodes[{place}]"
            if pooled and (parse_size(group.page_cache, total=0) or group.keeps != "recent"):
                _refuse(
                    f"{name}.page_cache",
                    "samples come from the memory of the cluster where there is one; write no page_cache and no "
                    "keeps, or no pool",
                )
            if not group.helpers:
                continue
            if not pooled:
                _refuse(
                    f"{name}.helpers", 'helpers read by way of the cluster; write pool, e.g. pool = "8GiB"'
                )
            for job in self.jobs:
                if job.loader != "alone" or self.cache_of(job):
                    _refuse(
                        f"{name}.helpers",
                        'here they prepare for jobs that cache nothing; write loader = "alone" and no cache for all '
                        "of [[jobs]], or helpers = 0",
                    )

    def _check_keeps(self, name: str) -> None:
        job = self.jobs[0]
        if len(self.jobs) > 1 or job.count > 1 or job.loader == "shared" or self.cache_of(job):
            _refuse(
                f"{name}.keeps",
                "what is needed soonest is known of one job that has no other cache; write one of [[jobs]] with "
                'loader = "alone" or "plain" and no cache, or keeps = "recent"',
            )
        if job.part != (0.0, 1.0) or self.span(job) != range(self.machines):
            _refuse(f"{name}.keeps", "the job must run on all machines and all of the data")
        if len({(group.keeps, group.peers, str(group.page_cache)) for group in self.nodes}) > 1:
            _refuse(f"{name}.keeps", "write the same keeps, peers and page_cache for all machines")

    def _check_job(self, name: str, place: int, job: Job) -> None:
        if job.sampling not in SAMPLINGS:
            _refuse(f"{name}.sampling", f"{job.sampling!r} is none; write one of {', '.join(SAMPLINGS)}")
        if job.eviction not in EVICTIONS:
            _refuse(f"{name}.eviction", f"{job.eviction!r} is none; write one of {', '.join(EVICTIONS)}")
        machines = self.span(job)
        if not machines or machines.stop > self.machines:
            _refuse(f"{name}.nodes", f"it does not fit; there are {self.machines} machines, the first is 0")
        if job.loader == "shared" and job.sampling != "uniform" and len(machines) > 1:
            _refuse(
                f"{name}.sampling",
                f'{job.sampling!r} is for ranks on one machine; write "uniform" for a job on several',
            )
        if job.split is not None:
            split_budget(0, job.split)
        low, high = self.stretch(job)
        if low >= high:
            _refuse(f"{name}.part", "it has no samples; write (from, to) in shares of all, e.g. [0.0, 0.5]")
        if job.drop_last and high - low < job.batch * job.ranks * len(machines):
            _refuse(f"{name}.batch", "an epoch has no whole batch for each rank; write a smaller one")
        if job.after and place == 0 and job.count == 1:
            _refuse(f"{name}.after", "there is no job before the first; write start=, in seconds")
        if job.loader == "plain" and not job.workers:
            _refuse(f"{name}.workers", "a plain loader has as many as it is told; write a number")

    def _check_sizes(self) -> None:
        shares = sum(share for share, _ in self.data.mix)
        if self.data.mix and abs(shares - 1) > 1e-6:
            _refuse(
                "data.mix",
                f"the shares are {shares:g} together; write 1 in all, e.g. [[0.5, 0.8], [0.5, 1.2]]",
            )
        for form in ("encoded", "decoded", "augmented"):
            if not 1 <= self.bytes_of(form) < 1 << 40:
                _refuse(f"data.{form}", "a sample has at least one byte, and less than a TiB")
        if self.rate(self.storage.rate, "storage.rate") <= 0:
            _refuse("storage.rate", 'it must be more than 0; write bytes per second, e.g. "2GB"')
        for place, group in enumerate(self.nodes):
            self.cache_of(group, f"nodes[{place}].cache")
            parse_size(group.page_cache, total=0, option=f"nodes[{place}].page_cache")
            self.pool_of(group, f"nodes[{place}].pool")
            if self.rate(group.network, f"nodes[{place}].network") <= 0:
                _refuse(
                    f"nodes[{place}].network", 'it must be more than 0; write bytes per second, e.g. "10GB"'
                )
        for place, job in enumerate(self.jobs):
            self.cache_of(job, f"jobs[{place}].cache")

    def bytes_of(self, form: str) -> int:
        """Mean bytes of a sample in a form."""
        return parse_size(getattr(self.data, form), total=0, option=f"data.{form}")

    def cache_of(self, whose: Nodes | Job, option: str = "cache") -> int:
        """Bytes of a machine's shared cache, or of a job's own."""
        return parse_size(whose.cache, total=self.data.samples * self.bytes_of("decoded"), option=option)

    @staticmethod
    def rate(value: Size, option: str) -> float:
        """Bytes per second; infinite where there is no limit."""
        if isinstance(value, float) and math.isinf(value):
            return math.inf
        return float(parse_size(value, total=0, option=option))

    def span(self, job: Job) -> range:
        """The machines that a job runs on."""
        return range(job.first, job.first + job.nodes) if job.nodes else range(job.first, self.machines)

    def stretch(self, job: Job) -> tuple[int, int]:
        """The samples that a job trains on."""
        low, high = (round(share * self.data.samples) for share in job.part)
        return low, high


def _refuse(option: str, reason: str) -> None:
    raise OptionError(f"{option}: {reason}")
