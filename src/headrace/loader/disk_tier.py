"""The disk tier of a loader: where it is, how large, and what is kept there."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

from headrace.cache.disk import LEAST, DiskTier
from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.core.sizes import parse_size, show_size
from headrace.engine.disk_stage import DiskUse
from headrace.recipes.recipe import Recipe

FORMS = ("auto", "encoded", "decoded")


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
class DiskOption:
    """The same, checked."""

    path: str
    nbytes: int
    form: str


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


def use_disk(option: DiskOption | None, recipe: Recipe, *, decoded: float) -> DiskUse | None:
    """How a recipe's session uses its tier; None where there is nothing that it could keep.

    ``decoded``: the share of samples that it had better keep decoded, where that is ours to choose.
    """
    if option is None:
        return None
    key = ""
    share = {"encoded": 0.0, "decoded": 1.0}.get(option.form, decoded)
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
    owner = hashlib.blake2b(source.fingerprint().encode(), digest_size=16).digest()
    tier = DiskTier(option.path, option.nbytes, owner)
    return DiskUse(tier, encoded, share, key, len(source))


def _is_beside(option: DiskOption, recipe: Recipe) -> bool:
    """Whether the samples are files of the same file system: a copy there would be no nearer."""
    if option.form == "encoded":
        return False  # as the user says
    root = getattr(recipe.source, "root", None)
    try:
        return root is not None and os.stat(root).st_dev == os.stat(option.path).st_dev
    except OSError:
        return False
