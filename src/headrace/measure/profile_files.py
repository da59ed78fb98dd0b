"""Profiles, kept from one start to the next: a JSON file for each machine and recipe.

They lie below ``$XDG_CACHE_HOME/headrace/profiles``, or ``~/.cache/headrace/profiles``, and may be deleted at any
time. A file that is damaged, of another version or of another machine counts as none. A recipe that has no
fingerprint has no file.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.files import write_json
from headrace.measure.cpu import CPU
from headrace.measure.machine import Machine
from headrace.measure.profile import VERSION, Profile
from headrace.measure.seen import Seen
from headrace.measure.sizes import Sizes
from headrace.measure.storage import Storage
from headrace.recipes.recipe import Recipe

_LARGEST = 1 << 20
"""Bytes of a file that are looked at."""
_JOBS = 32
"""Names of jobs whose consumption is kept."""
_PATIENCE = 1.0
"""Seconds to wait for another who is writing the same file. One who hangs must not hang others."""


def profiles_dir() -> Path:
    """Where profiles lie."""
    return Path(environment.cache_home(), "headrace", "profiles")


def fingerprint_of(recipe: Recipe) -> str | None:
    """What a recipe is known by; None for one with a step that cannot be told from another."""
    try:
        return recipe.profile_key
    except OptionError:
        return None


def label_of(recipe: Recipe) -> str:
    """What people call a recipe's data."""
    return str(getattr(recipe.source, "root", "") or type(recipe.source).__name__)


def load_profile(recipe: Recipe) -> Profile | None:
    """What is known of a recipe on this machine. Never an error."""
    fingerprint = fingerprint_of(recipe)
    return None if fingerprint is None else _load(fingerprint, Machine.here())


def save_profile(profile: Profile) -> Path:
    """Keep a profile in place of what was known before, but for what jobs learned. ``OSError`` where that fails."""
    path = _path(profile.fingerprint, profile.machine)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(path):
        before = _load(profile.fingerprint, profile.machine)
        if before is not None:
            consumption = {**before.consumption, **profile.consumption}
            seen = profile.seen or before.seen
            profile = msgspec.structs.replace(profile, consumption=consumption, seen=seen)
        write_json(path, profile)
    return path


def learn(
    recipe: Recipe,
    *,
    job: str = "",
    consumption: float | None = None,
    sizes: Sizes | None = None,
    storage: Storage | None = None,
    cpu: CPU | None = None,
    seen: Seen | None = None,
) -> bool:
    """Keep what a job found out while it ran, beside what is known already. Whether that worked; never an error.

    ``consumption``: samples per second that the job takes if it need not wait. ``job``: a name that the same job
    has at its next start. ``seen``: what its loader saw, which is kept beside what was measured. Other parts take the
    place of what was measured before; None leaves it.
    """
    fingerprint, machine = fingerprint_of(recipe), Machine.here()
    measured = {"sizes": sizes, "storage": storage, "cpu": cpu}
    changes: dict[str, Any] = {name: part for name, part in measured.items() if part is not None}
    if consumption is not None and not 0 < consumption < math.inf:
        consumption = None
    if fingerprint is None or not (changes or consumption or seen):
        return False
    path = _path(fingerprint, machine)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path):
            profile = _load(fingerprint, machine)
            if profile is None:
                samples, taken = len(recipe.source), time.time() if seen is None else seen.at
                profile = Profile(fingerprint, machine, label_of(recipe), samples, taken)
            if changes:
                changes["taken"] = time.time()
            if consumption is not None:
                others = [(name, rate) for name, rate in profile.consumption.items() if name != job]
                changes["consumption"] = dict([*others, (job, consumption)][-_JOBS:])
            if seen is not None:
                changes["seen"] = seen.after(_still_good(profile))
            write_json(path, msgspec.structs.replace(profile, **changes))
    except OSError:
        return False
    return True


def _still_good(profile: Profile) -> Seen | None:
    """What was seen before, unless all was measured since: what is older must not come back as new."""
    seen = profile.seen
    if seen is None or seen.at >= profile.taken:
        return seen
    return Seen(seen.at, storage=seen.storage)  # that has a date of its own


def forget_profile(recipe: Recipe) -> bool:
    """Remove what is known of a recipe on this machine; whether there was anything."""
    fingerprint = fingerprint_of(recipe)
    if fingerprint is None:
        return False
    try:
        _path(fingerprint, Machine.here()).unlink()
    except FileNotFoundError:
        return False
    return True


def _path(fingerprint: str, machine: Machine) -> Path:
    return profiles_dir() / machine.key / f"{fingerprint}.json"


def _load(fingerprint: str, machine: Machine) -> Profile | None:
    try:
        with open(_path(fingerprint, machine), "rb") as file:
            profile = msgspec.json.decode(file.read(_LARGEST), type=Profile)
    except (OSError, ValueError, RecursionError):  # (what msgspec raises is a ValueError)
        return None
    known = (profile.version, profile.fingerprint, profile.machine) == (VERSION, fingerprint, machine)
    return profile if known else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold off others who write to the same machine's profiles, where the file system has locks.

    Without, nothing breaks: of two who write at once, the later one wins.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    break
                time.sleep(0.005)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
