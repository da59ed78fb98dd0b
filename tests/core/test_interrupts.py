"""Ctrl-C while a loader puts its workers away: nothing is printed but what the user's own code does with it."""

import signal

import pytest

from headrace.core import interrupts
from tests import prepared

SCRIPT = """
import os, signal, threading, time
import torch
import headrace as hr
from headrace.core import interrupts

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(0.05)
        return index

presses = {times}

def press():
    global presses
    presses -= 1
    os.kill(os.getpid(), signal.SIGINT)

def hold(hold=interrupts._holder.hold):
    held = hold()
    if held and presses == {times} - 1 > 0:
        press()  # again, as the loader is put away
    return held

def main():
    for number, _ in enumerate(hr.DataLoader(Slow(), batch_size=8, num_workers=1)):
        if number == 0:
            interrupts._holder.hold = hold
            threading.Thread(target=press, daemon=True).start()
            while True:
                time.sleep(0.01)  # a long one begun just as the signal comes would not be ended by it

try:
    main()
except KeyboardInterrupt:
    print("caught")
try:
    {wait}
    time.sleep({rest})
    print("rested")
except KeyboardInterrupt:
    print("caught again")
"""
UNHEARD = """
    kill = signal.pthread_kill
    def unheard(thread, number):
        interrupts.signal.pthread_kill = kill
    interrupts.signal.pthread_kill = unheard
"""


@pytest.mark.parametrize(
    ("times", "rest", "wait", "seen"),
    [
        (1, 0.1, "pass", ["caught", "rested"]),
        (2, 3600, "pass", ["caught", "caught again"]),
        (2, 3600, UNHEARD.strip(), ["caught", "caught again"]),
    ],
    ids=["once", "twice", "twice, and the main thread just begins to wait"],
)
def test_a_second_interrupt_comes_when_the_loader_is_put_away(tmp_path, times, rest, wait, seen):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(times=times, rest=rest, wait=wait))
    done = prepared.run(script)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == seen


@pytest.mark.parametrize("call", [1, 2], ids=["as it begins to be held", "as the handler is put back"])
def test_an_interrupt_is_never_lost(call, monkeypatch):
    put, calls = signal.signal, 0

    def one_comes_first(number, handler):
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return put(number, handler)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(interrupts.signal, "signal", one_comes_first)
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        pass
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), interrupts.held():  # the next one is held again
        signal.raise_signal(signal.SIGINT)
        last = "reached"
    assert last == "reached" and signal.getsignal(signal.SIGINT) is before
