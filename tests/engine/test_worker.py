"""A worker process on its own: how it starts, what it says, and how it ends."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from contextlib import closing

import pytest

from headrace.cache.arena import Arena
from headrace.channel.channel import receive_within
from headrace.channel.unix import pair
from headrace.coordinate.messages import Failed, OrderDone, Ready, Run, Stop, Threads, decode_event, encoder
from headrace.coordinate.messages import Order as HostOrder
from headrace.engine import affinity, link
from headrace.engine.affinity import keep_to
from headrace.engine.board import Board
from headrace.engine.link import Link, shortened
from headrace.engine.worker import Portable, RemoteError, Settled, rebuild, worker_main


class Echo:
    """Reports which commands it got, and when it serves."""

    def __init__(self, link, init=None):
        self.link, self.commands = link, []
        if init is not None:
            init()

    def on_command(self, command):
        self.commands.append(type(command).__name__)
        if not isinstance(command, Stop):
            self.link.send(OrderDone(0, [], result=" ".join(self.commands).encode()))

    def serve(self):
        while not self.link.stopped:
            time.sleep(0.005)


class EchoTask:
    """Starts an ``Echo``."""

    def __init__(self, init=None, serve=None):
        self.init, self.serve = init, serve

    def start(self, link):
        echo = Echo(link, self.init)
        if self.serve is not None:
            echo.serve = self.serve
        return echo


class Host:
    """The other end of a worker's link."""

    def __init__(self, task, method="fork"):
        self.arena = Arena()
        self.board = Board(self.arena)
        self.channel, theirs = pair()
        link = Link(3, 0, self.arena, self.board, theirs)
        context = multiprocessing.get_context(method)
        close = [self.channel.fileno()] if method == "fork" else []
        self.process = context.Process(target=worker_main, args=(link, Portable(task), close), daemon=True)
        self.process.start()
        theirs.close()

    def event(self, timeout=30.0):
        """The next event; None at the end of the link."""
        received = receive_within(self.channel, timeout, 1 << 30)
        return None if received is None else decode_event(received[0])

    def send(self, command):
        self.channel.send(encoder.encode(command))

    def ended(self):
        self.process.join(30)
        return self.process.exitcode

    def close(self):
        self.channel.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.board.close()
        self.arena.close()


@pytest.fixture
def start():
    """Starts workers, and ends them."""
    hosts = []

    def begin(*args, **options):
        hosts.append(Host(*args, **options))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.close()


def test_a_worker_says_that_it_is_ready_and_stops_when_told(start):
    host = start(EchoTask())
    assert host.event() == Ready(host.process.pid)
    host.send(Threads(2))
    assert host.event().result == b"Threads"
    host.send(Stop())
    assert host.event() is None
    assert host.ended() == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.slow
def test_a_task_with_lambdas_reaches_other_kinds_of_processes(start, method):
    host = start(EchoTask(init=lambda: None), method)
    assert isinstance(host.event(), Ready)
    host.send(Threads(1))
    assert host.event().result == b"Threads"


@pytest.mark.slow
def test_under_forkserver_a_worker_that_hears_nothing_for_long_stays(start):
    """Its parent is the fork server, and not the job."""
    host = start(EchoTask(), "forkserver")
    assert isinstance(host.event(), Ready)
    time.sleep(2.5)
    host.send(Threads(1))
    assert host.event().result == b"Threads"


def test_a_task_that_cannot_start_says_why(start):
    def fail():
        raise LookupError("no data here")

    host = start(EchoTask(init=fail))
    event = host.event()
    assert isinstance(event, Failed)
    error = rebuild(event.error)
    assert isinstance(error, LookupError)
    assert "Caught LookupError in DataLoader worker process 3" in str(error)
    assert "in fail" in str(error)
    assert host.ended() == 0


def test_a_task_that_cannot_go_on_says_why(start):
    def fail():
        raise ZeroDivisionError("now what")

    host = start(EchoTask(serve=fail))
    assert isinstance(host.event(), Ready)
    assert isinstance(rebuild(host.event().error), ZeroDivisionError)


