"""Ctrl-C while a loader puts its workers away: nothing is printed but what the user's own code does with it."""

import pytest

from tests import prepared

SCRIPT = """
import os, signal, threading, time
import torch
import headrace as hr

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(0.05)
        return index

def press():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range({times} - 1):
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(0.001)  # until the first has been seen, and interrupts are held back
        os.kill(os.getpid(), signal.SIGINT)

def main():
    for number, _ in enumerate(hr.DataLoader(Slow(), batch_size=8, num_workers=1)):
        if number == 0:
            threading.Thread(target=press, daemon=True).start()
            time.sleep(3600)

try:
    main()
except KeyboardInterrupt:
    print("caught")
try:
    time.sleep({rest})
    print("rested")
except KeyboardInterrupt:
    print("caught again")
"""


@pytest.mark.parametrize(
    ("times", "rest", "seen"), [(1, 0.1, ["caught", "rested"]), (2, 3600, ["caught", "caught again"])]
)
def test_a_second_interrupt_comes_when_the_loader_is_put_away(tmp_path, times, rest, seen):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(times=times, rest=rest))
    done = prepared.run(script)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == seen
