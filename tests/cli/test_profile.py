"""``headrace profile`` as a user calls it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.cli.show_profile import show_profile
from headrace.measure import Machine, Profile, learn, load_profile
from headrace.measure.cpu import CPU, Rate, Stage
from headrace.measure.seen import Cost, Seen, Starved
from headrace.measure.sizes import Sizes, Spread
from tests.core.test_bar import WIPED
from tests.measure.conftest import kept, photos

__all__ = ["kept", "photos"]

ROOT = Path(__file__).parents[2]
RECIPES = """
import numpy as np
import headrace as hr

print("hello from the user's own code")

def shrink(image):
    print("shrinking")
    return np.ascontiguousarray(image[::2, ::2])

small = hr.Recipe(hr.synthetic.source(50, shape=(8, 8)), hr.synthetic.decode(), [hr.deterministic(shrink)])
nothing = 3

def make():
    return hr.Recipe(hr.synthetic.source(60, shape=(4,)), hr.synthetic.decode())

def needs(argument):
    return small

if __name__ == "__main__":
    print(small.fingerprint(hr.Form.AUGMENTED), end="")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a user."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)]))
    here = tmp_path / "here"
    here.mkdir()
    (here / "recipes.py").write_text(RECIPES)
    monkeypatch.chdir(here)
    return here


def run(*arguments: str, seconds: str = "0.5") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "profile", *arguments, "--seconds", seconds],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def files_below(path: Path) -> list[Path]:
    return [entry for entry in path.rglob("*") if entry.is_file()]


def test_a_folder_is_measured_shown_and_kept(photos: Path, kept: Path) -> None:
    done = run(str(photos))
    assert done.returncode == 0 and not done.stderr
    labels = [line.split()[0] for line in done.stdout.splitlines() if line[:1].strip()]
    assert labels == ["recipe", "machine", "sizes", "storage", "cpu", "memory", "limit", "kept"]
    text = re.sub(" +", " ", done.stdout)
    assert f"{photos}, 24 samples" in text
    assert "threads decode augment prepare uncached copy" in text
    assert re.search(
        r"^limit cold: .*; from memory: CPU-bound at [\d,.]+.*; decoded samples cached: ", text, re.M
    )
    (path,) = files_below(kept)
    assert f"kept {path}" in text
    recipe = hr.Recipe(
        hr.folder(photos), hr.image.decode(), [hr.image.random_resized_crop(224), hr.image.horizontal_flip()]
    )
    assert load_profile(recipe) is not None, "a loader of the same recipe finds it"


