"""Examples and documents are what users try first: all of them run here, and what they say is checked."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import measure
from headrace.host import control
from headrace.host.workers import Workers
from tests.sources.s3_server import running

REPO = Path(__file__).resolve().parent.parent
EXAMPLES = REPO / "examples"
SOURCE = Path(headrace.__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES))
DATA = importlib.import_module("_data")
sys.path.remove(str(EXAMPLES))
DOCUMENTS = sorted([*REPO.glob("*.md"), *(REPO / "docs").glob("*.md")])

PRINTS = {
    "01_drop_in": ["images (32, 3, 64, 64) torch.uint8, labels (32,)", "3 batches of 96 samples"],
    "02_recipe": ["epoch 1: (32, 3, 64, 64) torch.float32, channels_last: True", "samples 96", "of class 0"],
    "03_cache": [
        "epoch 3: 0 files read",
        "cached: 96 samples, 230464 bytes",
        "cached: 96 samples, 27712 bytes",
    ],
    "04_resume": ['"position": 32', "4 batches left, equal bit for bit: True", "64 samples left"],
    "05_own_transforms": ["(16, 60, "],
    "06_bad_samples": [
        "/class_1/00011.jpg - truncated JPEG",
        "skip: batches of [30, 32, 32]",
        "substitute: batches of [32, 32, 32]",
        "starts with b'<html>40'",
        "2 bad samples, and the error budget is 1",
    ],
    "07_distributed": [
        "epoch 1: 4 batches per rank, [32, 32] samples",
        "together each sample once: True\nepoch 1",
    ],
    "08_stats": ["slow storage: the loop waited", "delivered   192 samples in 12 batches"],
    "09_to_device": ["torch.uint8 (32, 3, 64, 64) -> torch.float32 (32, 8, 31, 31)"],
    "10_share": [
        "job 1: 576 samples",
        "job 2: 576 samples",
        "job 3: 576 samples",
        "for 1728 samples delivered",
    ],
    "11_sampling": [
        f"{sampling}: each sample once an epoch: True"
        for sampling in ("uniform", "opportunistic", "dependent", "auto")
    ],
    "12_torchrun": [
        "start 0: epoch 0, step 0\nepoch 0: each sample once: True\n"
        "start 1: epoch 1, step 6\nepoch 1: each sample once: True\nepoch 2: each sample once: True",
    ],
    "13_cluster": [
        "servers     3, with 192.0 MiB together",
        "node 3 was killed, in the middle of an epoch",
        *(
            f"job on node {node}: epoch {epoch}: each sample once: True"
            for node in (1, 2)
            for epoch in range(4)
        ),
        "job on node 1: cluster     ",
        "job on node 2: cluster     ",
        "FileSource(",
        "the node servers have ended",
    ],
}


ALONE = {"07_distributed", "10_share", "12_torchrun", "13_cluster"}
"""Start processes that import the main script, so it has to be one."""

TOGETHER = """
import runpy, sys, traceback
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    print(f"<<{name}>>", flush=True)
    try:
        runpy.run_path(f"{sys.argv[1]}/{name}.py", run_name="__main__")
    except BaseException:
        traceback.print_exc(file=sys.stdout)
"""


def run_python(*arguments: str) -> str:
    """What a Python process prints that has no terminal, as in continuous integration."""
    # The package may be on the path without being installed.
    environment = {
        **os.environ,
        "PYTHONPATH": f"{SOURCE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    ran = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    assert "Error" not in ran.stderr, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each example prints. They share a process, because importing torch takes longer than most of them."""
    names = sorted(PRINTS.keys() - ALONE)
    parts = re.split(r"^<<(.*)>>$", run_python("-c", TOGETHER, str(EXAMPLES), *names), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_no_example_is_left_out() -> None:
    numbered = {path.stem for path in EXAMPLES.glob("[0-9]*.py")}
    assert numbered == {"00_demo", *PRINTS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALONE else ()) for name in sorted(PRINTS)]
)
def test_example(name: str, printed: dict[str, str]) -> None:
    said = run_python(str(EXAMPLES / f"{name}.py")) if name in ALONE else printed[name]
    assert "Traceback" not in said, said
    for line in PRINTS[name]:
        assert line in said


def test_the_cluster_without_ray_says_what_to_install() -> None:
    code = "import runpy, sys; sys.path.insert(0, sys.argv[1]); sys.modules['ray'] = None; "
    code += "runpy.run_path(f'{sys.argv[1]}/13_cluster.py', run_name='__main__')"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1 and not ran.stdout
    assert ran.stderr == "this example needs Ray; install it with: pip install 'headrace[ray]'\n"


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    def write_times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}

    root = tmp_path / "160"
    first = root / "class_3" / "00003.jpg"
    first.parent.mkdir(parents=True)
    first.write_bytes(DATA.picture(3))
    before = write_times()
    said = run_python(str(EXAMPLES / "00_demo.py"), "--quick", "--data", str(tmp_path))
    for words in ("torch DataLoader", "headrace", "waiting for data", "CPU-seconds", "accuracy"):
        assert words in said
    after = write_times()
    assert len(after) == 160
    assert before.items() <= after.items()  # what was there is not made again
    assert not list(tmp_path.rglob("*.partial"))


# -- documents -----------------------------------------------------------------------------------------------


def python_blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a document and the lines they start at, but for those marked as not run."""
    pattern = re.compile(r"^(<!-- not run -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        (text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in pattern.finditer(text)
        if not match[1]
    ]


def missing_packages(code: str) -> list[str]:
    """Packages that a block imports and that are not installed here."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
            if node.module.startswith("ray.train"):
                names.add("pydantic")  # (which Ray alone does without)
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


