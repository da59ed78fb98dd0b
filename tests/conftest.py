"""What holds for all tests."""

import ctypes
import gc
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# Hundreds of processes are started here. Each would compile all of headrace again where this is set, as it often is
# in containers.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# And they share few CPUs: threads of torch's that wait for each other should sleep, not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Ray has what it runs step back for everybody else, and here everybody else is a test: it would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")

# Where the tests run in the background of a script, the shell lets them ignore Ctrl-C, and so would every process
# that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Loaders keep what they learn of a recipe, and meet in a runtime directory. Here none of that must reach what the
# user has, nor another test, nor another process that runs tests at the same time.
_CACHES = tempfile.mkdtemp(prefix="headrace-tests-", dir="/tmp")  # (the path of a socket is short)
_numbers = itertools.count()
os.environ["XDG_CACHE_HOME"] = os.path.join(_CACHES, "none")
os.environ["XDG_STATE_HOME"] = os.path.join(_CACHES, "state")
os.environ["HEADRACE_RUNTIME_DIR"] = os.path.join(_CACHES, "run")
os.environ.pop("HEADRACE_PROFILES", None)
os.environ.pop("HEADRACE_SHARE", None)


@pytest.fixture(autouse=True)
def _own_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(_CACHES, str(next(_numbers))))


@pytest.fixture(autouse=True, scope="session")
def _no_profiles_stay() -> Iterator[None]:
    yield
    shutil.rmtree(_CACHES, ignore_errors=True)


# What tests run is no run that anybody wants to hear about; those of records say otherwise.
os.environ["HEADRACE_RECORD"] = "0"


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """What a test draws at random is the same in every run, whichever tests ran before."""
    random.seed(7)
    np.random.seed(7)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(7)


# Everybody who runs the tests runs the same ones: the examples of a property follow from the test alone. `make fuzz`
# searches freely, for as long as it is told, and what it finds becomes an @example. (There are no deadlines: how long
# an example takes is a matter of what else the machine does.)
settings.register_profile("fixed", deadline=None, derandomize=True, database=None, max_examples=100)
_ROUNDS = os.environ.get("HEADRACE_FUZZ_ROUNDS")
if _ROUNDS:
    settings.register_profile("free", deadline=None, max_examples=int(_ROUNDS))
settings.load_profile("free" if _ROUNDS else "fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Every process that runs tests reads all of them, and at the first time compiles them, asserts written out:
    eight seconds for each. It is done once for all, by as many processes as there are CPUs, where they all start."""
    whole = getattr(config.option, "numprocesses", None) and not config.option.file_or_dir
    if not whole or hasattr(config, "workerinput"):
        return
    try:
        from _pytest.assertion import rewrite
    except ImportError:  # (it is pytest's own business how it does that)
        return
    files = sorted(Path(__file__).parent.rglob("*.py"))
    compilers = []
    for share in range(os.cpu_count() or 1):
        compilers.append(os.fork())
        if not compilers[-1]:
            with suppress(Exception):
                _rewrite(rewrite, config, files[share :: os.cpu_count() or 1])
            os._exit(0)
    for pid in compilers:
        os.waitpid(pid, 0)


def _rewrite(rewrite: Any, config: pytest.Config, files: list[Path]) -> None:
    state = config.stash[rewrite.assertstate_key]
    for file in files:
        if not (file.name.startswith("test_") or file.name == "conftest.py"):
            continue
        place = rewrite.get_cache_dir(file)
        compiled = place / (file.name[:-3] + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, compiled) is None:
            place.mkdir(parents=True, exist_ok=True)
            status, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, status, compiled)


def pytest_collection_finish() -> None:
    """What is there now stays, so nobody need look for garbage in it again, which takes a quarter of a second. And
    workers are forked by the thousand, and what a fork costs is entries in tables of pages: the few hundred megabytes
    that torch and the tests have taken by now become pages of 2 MiB, where the kernel can (Linux 6.1)."""
    gc.collect()
    gc.freeze()
    if not sys.platform.startswith("linux"):
        return
    collapse, large = 25, 2 << 20  # MADV_COLLAPSE
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        start, end = (int(edge, 16) for edge in fields[0].split("-"))
        start, end = -(-start // large) * large, end // large * large
        if fields[1].startswith("rw") and (len(fields) < 6 or fields[5] == "[heap]") and end > start:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), collapse)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest goes first: at the end, the other processes would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_examples.py")
