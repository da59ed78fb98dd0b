"""The disk tier of a loader: where it is, how large, and what is kept there."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.cache.disk import LEAST, DiskTier, read_speed
from headrace.cache.redis_tier import RedisTier, hide_password
from headrace.cluster.joining import Joined
from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sizes import parse_size, show_size
from headrace.engine.disk_stage import DiskUse
from headrace.loader.place import cpus_per_rank
from headrace.loader.sums import means_of
from headrace.measure import load_profile
from headrace.planning import Staff, decoded_share
from headrace.recipes.recipe import Recipe

FORMS = ("auto", "encoded", "decoded")
CLUSTER = "cluster"
"""As a tier: the memory of the nodes of a Ray cluster."""
_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")


@dataclass(frozen=True)
class Disk:
    """A disk tier, as a user describes it: ``DataLoader(recipe, disk=headrace.Disk("200GiB", "/mnt/nvme"))``.

    ``size``: bytes, ``"200GiB"``, or a share of the file system (``0.5``, ``"50%"``). ``path``: a folder on a local
    disk; by default the one in the environment variable ``HEADRACE_DISK``, else ``~/.cache/headrace/disk``. All jobs
    that name it share what lies there. ``form``: what is kept, ``"encoded"`` or ``"decoded"`` samples; ``"auto"``
    chooses.
    """

    size: int | float | str
    path: str | os.PathLike[str] | None = None
    form: str = "auto"


@dataclass(frozen=True)
class Redis:
    """A tier in a Redis or Valkey server: ``DataLoader(recipe, tier=headrace.Redis("redis://host:6379", "64GiB"))``.

    ``url``: ``redis://``, ``rediss://`` (TLS), ``unix://``, or ``redis+cluster://`` for a cluster of servers.
    ``size``: bytes that samples of all jobs may take there. ``form``: what is kept, ``"encoded"`` or ``"decoded"``
    samples.
    """

    url: str
    size: int | float | str = "16GiB"
    form: str = "encoded"

    def __repr__(self) -> str:
        return f"Redis({hide_password(self.url)!r}, {self.size!r}, {self.form!r})"


@dataclass(frozen=True)
class DiskOption:
    """The same, checked."""

    path: str
    """Of a folder, or the URL of a server, or ``CLUSTER``."""
    nbytes: int
    form: str
    remote: bool = False


def read_disk(disk: Any) -> DiskOption | None:
    """What ``disk=`` means; None: no tier."""
    if disk is None:
        return None
    if not isinstance(disk, Disk):
        disk = Disk(disk)
    if disk.form not in FORMS:
        raise OptionError(f"Disk(form={disk.form!r}); choose one of {', '.join(map(repr, FORMS))}")
    path = os.path.abspath(os.fspath(disk.path)) if disk.path is not None else environment.disk_dir()
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        found = os.statvfs(path)
    except OSError as error:
        raise OptionError(
            f"disk=: the folder {path!r} cannot be used: {error.strerror}; name another with "
            "headrace.Disk(size, path) or HEADRACE_DISK"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise OptionError(f"disk=: the folder {path!r} cannot be written to; name another with HEADRACE_DISK")
    nbytes = parse_size(disk.size, total=found.f_blocks * found.f_frsize, option="disk")
    if not nbytes:
        return None
    if nbytes < LEAST:
        raise OptionError(
            f"disk={disk.size!r} is {show_size(nbytes)}, and a disk tier has at least {show_size(LEAST)}; write a "
            "size such as '200GiB', or a share of the file system such as 0.5"
        )
    return DiskOption(path, nbytes, disk.form)


def read_tier(tier: Any) -> DiskOption:
    """What ``tier=`` means."""
    if tier == CLUSTER:
        return DiskOption(CLUSTER, 0, "decoded", remote=True)
    if not isinstance(tier, Redis):
        if not isinstance(tier, str):
            raise OptionError(
                f"tier={tier!r}: write a URL such as 'redis://host:6379', headrace.Redis(url, size), or {CLUSTER!r}"
            )
        tier = Redis(tier)
    if not tier.url.startswith(_SCHEMES):
        raise OptionError(
            f"tier={hide_password(tier.url)!r}: expected a URL that begins with "
            f"{', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}, or {CLUSTER!r}"
        )
    if tier.form not in FORMS[1:]:
        raise OptionError(f"Redis(form={tier.form!r}); choose one of {', '.join(map(repr, FORMS[1:]))}")
    nbytes = parse_size(tier.size, total=0, option="tier")
    if nbytes < LEAST:
        raise OptionError(f"Redis(size={tier.size!r}): a tier has at least {show_size(LEAST)}")
    return DiskOption(tier.url, nbytes, tier.form, remote=True)


def use_disk(
    option: DiskOption | None,
    recipe: Recipe,
    *,
    cache: Mapping[Form, int],
    staff: Staff,
    pool: Joined | None = None,
    nodes: bool = False,
) -> DiskUse | None:
    """How a recipe's session uses its tier; None where there is nothing that it could keep.

    ``cache``: the budgets of the cache in memory. A job that keeps decoded samples there may have some on disk, too,
    if that promises more. One that does not prepares its images in another way, faster and not bit by bit the same.
    What it gets is to depend on nothing but its options, so it is not for us to choose then. ``pool``: the memory of
    a cluster, if there is one. ``nodes``: whether, without another tier, decoded samples may be held there where that
    pays: images are prepared as for a cache anyway.
    """
    if option is None:
        return _use_nodes_if(recipe, pool) if nodes and pool is not None else None
    if option.path == CLUSTER:
        return _use_nodes(recipe, pool)
    key = ""
    share = {"encoded": 0.0, "decoded": 1.0}.get(option.form)
    if share is None:
        share = _choose(option, recipe, cache, staff) if cache[Form.DECODED] else 0.0
    try:
        key = recipe.share_key(Form.DECODED) if share else ""
    except OptionError as error:
        if option.form == "decoded":
            raise OptionError(f"Disk(form='decoded'): {error}") from error
        share = 0.0
    encoded = recipe.encoded and option.form != "decoded" and not _is_beside(option, recipe)
    if not encoded and not share:
        return None
    source = recipe.source
    if option.remote:
        return DiskUse(RedisTier(option.path, option.nbytes), encoded, share, key, len(source))
    owner = hashlib.blake2b(source.fingerprint().encode(), digest_size=16).digest()
    tier = DiskTier(option.path, option.nbytes, owner)
    return DiskUse(tier, encoded, share, key, len(source))


def _use_nodes(recipe: Recipe, pool: Joined | None) -> DiskUse:
    """Decoded samples in the memory of a cluster's nodes."""
    if pool is None:
        raise OptionError(
            f"tier={CLUSTER!r} keeps decoded samples in the memory of a Ray cluster's nodes, and this loader uses "
            'none: write share="ray" (docs/cluster.md)'
        )
    try:
        return pool.use_nodes(recipe, measured=False)
    except OptionError as error:
        raise OptionError(f"tier={CLUSTER!r}: {error}") from error


