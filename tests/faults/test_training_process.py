"""The training process ends, in every way there is: workers end with it, and nothing is left."""

import os
import random
import signal
import time

import pytest

from tests.faults.helpers import SOAK, Job

_TRAIN = """
import os, sys, time
import numpy as np
import headrace as hr

def slow(data):
    time.sleep({work})
    return np.frombuffer(data, np.uint8)[:16].copy()

def main():
    source = hr.synthetic.source(100000, classes=10)
    loader = hr.DataLoader(
        hr.Recipe(source, decode=slow), batch_size=16, shuffle=True, num_workers=2, cache="8MiB",
        multiprocessing_context={context!r},
    )
    print("ready", flush=True)
    for step, batch in enumerate(loader):
        if step == {after}:
            print("training", flush=True)
        time.sleep({step})

if __name__ == "__main__":
    main()
"""


def train(folder, *, work=0.001, step=0.0, after=3, context=None, **environment):
    script = _TRAIN.format(work=work, step=step, after=after, context=context)
    return Job(script, folder, **environment)


@pytest.mark.parametrize("seed", range(2 * SOAK))
def test_killed_at_a_random_moment(tmp_path, seed):
    job = train(tmp_path)
    job.wait_for("training")
    time.sleep(random.Random(seed).random() * 0.3)
    job.note_family()
    assert len(job.family) == 2
    job.process.kill()
    job.finish()
    job.assert_nothing_left()


@pytest.mark.parametrize("wait", [0.0, 0.05])
def test_killed_while_workers_start(tmp_path, wait):
    job = train(tmp_path)
    job.wait_for("ready")
    deadline = time.monotonic() + 20
    while not job.family and time.monotonic() < deadline:
        job.note_family()
    time.sleep(wait)
    job.note_family()
    job.process.kill()
    job.finish()
    assert job.family
    job.assert_nothing_left()


def test_killed_while_user_code_sets_workers_up(tmp_path):
    """Workers that are not yet at work notice, too, that nobody waits for them."""
    job = Job(
        """
        import time
        import headrace as hr

        def init(worker):
            print("setting up\\n", end="", flush=True)  # in one piece: two workers say so
            time.sleep(1000)

        source = hr.synthetic.source(100, shape=(4,))
        recipe = hr.Recipe(source, decode=hr.synthetic.decode())
        next(iter(hr.DataLoader(recipe, num_workers=2, worker_init_fn=init)))
        """,
        tmp_path,
    )
    job.wait_for("setting up")
    time.sleep(0.3)
    job.note_family()
    job.process.kill()
    job.finish()
    assert len(job.family) == 2
    job.assert_nothing_left()


def test_killed_while_another_child_lives_on(tmp_path):
    """A child that the job forked holds copies of the links; workers must not take it for the job."""
    job = Job(
        """
        import os, time
        import headrace as hr

        source = hr.synthetic.source(100000, shape=(4,))
        loader = hr.DataLoader(hr.Recipe(source, decode=hr.synthetic.decode()), batch_size=4, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        if os.fork() == 0:
            time.sleep(12)
            os._exit(0)
        print("training", flush=True)
        time.sleep(1000)
        """,
        tmp_path,
    )
    job.wait_for("training")
    job.process.kill()
    job.process.wait()
    workers = job.family
    deadline = time.monotonic() + 10
    while len(job.left()) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    left = job.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(workers) == 3
    assert len(left) == 1, "only the forked child is left"
    job.finish()


def test_sigterm(tmp_path):
    job = train(tmp_path)
    job.wait_for("training")
    job.process.terminate()
    status, _, _ = job.finish()
    assert status == -signal.SIGTERM
    job.assert_nothing_left()


def test_sigterm_to_all_its_processes(tmp_path):
    job = train(tmp_path)
    job.wait_for("training")
    os.killpg(job.process.pid, signal.SIGTERM)
    status, _, errors = job.finish()
    assert status == -signal.SIGTERM
    assert "Traceback" not in errors
    job.assert_nothing_left()


