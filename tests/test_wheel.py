"""The wheel and the sdist that `make wheel` builds: named as they should be, complete, and fast where installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

DIST = os.environ.get("HEADRACE_WHEELS", "")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DIST, reason="needs a built wheel: run `make wheel`"),
]

_DECODES = """
import json, sys
from headrace.recipes.image import kernels
import numpy as np
blob = open(sys.argv[1], "rb").read()
_, width, height, _, _ = kernels.probe_many([blob])[0]
out = np.empty((height, width, 3), np.uint8)
status = kernels.decode_many(kernels.Workspace(), [blob], None, [out])
print(json.dumps([kernels.NATIVE, kernels.describe(), status.tolist(), out.mean((0, 1)).tolist(), kernels.__file__]))
"""


def only(pattern: str) -> Path:
    (found,) = Path(DIST).glob(pattern)
    return found


def test_one_wheel_serves_every_python_and_names_its_platform() -> None:
    name = only("*.whl").name
    assert "-cp311-abi3-manylinux" in name
    inside = zipfile.ZipFile(only("*.whl")).namelist()
    for built in ("headrace/recipes/image/_kernels.abi3.so", "headrace/core/_native.abi3.so"):
        assert built in inside
        code = zipfile.ZipFile(only("*.whl")).read(built)
        assert sys.base_prefix == "/usr" or sys.base_prefix.encode() not in code
    assert "headrace/py.typed" in inside
    assert any(path.startswith("headrace/simulate/scenarios/") for path in inside)
    assert not [path for path in inside if path.endswith((".c", ".h"))]


def test_the_sdist_has_what_is_in_c() -> None:
    with tarfile.open(only("*.tar.gz")) as archive:
        names = {path.partition("/")[2] for path in archive.getnames()}
    root = Path(__file__).parents[1]
    sources = {str(path.relative_to(root)) for path in (root / "src").rglob("*.[ch]")}
    assert {"src/headrace/recipes/image/jpeg.c", "src/headrace/core/words.c"} < sources <= names


def test_a_clean_environment_without_a_compiler_decodes_with_the_c_kernels(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    # nothing but the environment's own programs: no compiler; and no headers, were there one
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADRACE"))}
    bare.update(PATH=str(tmp_path / "venv/bin"), CPATH="/nowhere", C_INCLUDE_PATH="/nowhere")
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", only("*.whl")]
    subprocess.run(install, check=True, env=bare, cwd=tmp_path)
    photo = np.full((40, 60, 3), (30, 60, 200), np.uint8)
    cv2.imwrite(str(tmp_path / "photo.jpg"), photo)
    answer = subprocess.run(
        [python, "-c", _DECODES, tmp_path / "photo.jpg"],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    native, described, status, means, where = json.loads(answer.stdout)
    assert native, described
    assert "pillow.libs" in described
    assert status == [0]
    assert np.abs(np.array(means) - [200, 60, 30]).max() < 3
    assert where.startswith(str(tmp_path / "venv"))