def _use_nodes_if(recipe: Recipe, pool: Joined) -> DiskUse | None:
    """The same, for as long as it is measured to pay."""
    with contextlib.suppress(OptionError):
        return pool.use_nodes(recipe, measured=True)
    return None


def _choose(option: DiskOption, recipe: Recipe, cache: Mapping[Form, int], staff: Staff) -> float:
    """The share of samples that are kept decoded, by what earlier starts have measured."""
    profile, whole = load_profile(recipe), sum(cache.values())
    terms = None if profile is None else profile.terms(cache=whole, means=means_of(staff))
    if terms is None:
        return 0.0
    link = read_speed(option.path)
    there = replace(terms, disk=option.nbytes, disk_link=link or math.inf, cpus=cpus_per_rank())
    split = tuple(cache[form] / whole for form in CACHEABLE)
    return decoded_share(there, (split[0], split[1], split[2])) if link else 0.0


def _is_beside(option: DiskOption, recipe: Recipe) -> bool:
    """Whether the samples are files of the same file system: a copy there would be no nearer."""
    if option.form == "encoded" or option.remote:
        return False  # as the user says
    root = getattr(recipe.source, "root", None)
    try:
        return root is not None and os.stat(root).st_dev == os.stat(option.path).st_dev
    except OSError:
        return False