def test_commands_that_come_early_are_kept_in_order(start, tmp_path):
    gate = tmp_path / "gate"

    def wait():
        while not gate.exists():
            time.sleep(0.005)

    host = start(EchoTask(init=wait))
    host.send(Threads(2))
    host.send(Run(HostOrder(0, 0, 0, 1, 0, 0, 0, 0, b"")))
    host.send(Threads(3))
    time.sleep(0.1)
    gate.touch()
    found = [host.event() for _ in range(4)]
    assert [event.result.decode().split()[-1] for event in found if isinstance(event, OrderDone)] == [
        "Threads", "Run", "Threads",
    ]  # fmt: skip


@pytest.mark.parametrize("moment", ["starting", "serving"])
def test_the_end_of_the_link_ends_the_worker(start, moment):
    host = start(EchoTask(init=(lambda: time.sleep(1000)) if moment == "starting" else None))
    if moment == "serving":
        assert isinstance(host.event(), Ready)
    host.channel.close()
    assert host.ended() == 1


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_signals_that_end_it(start, sign, status):
    host = start(EchoTask())
    host.event()
    os.kill(host.process.pid, sign)
    assert host.ended() == status


def test_an_interrupt_is_not_for_the_worker(start):
    host = start(EchoTask())
    host.event()
    os.kill(host.process.pid, signal.SIGINT)
    host.send(Threads(1))
    assert host.event().result == b"Threads"


def test_an_interrupt_that_waited_is_not_for_the_worker_either(start):
    """Started with interrupts blocked, it lifts the block only when it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        host = start(EchoTask(init=lambda: os.kill(os.getpid(), signal.SIGINT)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert isinstance(host.event(), Ready)


class Talker(EchoTask):
    def start(self, link):
        echo = super().start(link)
        echo.serve = lambda: link.send(OrderDone(1, [], result=bytes(10_000_000)))
        return echo


def test_a_report_may_be_long(start):
    """That of a batch which is collated as a whole has a line for every row."""
    host = start(Talker())
    assert isinstance(host.event(), Ready)
    assert host.event().result == bytes(10_000_000)


def test_a_report_that_is_too_large_fails_and_does_not_kill(start, monkeypatch):
    monkeypatch.setattr(link, "REPLY_LIMIT", 1 << 20)
    host = start(Talker())
    assert isinstance(host.event(), Ready)
    assert "too large for a message" in str(rebuild(host.event().error))


class Odd(Exception):
    """Cannot be made of a single string."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def remote(error):
    try:
        raise error
    except BaseException as raised:
        return rebuild(RemoteError(raised, "somewhere").dumps())


def test_errors_keep_their_type_where_it_can_be_made_again():
    assert type(remote(ValueError("v"))) is ValueError
    assert type(remote(FileNotFoundError(2, "gone"))) is FileNotFoundError
    assert type(remote(KeyError("k"))) is KeyError
    assert "Original Traceback" in str(remote(KeyError("k")))
    assert "\n" in str(remote(KeyError("k"))), "readable, and not the repr of one long line"


