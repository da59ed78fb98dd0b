"""What holds for all tests."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Hundreds of processes are started here. Each would compile all of headrace again where this is set, as it often is
# in containers.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Loaders keep what they learn of a recipe. Here that must not reach the user's own profiles, nor another test.
_CACHES = tempfile.mkdtemp(prefix="headrace-tests-")
_numbers = itertools.count()
os.environ["XDG_CACHE_HOME"] = os.path.join(_CACHES, "none")
os.environ.pop("HEADRACE_PROFILES", None)


@pytest.fixture(autouse=True)
def _own_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(_CACHES, str(next(_numbers))))


@pytest.fixture(autouse=True, scope="session")
def _no_profiles_stay() -> Iterator[None]:
    yield
    shutil.rmtree(_CACHES, ignore_errors=True)


# What tests run is no run that anybody wants to hear about; those of records say otherwise.
os.environ["HEADRACE_RECORD"] = "0"

# How long an example takes is a matter of what else the machine does.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