@pytest.mark.parametrize(
    ("moment", "context"),
    [("waiting", None), ("training", None), pytest.param("waiting", "spawn", marks=pytest.mark.slow)],
)
def test_ctrl_c(tmp_path, moment, context):
    """As a terminal sends it: to every process of the job at once."""
    slow = {"work": 0.05, "after": 0} if moment == "waiting" else {"step": 0.3}
    job = train(tmp_path, context=context, **slow)
    job.wait_for("training")
    time.sleep(0.1)
    os.killpg(job.process.pid, signal.SIGINT)
    status, _, errors = job.finish()
    assert status in (-signal.SIGINT, 130, 1)
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    job.assert_nothing_left()


@pytest.mark.parametrize("seed", range(2))
def test_ctrl_c_while_everything_starts(tmp_path, seed):
    job = train(tmp_path, context=("fork", "spawn")[seed], work=0.01)
    job.wait_for("ready")
    time.sleep(random.Random(seed).random() * 0.4)
    job.note_family()
    os.killpg(job.process.pid, signal.SIGINT)
    _, _, errors = job.finish()
    job.assert_nothing_left()
    assert errors.count("Traceback") == 1, errors
    assert "headrace-worker" not in errors
    assert "SpawnProcess" not in errors


def test_ctrl_c_can_be_caught_and_loading_goes_on(tmp_path):
    job = Job(
        """
        import os, signal, threading, time
        import headrace as hr

        source = hr.synthetic.source(64, shape=(4,), classes=64, latency=0.02)
        loader = hr.DataLoader(hr.Recipe(source, decode=hr.synthetic.decode()), batch_size=16, num_workers=2, seed=1)
        caught = 0
        for attempt in range(3):
            threading.Timer(0.2, os.killpg, (os.getpgid(0), signal.SIGINT)).start()
            try:
                for batch in loader:
                    pass
                time.sleep(5)
            except KeyboardInterrupt:
                caught += 1
        loader.set_epoch(0)
        seen = sorted(label for _, labels in loader for label in labels.tolist())
        print(caught, seen == list(range(64)), flush=True)
        loader.close()
        """,
        tmp_path,
    )
    status, out, errors = job.finish()
    assert (status, out.split(), errors) == (0, ["3", "True"], "")


def test_ctrl_c_in_the_middle_of_a_fork_is_not_lost(tmp_path):
    """What is raised in what Python calls before and after a fork is printed, and forgotten."""
    job = Job(
        """
        import os, signal, threading, time
        import headrace as hr

        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

        over = threading.Event()
        threading.Thread(target=over.wait).start()  # (takes the signal, where this thread has it blocked)
        source = hr.synthetic.source(64, shape=(4,), classes=64)
        loader = hr.DataLoader(hr.Recipe(source, decode=hr.synthetic.decode()), batch_size=16, num_workers=2, seed=1)
        os.register_at_fork(before=interrupt)
        caught = 0
        try:
            list(loader)
        except KeyboardInterrupt:
            caught += 1
        print(caught, flush=True)
        loader.close()
        over.set()
        """,
        tmp_path,
    )
    assert job.finish() == (0, "1\n", "")


@pytest.mark.parametrize("way", ["return", "raise", "os._exit"])
def test_an_end_without_close(tmp_path, way):
    endings = {
        "return": "pass",
        "raise": "raise ValueError('bug')",
        "os._exit": "os._exit(4)",
    }
    job = Job(
        f"""
        import os, sys
        import headrace as hr

        source = hr.synthetic.source(1000, shape=(4,))
        loader = hr.DataLoader(hr.Recipe(source, decode=hr.synthetic.decode()), batch_size=4, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        print("training", flush=True)
        {endings[way]}
        """,
        tmp_path,
    )
    job.wait_for("training")
    status, _, errors = job.finish()
    assert status == {"return": 0, "raise": 1, "os._exit": 4}[way]
    assert errors.count("Traceback") == (way == "raise"), errors
    assert "Exception ignored" not in errors
    job.assert_nothing_left()


def test_killed_with_a_file_in_a_directory(tmp_path):
    """The arena's file has no name, so nothing stays where it lay."""
    memory = tmp_path / "memory"
    memory.mkdir()
    job = train(tmp_path, HEADRACE_SHM_DIR=str(memory))
    job.wait_for("training")
    assert list(memory.iterdir()) == []
    job.process.kill()
    job.finish()
    job.assert_nothing_left()
    assert list(memory.iterdir()) == []