def test_a_flat_folder_will_do(tmp_path: Path, photos: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(photos.rglob("*.jpg")):
        path.rename(flat / f"{number}.jpg")
    done = run(str(flat), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 24


@pytest.mark.parametrize(("rate", "said"), [(10.0, True), (25.0, False)])
def test_a_busy_machine_is_pointed_out(rate: float, said: bool) -> None:
    stage = Stage(0.04, 50.0, [Rate(1, rate)])
    sizes = Sizes(None, None, Spread(1.0, 0.0, 1, 1))
    profile = Profile(
        "", Machine("host", "cpu\x1b", 1, 1), "data", 10, 0.0, sizes, cpu=CPU(prepare=stage, uncached=stage)
    )
    text = show_profile(profile, "nowhere")
    assert ("one thread got 40% of a CPU: others were at work" in text) == said
    assert "not measured: decode reads the files itself" in text and "\x1b" not in text
    assert "limit       from memory: CPU-bound at 50.0 samples/s" in text


def test_what_jobs_have_learned_is_shown(photos: Path) -> None:
    recipe = hr.Recipe(
        hr.folder(photos), hr.image.decode(), [hr.image.random_resized_crop(224), hr.image.horizontal_flip()]
    )
    assert learn(recipe, job="train.py", consumption=1234.0)
    done = run(str(photos))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^jobs +name +takes samples/s\n +train.py +1,234$", done.stdout, re.M)


@pytest.mark.parametrize(("name", "samples"), [("recipes:small", 50), ("recipes:make", 60)])
def test_recipes_and_functions_of_a_module(name: str, samples: int, kept: Path) -> None:
    done = run(name, "--json")
    assert done.returncode == 0, done.stderr
    profile = msgspec.json.decode(done.stdout, type=Profile)
    assert profile.samples == samples
    (path,) = files_below(kept)
    assert msgspec.json.decode(path.read_bytes(), type=Profile) == profile
    assert run(name, "--forget").stdout == "forgotten\n"
    assert files_below(kept) == []
    done = run(name, "--forget")
    assert (done.returncode, done.stdout) == (0, "there was nothing to forget\n")


def test_a_script_is_known_by_the_same_fingerprint_when_it_runs() -> None:
    done = run("recipes.py:small", "--json")
    assert done.returncode == 0, done.stderr
    ran = subprocess.run(
        [sys.executable, "recipes.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["fingerprint"] == ran.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere:recipe", "there is no module 'nowhere'"),
        ("nowhere/else.py:recipe", "there is no Python file 'nowhere/else.py'"),
        ("recipes", "'recipes' is neither a folder nor module:recipe; write module:recipe"),
        ("no/such/folder", "no folder 'no/such/folder'; write"),
        ("recipes:", "write module:recipe"),
        ("recipes:large", "recipes has no 'large'; its recipes are small"),
        ("recipes:nothing", "recipes:nothing is of type int; it has to be a headrace.Recipe"),
        ("recipes:needs", "called without arguments to make a recipe, and that fails: TypeError"),
        ("broken:recipe", "broken cannot be imported: ZeroDivisionError: division by zero ("),
        ("lacking:recipe", "lacking cannot be imported: ModuleNotFoundError: No module named 'absent'"),
        ("empty", "the folder 'empty' is empty"),
        ("unlabelled", "has no files ending in"),
        ("bad:recipe", "not one of 5 samples could be prepared; the first: sample"),
    ],
)
def test_errors_say_what_to_do(text: str, said: str, place: Path, kept: Path) -> None:
    (place / "broken.py").write_text("1 / 0\n")
    (place / "lacking.py").write_text("import absent\n")
    (place / "bad.py").write_text(
        "import headrace as hr\nrecipe = hr.Recipe(hr.synthetic.source(5), hr.image.decode())\n"
    )
    (place / "empty").mkdir()
    (place / "unlabelled").mkdir()
    (place / "unlabelled" / "notes.txt").write_text("")
    done = run(text)
    assert done.returncode == 1
    assert "headrace: " in done.stderr and said in done.stderr
    assert not done.stdout and "Traceback" not in done.stderr
    assert files_below(kept) == []


def test_what_cannot_be_kept_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "recipes.py"))
    done = run("recipes:make", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["samples"] == 60
    assert "could not be kept" in done.stderr


def test_a_recipe_without_a_fingerprint_is_measured_and_the_reason_is_said(kept: Path, place: Path) -> None:
    (place / "heavy.py").write_text(
        "import numpy as np\nimport headrace as hr\nTABLE = np.zeros((300 << 20,), np.uint8)\n"
        "def look_up(value):\n    return value + TABLE[0]\n"
        "recipe = hr.Recipe(hr.synthetic.source(20, shape=(4,)), hr.synthetic.decode(), [look_up])\n"
    )
    done = run("heavy:recipe", seconds="0.2")
    assert done.returncode == 0
    assert "not kept: a step of the recipe cannot be told from another" in done.stdout
    assert "array of 300.0 MiB; 256.0 MiB is the limit" in done.stdout
    assert not list(kept.rglob("*.json"))


@pytest.mark.parametrize("when", [b"storage", b"cpu"])
def test_an_interrupt_ends_it_and_nothing_is_kept(when: bytes, kept: Path) -> None:
    """On a terminal, where the bar shows that it has begun."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "headrace.cli", "profile", "recipes:make", "--seconds", "60"]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=follower,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    shown, until = b"", time.monotonic() + 60
    while when not in shown and time.monotonic() < until:
        if select.select([leader], [], [], 1.0)[0]:
            shown += os.read(leader, 4096)
    assert "━━━".encode() in shown and when in shown
    os.killpg(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    while select.select([leader], [], [], 0.2)[0]:
        try:
            more = os.read(leader, 4096)
        except OSError:  # nobody is left at the other end
            break
        shown += more
    os.close(leader)
    assert (running.returncode, output) == (130, b"")
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)  # nor is a process left that it started
    assert b"Traceback" not in shown
    assert shown.endswith(WIPED), "the bar is wiped away"
    assert files_below(kept) == []


def test_what_loaders_saw_is_shown() -> None:
    seen = Seen(at=86400.0, decode=Cost(0.002, 0.001), supply=2e6, storage=Starved(1e6, 4.0, 0.01, at=1e300))
    text = show_profile(Profile("", Machine("host", "cpu", 1, 1), "data", 10, 0.0, seen=seen), "nowhere")
    assert re.search(
        r"^seen        by loaders, last on 1970-01-0\d .*; decode 1.000 CPU ms each; fetched at up to 2.0 MB/s$",
        text,
        re.MULTILINE,
    )
    assert "storage gave 1.0 MB/s when it was waited for, on ?: 4.0 reads at once, 10.00 ms each" in text