@pytest.fixture(scope="module")
def pictures() -> Iterator[Path]:
    with DATA.image_folder(48, size=(320, 240)) as root:
        yield root


@pytest.fixture
def private_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks that share start a host of their own, which is gone afterwards; so are profiles that they keep."""
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as place:  # a socket's path is short
        monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{place}/run")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{place}/cache")
        yield
        gc.collect()  # loaders that a block left open
        control.stop()


def run_blocks(document: Path, pictures: Path, name: str = "__main__") -> set[str]:
    """Run a document's Python blocks, one after the other as a reader does; packages that some of them lack."""
    namespace: dict[str, object] = {"__name__": name}
    lacking: set[str] = set()
    for line, block in python_blocks(document.read_text()):
        code = block.replace("/data/train", str(pictures))
        absent = missing_packages(code)
        if absent:
            lacking |= set(absent)
            continue
        # Blank lines put tracebacks onto the document's own line numbers.
        exec(compile("\n" * (line - 1) + code, str(document), "exec"), namespace)
    return lacking


@pytest.fixture
def reader(tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tries a document's blocks, in a directory with data."""
    monkeypatch.chdir(tmp_path)
    Path("train").symlink_to(pictures)


@pytest.fixture
def shards(document: Path, reader: None, pictures: Path) -> None:
    """The page on where data lies finds the pictures in shards, too; the page on shards makes its own."""
    if document.name != "data.md":
        return
    Path("shards").mkdir()
    files = sorted(path for path in pictures.rglob("*") if path.is_file())
    classes = sorted({path.parent.name for path in files})
    for shard in range(3):
        with tarfile.open(f"shards/train-{shard:04d}.tar", "w") as archive:
            for number, path in [*enumerate(files)][shard::3]:
                archive.add(path, f"{number:04d}.jpg")
                label = str(classes.index(path.parent.name)).encode()
                member = tarfile.TarInfo(f"{number:04d}.cls")
                member.size = len(label)
                archive.addfile(member, io.BytesIO(label))


@pytest.fixture
def bucket(document: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents that speak of a bucket find the pictures in a real one."""
    if "s3://my-bucket" not in document.read_text():
        return
    server = running()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    files = [path for path in pictures.rglob("*") if path.is_file()]
    server.put("my-bucket", {f"train/{path.relative_to(pictures)}": path.read_bytes() for path in files})


@pytest.mark.usefixtures("private_host", "reader", "shards", "bucket")
@pytest.mark.parametrize("document", [REPO / "docs" / "data.md"], ids=["data"])
def test_four_places_have_the_same_lines_and_the_same_samples(document: Path, pictures: Path) -> None:
    blocks = [block for _, block in python_blocks(document.read_text())]
    assert len(blocks) == 4
    rest = set()
    for block in blocks:
        lines = [line for line in block.splitlines() if line and line != "import datasets"]
        assert len(lines) == 9 and sum("source=" in line for line in lines) == 1
        rest.add("\n".join(line for line in lines if "source=" not in line))
    assert len(rest) == 1, "but for the source they are alike"
    found = []
    for block in blocks:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(block.replace("/data/train", str(pictures)), namespace)
        source = namespace["train"].source
        samples = [bytes(data) for data in source.read_many(range(len(source)))]
        found.append(sorted(zip(samples, source.targets.tolist(), strict=True)))
    assert all(one == found[0] for one in found) and len(found[0]) == 48


@pytest.mark.usefixtures("private_host", "reader", "shards", "bucket")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_python_blocks_run(document: Path, pictures: Path) -> None:
    lacking = run_blocks(document, pictures)
    if lacking:
        pytest.skip(f"some blocks need {', '.join(sorted(lacking))}")


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a worker that imports this would start workers: it needs a main guard")

    monkeypatch.setattr(Workers, "start", start)


@pytest.mark.usefixtures("private_host", "reader", "shards", "bucket", "no_workers")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_workers_can_import_python_blocks(document: Path, pictures: Path) -> None:
    """As those of the start methods spawn and forkserver do."""
    run_blocks(document, pictures, "__mp_main__")


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("name", ["00_demo", *sorted(PRINTS)])
def test_workers_can_import_examples(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__mp_main__")
    assert not capsys.readouterr().out


@pytest.mark.usefixtures("private_host", "reader")
def test_the_page_on_profiles_holds_once_a_loader_has_run(pictures: Path) -> None:
    """A loader keeps what it sees of a recipe, which is not all that can be measured."""
    steps = [headrace.image.random_resized_crop(64), headrace.image.horizontal_flip()]
    train = headrace.Recipe(headrace.folder(pictures), headrace.image.decode(), steps)
    with headrace.DataLoader(train, batch_size=16, cache="64MiB", num_workers=1) as loader:
        for _ in loader:
            pass
    profile = measure.load_profile(train)
    assert profile is not None and profile.seen is not None and not profile.measured
    assert not run_blocks(REPO / "docs" / "profile.md", pictures)
    profile = measure.load_profile(train)
    assert profile is not None and profile.seen is not None and profile.measured


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{document.name} links to {target}"


def string_literals() -> list[str]:
    """All string literals of the package, what varies in them as a NUL."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_troubleshooting_quotes_real_messages() -> None:
    text = (REPO / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^### `(.*)`$", text, re.MULTILINE)
    assert len(messages) > 15
    literals = string_literals()
    for message in messages:
        pattern = re.compile(".*".join(re.escape(part) for part in message.split("...")), re.DOTALL)
        assert any(pattern.search(literal) for literal in literals), message
