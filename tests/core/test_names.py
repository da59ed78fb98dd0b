"""The names of the package: they come in when they are asked for, and are all there."""

import subprocess
import sys

import pytest

import headrace

SCRIPT = """
import sys
import headrace
assert not {"torch", "cv2", "numpy", "headrace.recipes", "rich"} & set(sys.modules)
for name in (*headrace.__all__, "core", "recipes", "sources"):
    assert getattr(headrace, name) is not None
    assert name in dir(headrace) or name not in headrace.__all__
assert "torch" in sys.modules and "rich" not in sys.modules
"""


def test_every_name_is_found_and_none_comes_unasked() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Dataloader'"):
        headrace.Dataloader  # noqa: B018
