"""Scripts without a main guard, where workers import them: the cause is named, once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNGUARDED = """
import headrace
data = DATA
print("begun")
for batch in headrace.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="METHOD"):
    pass
"""
PRELOADS = """
# (what forkserver was meant to do all along, and does in later versions of Python: the server imports the script)
import multiprocessing.spawn as spawn
known = spawn.get_preparation_data
def more(name):
    data = known(name)
    return {**data, "main_path": data["init_main_from_path"]} if "init_main_from_path" in data else data
spawn.get_preparation_data = more
"""
RECIPE = "headrace.Recipe(headrace.synthetic.source(40), headrace.synthetic.decode())"


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "begun"
    return done.stderr


@pytest.mark.parametrize(
    ("method", "data", "before"),
    [
        pytest.param("spawn", RECIPE, "", marks=pytest.mark.slow),
        pytest.param("forkserver", "list(range(40))", "", marks=pytest.mark.slow),
        pytest.param("forkserver", "list(range(40))", PRELOADS, marks=pytest.mark.slow),
    ],
    ids=["spawn", "forkserver", "forkserver that imports"],
)
def test_a_script_without_a_main_guard_is_told_so(
    tmp_path: Path, method: str, data: str, before: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(before + UNGUARDED.replace("METHOD", method).replace("DATA", data))
    said = run(script)
    assert f"multiprocessing's start method is '{method}'" in said
    assert 'if __name__ == "__main__":' in said
    assert "enough memory" not in said and "freeze_support" not in said
    if not before:
        assert said.count("Traceback") == 1, said


def test_a_worker_that_cannot_import_what_it_needs_is_not_tried_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = UNGUARDED.replace("METHOD", "spawn").replace("DATA", "list(range(40))").replace("\n", "\n    ")
    script.write_text(
        f"import os\nif __name__ == '__main__':{text}\nelse:\n    raise LookupError('not in a worker')\n"
    )
    said = run(script)
    assert "exited with status 1 while it was starting; what it printed says why" in said
    assert said.count("LookupError: not in a worker") == 1