@pytest.mark.parametrize(
    "error", [Odd(1, 2), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda e: type(e).__name__
)
def test_errors_that_cannot_be_made_again_or_must_not_spread_are_runtime_errors(error):
    rebuilt = remote(error)
    assert type(rebuilt) is RuntimeError
    assert type(error).__name__ in str(rebuilt)
    assert "Traceback" in str(rebuilt)


def test_an_error_whose_class_does_not_pickle_arrives_by_name():
    class Strange(Exception):
        def __reduce__(self):
            raise TypeError("no")

    class Meta(type):
        def __reduce_ex__(cls, protocol):
            raise TypeError("this class does not travel")

    class Stuck(Exception, metaclass=Meta):
        pass

    assert "Strange" in str(remote(Strange("x")))
    assert "Stuck" in str(remote(Stuck("x")))


def test_tracebacks_are_cut_in_the_middle():
    text = str(remote(ValueError("a" * 200_000 + "the end")))
    assert len(text) < 50_000
    assert "Traceback" in text
    assert text.rstrip().endswith("the end")
    assert "characters ..." in text


@pytest.mark.parametrize("count", [1, 3, 100, 5000])
def test_any_number_of_faults_fits_a_message(count):
    faults = [(row, "ü" * 10_000, "ü" * 100_000) for row in range(count)]
    cut = shortened(faults)
    assert [row for row, _, _ in cut] == list(range(count))
    assert all(reason for _, reason, _ in cut)
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        data = encoder.encode(OrderDone(1, cut))
        theirs.send(data)
        assert ours.receive() == (data, None)


def test_small_faults_are_left_as_they_are():
    faults = [(0, "reason", "trace"), (5, "other", "")]
    assert shortened(faults) == faults


def test_a_portable_task_pickles_with_closures():
    number = 4
    task = pickle.loads(pickle.dumps(Portable(EchoTask(init=lambda: number)))).task
    assert task.init() == 4


def cpus_in_a_worker(start, task, method="fork"):
    host = start(task, method)
    assert isinstance(host.event(), Ready)
    host.send(Threads(1))
    return [frozenset(map(int, cpus.split(b","))) for cpus in host.event().result.split(b"|")]


def own_cpus():
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


class WhereTask(EchoTask):
    """Says on which CPUs it may run: its main thread, and the one that listens to the host."""

    def start(self, link):
        echo = super().start(link)
        main = own_cpus()
        echo.on_command = lambda _: link.send(OrderDone(0, [], result=f"{main}|{own_cpus()}".encode()))
        return echo


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_keeps_to_its_cpus_with_all_its_threads(start, method):
    everything = sorted(os.sched_getaffinity(0))
    cpus = [frozenset({everything[0]}), frozenset({everything[-1]})]
    # It is number 3, and there are two sets.
    assert cpus_in_a_worker(start, Settled(WhereTask(), cpus), method) == [cpus[1]] * 2
    assert sorted(os.sched_getaffinity(0)) == everything


@pytest.mark.parametrize("cpus", [[8191], []])
def test_a_worker_that_is_not_let_onto_its_cpus_works_all_the_same(start, cpus):
    everything = frozenset(os.sched_getaffinity(0))
    assert cpus_in_a_worker(start, Settled(WhereTask(), [frozenset(cpus)])) == [everything] * 2


def test_where_threads_cannot_be_listed_the_one_that_calls_moves(monkeypatch):
    calls = []
    monkeypatch.setattr(affinity, "_THREADS", "/none")
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: calls.append((thread, cpus)))
    keep_to([3, 1])
    assert calls == [(0, {1, 3})]
    monkeypatch.delattr(os, "sched_setaffinity")  # as where systems have no such thing
    keep_to([3, 1])


def _report_nice(link):
    """What a worker's thread is like, and a thread that it starts."""

    class Reporter(Echo):
        def serve(self):
            found = []
            thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
            thread.start()
            thread.join()
            found.append(os.getpriority(os.PRIO_PROCESS, 0))
            self.link.send(OrderDone(0, [], result=repr(found).encode()))
            super().serve()

    return Reporter(link)


class NiceTask:
    def start(self, link):
        return _report_nice(link)


@pytest.mark.parametrize(("said", "more"), [(None, 10), ("0", 0), ("3", 3)])
def test_workers_are_less_urgent_than_the_loop(start, monkeypatch, said, more):
    if said is None:
        monkeypatch.delenv("HEADRACE_NICE", raising=False)
    else:
        monkeypatch.setenv("HEADRACE_NICE", said)
    host = start(NiceTask())
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert isinstance(host.event(), Ready)
    assert host.event().result == repr(2 * [min(19, mine + more)]).encode()


def test_a_nice_value_that_is_none_is_said(start, monkeypatch):
    monkeypatch.setenv("HEADRACE_NICE", "very")
    host = start(EchoTask())
    found = host.event()
    assert isinstance(found, Failed) and "HEADRACE_NICE" in str(rebuild(found.error))
