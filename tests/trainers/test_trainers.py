"""Loaders inside the trainers that people use, audited sample by sample over all ranks.

``make test-trainers`` makes the environment that this needs and runs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.host import control
from tests.trainers import page
from tests.trainers.audit import Result, faults, verdict
from tests.trainers.cases import CASES, PACKAGES, Case
from tests.trainers.data import KINDS
from tests.trainers.jobs import pictures, run_job

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(900)]

Jobs = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Runs a trainer's job when the first of its cases is looked at."""
    root = tmp_path_factory.mktemp("trainers")
    images = pictures(root / "images")
    runtime = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))  # (a socket's path is short)
    ran: dict[tuple[str, int], Path | Exception] = {}

    def run(trainer: str, world: int) -> Path:
        key = (trainer, 2 if trainer == "ray" else world)
        if key not in ran:
            out = root / f"{trainer}-{key[1]}"
            try:
                run_job(*key, images, out, runtime / f"{trainer}{key[1]}")
                ran[key] = out
            except Exception as error:
                ran[key] = error
        found = ran[key]
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.MonkeyPatch.context() as patch:
        yield run
        for place in runtime.iterdir():
            patch.setenv("HEADRACE_RUNTIME_DIR", str(place))
            control.stop()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture(scope="module")
def found() -> Iterator[page.Found]:
    """What came of all cases; written down if so wanted."""
    results: page.Found = {}
    yield results
    page.store(results, {package: _version(package) for package in sorted(set(PACKAGES.values()))})


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("case", "world"),
    [(case, world) for case in CASES for world in case.worlds],
    ids=lambda value: f"{value.trainer}-{value.name}" if isinstance(value, Case) else str(value),
)
def test_every_sample_as_it_should_be(
    case: Case, world: int, kind: str, jobs: Jobs, found: page.Found
) -> None:
    package = PACKAGES[case.trainer]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-trainers does that")
    out = jobs(case.trainer, world)
    result = Result(out / case.name / kind, world)
    rule = case.rule
    torch = Result(out / (rule.as_if or case.name) / "torch", world)
    # Where a shared host draws, what it draws depends on who else is there.
    whole = Result(out / rule.as_if / kind, world) if rule.as_if and kind != "share" else None
    assert faults(result, kind, rule, torch, whole) == [], result.error
    found.setdefault(case.trainer, {}).setdefault(case.name, {}).setdefault(str(world), {})[kind] = verdict(
        result, rule
    )
