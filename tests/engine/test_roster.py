"""The roster: rows of ranks that live, whatever happened to others; and permits, never more than there may be."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import threading
import time

import pytest

from headrace.engine import permits as permits_module
from headrace.engine.deciding import Decider
from headrace.engine.permits import Permits
from headrace.engine.roster import (
    DECIDED_AT,
    DECIDER,
    INTERVAL,
    LIMIT,
    PID,
    PREPARE,
    ROWS,
    TAKEN_AT,
    WAITING,
    Roster,
    alive,
    started,
)
from headrace.engine.said import Said
from headrace.engine.seat import Seat
from tests.loader.helpers import wait_until

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def roster(tmp_path) -> Roster:
    made = Roster.at(str(tmp_path / "roster"))
    made.header[LIMIT] = 2
    return made


@pytest.fixture(params=["native", "python"])
def waits(request, monkeypatch):
    """With futexes, and where there are none."""
    if request.param == "python":
        monkeypatch.setattr(permits_module, "calls", None)
    elif permits_module.calls is None:
        pytest.skip("what is in C is not built")


def ended(process) -> None:
    process.join(20)
    assert process.exitcode is not None


# -- rows -----------------------------------------------------------------------------------------------------


def test_rows_of_the_dead_are_taken_again(roster):
    kept = roster.take_row()
    ready = FORK.Event()

    def other() -> None:
        roster.attach()
        roster.take_row()
        ready.set()
        time.sleep(60)

    child = FORK.Process(target=other)
    child.start()
    assert ready.wait(20)
    assert roster.present() == [kept, kept + 1]
    os.kill(child.pid, signal.SIGKILL)
    # Also before anybody has waited for it: a zombie has no threads.
    assert wait_until(lambda: not started(child.pid), 10)
    roster.bury()
    assert roster.present() == [kept]
    ended(child)
    assert roster.take_row() == kept + 1


def test_another_process_of_the_same_number_is_another():
    assert alive(os.getpid()) and alive(os.getppid())
    assert alive(os.getppid(), started(os.getppid()))
    assert not alive(os.getppid(), started(os.getppid()) + 1)
    assert not alive(2**22 + 1)


def test_a_full_roster_has_no_seat_and_who_has_none_is_left_alone(roster):
    roster.rows[:, PID] = os.getpid()
    seat = Seat(roster, shares_turns=True)
    assert seat.row < 0 and seat.turn(lambda: False) is None and seat.reads() == 0
    seat.staffed(4, 4)
    seat.taken(3)
    seat.say([1.0])
    assert not seat.decides(0.0)
    seat.leave()
    assert len(roster.present()) == ROWS


def test_a_roster_of_another_layout_is_made_anew(tmp_path):
    path = tmp_path / "roster"
    path.write_bytes(b"x" * 4096)
    made = Roster.at(str(path))
    assert made.present() == [] and made.header[WAITING] == 0
    made.take_row()
    assert Roster.at(str(path)).present() == [0], "and then it stays"


def spawned(seat: Seat, pipe) -> None:
    seat.attach()
    pipe.send((seat.reads(), Permits(seat.roster).held, seat.roster.me[0] == os.getpid()))


@pytest.mark.slow
def test_a_spawned_worker_has_the_same_roster(roster):
    seat = Seat(roster, shares_turns=True)
    seat.staffed(2, 1)
    seat.set_reads({seat.row: 9})
    Permits(roster).take(0)
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=spawned, args=(seat, theirs))
    child.start()
    assert ours.poll(60) and ours.recv() == (5, 1, True)
    ended(child)


def test_a_lock_that_a_killed_process_held_is_open_although_its_child_lives(roster):
    ready, over = FORK.Event(), FORK.Event()

    def hold() -> None:
        def live() -> None:
            over.wait(60)

        with roster.locked():
            pass
        child = FORK.Process(target=live)
        child.start()
        with roster.locked():
            ready.set()
            time.sleep(60)

    holder = FORK.Process(target=hold)
    holder.start()
    assert ready.wait(20)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()  # (with a timeout it would wait for a pipe that the child holds open, too)
    with roster.locked():
        pass
    over.set()


def test_another_lock_beside_it_is_no_deadlock(roster, tmp_path):
    """A worker's threads take the board's lock and the roster's, each by itself, while another's do."""
    (tmp_path / "board").write_bytes(b"")

    def work() -> None:
        fd, failed, lock = os.open(tmp_path / "board", os.O_RDWR), [], threading.Lock()

        def run(take) -> None:
            until = time.monotonic() + 1.5
            try:
                while time.monotonic() < until:
                    take()
            except OSError as error:
                failed.append(error)

        def board() -> None:
            with lock:
                fcntl.lockf(fd, fcntl.LOCK_EX)
                time.sleep(0.0005)
                fcntl.lockf(fd, fcntl.LOCK_UN)

        def table() -> None:
            with roster.locked():
                time.sleep(0.0005)

        threads = [threading.Thread(target=run, args=(take,)) for take in (board, table)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(len(failed))

    processes = [FORK.Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        ended(process)
        assert process.exitcode == 0


# -- permits --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("waits")
def test_who_needs_it_first_is_next(roster):
    permits = Permits(roster)
    held = [permits.take(0), permits.take(0)]
    order: list[int] = []

    def want(deadline: int) -> None:
        permit = permits.take(deadline)
        order.append(deadline)
        time.sleep(0.01)
        permits.give(permit)

    threads = []
    for deadline in (30, 10, 20):
        threads.append(threading.Thread(target=want, args=(deadline,)))
        threads[-1].start()
        assert wait_until(lambda: int(roster.header[WAITING]) == len(threads), 10)
    assert permits.contended
    permits.give(held[0])
    for thread in threads:
        thread.join(20)
    assert order == [10, 20, 30], "one permit went round"
    assert permits.held == 1 and not permits.contended


def test_a_permit_is_kept_unless_somebody_needs_it_sooner(roster):
    permits = Permits(roster)
    roster.header[LIMIT] = 1
    mine = permits.take(50)
    assert permits.renew(mine, 60) == mine, "nobody waits"
    got: list[tuple[int, int]] = []
    late = threading.Thread(target=lambda: got.append(permits.take(70)))
    late.start()
    assert wait_until(lambda: permits.contended, 10)
    assert permits.renew(mine, 60) == mine, "who waits has time"
    assert permits.renew(mine, 80, stopped=lambda: True) is None, "now the other is first, and has it"
    late.join(20)
    assert len(got) == 1 and permits.held == 1
    permits.give(mine)  # (it is not this one's any more)
    assert permits.held == 1
    permits.give(got[0])
    assert permits.held == 0


def use(roster: Roster, seed: int, most, over) -> None:
    """Threads of one process take permits; how many do at once is counted in ``most``."""
    roster.attach()
    permits, chance = Permits(roster), random.Random(seed)

    def run() -> None:
        permit = None
        for _ in range(40):
            deadline = chance.randrange(1000)
            permit = permits.take(deadline) if permit is None else permits.renew(permit, deadline)
            with most.get_lock():
                most[0] += 1
                most[1] = max(most[1], most[0])
            time.sleep(0.0005)
            with most.get_lock():
                most[0] -= 1
            if chance.random() < 0.5:
                permits.give(permit)
                permit = None
        if permit is not None:
            permits.give(permit)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.release()


@pytest.mark.usefixtures("waits")
def test_many_processes_never_have_more_than_there_may_be(roster):
    most, over = FORK.Array("i", 2), FORK.Semaphore(0)
    users = [FORK.Process(target=use, args=(roster, seed, most, over)) for seed in range(3)]
    for user in users:
        user.start()
    for user in users:
        ended(user)
        assert user.exitcode == 0
    assert most[1] == 2, "both were used, and no third"
    assert Permits(roster).held == 0 and int(roster.header[WAITING]) == 0


def test_what_a_killed_process_held_or_waited_for_is_anothers(roster):
    def hold(roster: Roster, taken, wait: bool) -> None:
        roster.attach()
        permits = Permits(roster)
        if wait:
            threading.Thread(target=taken.set).start()
        permits.take(0)
        taken.set()
        time.sleep(60)

    children = []
    for number in range(4):  # two hold, two wait
        taken = FORK.Event()
        children.append(FORK.Process(target=hold, args=(roster, taken, number > 1)))
        children[-1].start()
        assert taken.wait(20)
    permits = Permits(roster)
    assert wait_until(lambda: int(roster.header[WAITING]) == 2, 10)
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    permit = permits.take(1000)
    assert permit is not None
    permits.give(permit)
    for child in children:
        ended(child)
    assert wait_until(lambda: permits.take(0) is not None and permits.held <= 2, 10)


def test_what_a_stopped_process_holds_is_anothers_meanwhile(roster):
    roster.header[LIMIT] = 1
    taken, go, over = FORK.Event(), FORK.Event(), FORK.Event()

    def hold() -> None:
        roster.attach()
        permits = Permits(roster)
        permit = permits.take(0)
        taken.set()
        go.wait(60)
        permits.give(permit)
        over.set()

    child = FORK.Process(target=hold)
    child.start()
    assert taken.wait(20)
    os.kill(child.pid, signal.SIGSTOP)
    permits = Permits(roster)
    mine = permits.take(0)
    os.kill(child.pid, signal.SIGCONT)
    go.set()
    assert over.wait(20) and permits.held == 1, "what it gives back is not its own any more"
    permits.give(mine)
    ended(child)


def test_killed_at_any_moment_nobody_waits_for_ever(roster):
    """Also in the middle of a change: the lock is opened by the kernel, and what was half done is put right."""
    most, over = FORK.Array("i", 2), FORK.Semaphore(0)
    chance = random.Random(5)
    for round_ in range(12):
        users = [FORK.Process(target=use, args=(roster, seed + 10 * round_, most, over)) for seed in range(2)]
        for user in users:
            user.start()
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(users[0].pid, signal.SIGKILL)
        users[1].join(30)
        if users[1].is_alive():  # the counter's own lock died with the other: not what is tested
            users[1].kill()
            most = FORK.Array("i", 2)
        for user in users:
            ended(user)
    permits = Permits(roster)
    for _ in range(2):
        assert permits.take(0) is not None


def test_more_permits_wake_those_who_wait_and_fewer_are_given_back(roster):
    permits = Permits(roster)
    seat = Seat(roster, shares_turns=True)
    held = [permits.take(0), permits.take(0)]
    got: list[tuple[int, int]] = []
    waiting = threading.Thread(target=lambda: got.append(permits.take(5)))
    waiting.start()
    assert wait_until(lambda: permits.contended, 10)
    seat.set_limit(3)
    waiting.join(20)
    assert permits.held == 3
    seat.set_limit(1)
    for permit in (*held, *got):
        permits.give(permit)
    first = permits.take(0)
    waiting = threading.Thread(target=lambda: got.append(permits.take(5)))
    waiting.start()
    assert wait_until(lambda: permits.contended, 10)
    permits.give(first)
    waiting.join(20)
    assert permits.held == 1 and seat.most == 3


def test_a_permit_that_is_held_for_very_long_does_not_count(roster, monkeypatch):
    monkeypatch.setattr(permits_module, "_LONG", 0.3)
    roster.header[LIMIT] = 1
    permits = Permits(roster)
    old = permits.take(0)
    new = permits.take(0)
    assert new is not None and permits.held == 1
    permits.give(old)
    assert permits.held == 1, "it was another's by then"
    permits.give(new)
    assert permits.held == 0


# -- seats ----------------------------------------------------------------------------------------------------


def test_deadlines_follow_the_loop(roster):
    seat = Seat(roster, shares_turns=True)
    seat.taken(1)
    first, _ = seat.deadline(1)
    for step in range(2, 8):
        time.sleep(0.01)
        seat.taken(step)
    assert seat.deadline(7)[0] > first
    gaps = [seat.deadline(number)[0] - seat.deadline(number - 1)[0] for number in range(8, 12)]
    assert set(gaps) == {seat.deadline(7)[1]} and gaps[0] > 5_000_000
    assert seat.deadline(3) == seat.deadline(7), "what is late is due now"


def test_one_decides_and_another_when_it_rests(roster):
    seats = [Seat(roster, shares_turns=True) for _ in range(2)]
    assert seats[0].decides(0.0) and not seats[1].decides(0.0) and seats[0].decides(0.0)
    assert not seats[0].decides(60.0), "not so soon again"
    roster.header[DECIDED_AT] -= int(3e9)
    assert seats[1].decides(0.0)
    assert not seats[0].decides(0.0) and int(roster.header[DECIDER]) != 0


def test_nobody_waits_for_turns_where_there_are_threads_enough(roster):
    one = Seat(roster, shares_turns=True)
    one.staffed(2, 1)
    assert not one.crowded
    two = Seat(roster, shares_turns=True)
    two.staffed(1, 1)
    assert one.crowded
    alone = Seat(roster, shares_turns=False)
    alone.staffed(4, 4)
    two.leave()
    one.said()
    assert not one.crowded, "who has left, or takes no turns, does not count"


def test_ranks_of_one_job_know_what_was_slow_for_another(roster):
    seats = [Seat(roster, shares_turns=True) for _ in range(3)]
    for seat, job, slow in zip(seats, (7, 7, 8), (0.1, 0.4, 2.0), strict=True):
        said = dict.fromkeys(Said._fields, 0.0) | {"job": job, "slow": slow}
        seat.say(Said(**said))
    assert [seat.slowest(7) for seat in seats] == [0.4] * 3
    assert seats[0].slowest(8) == 2.0 and seats[0].slowest(9) == 0.0
    seats[1].leave()
    assert seats[0].slowest(7) == 0.1


def test_as_many_threads_prepare_as_the_rank_may_have(roster):
    seat = Seat(roster, shares_turns=True)
    seat.staffed(2, 4)
    assert all(seat.may_prepare(number) for number in range(4)), "nothing was said"
    seat.set_prepare({seat.row: 3})
    assert [seat.may_prepare(number) for number in range(4)] == [True, True, False, False]
    seat.set_prepare({seat.row: 1})
    assert [seat.may_prepare(number) for number in range(4)] == [True, False, False, False]
    seat.set_prepare({seat.row: 0})
    assert all(seat.may_prepare(number) for number in range(4))


def test_decisions_are_made_by_a_worker_and_written_for_all(roster):
    seats = [Seat(roster, shares_turns=True, cpus=8) for _ in range(2)]
    for seat, cost in zip(seats, (1e-3, 3e-3), strict=True):
        seat.staffed(1, 8)
        seat.taken(1)
        seat.say(
            Said(0.5, 64, 1e5, 2e-3, 0.1, cost, 32, 0.01, 0.001, 0, 32, job=1, slow=0.1),
        )
    decider = Decider(seats[0])
    for _ in range(10):
        decider.decide()
    threads = [int(roster.rows[seat.row, PREPARE]) for seat in seats]
    assert 1 <= threads[0] < threads[1] and sum(threads) <= seats[0].limit <= 8
    assert all(8 <= seat.reads() <= 256 for seat in seats)
    fed = seats[0].reads()
    for seat in seats:  # storage has become slow, and the loops wait
        seat.say(Said(0.5, 64, 1e5, 2e-3, 0.1, 1e-3, 32, 0.01, 0.02, 0, 32, job=1, slow=0.1))
    decider.decide()
    assert sum(seat.reads() for seat in seats) > 200 and seats[0].reads() > 2 * fed
    seats[1].leave()
    for _ in range(3):
        decider.decide()
    assert int(roster.rows[seats[0].row, PREPARE]) == 0, "who is alone has all its threads"


def test_a_permit_is_passed_on_before_its_holder_tells_of_its_work(roster):
    roster.header[LIMIT] = 1
    seats = [Seat(roster, shares_turns=True) for _ in range(2)]
    for seat, step in zip(seats, (1_000_000, 1_000_000), strict=True):
        seat.staffed(1, 4)
        roster.rows[seat.row, TAKEN_AT], roster.rows[seat.row, INTERVAL] = 1, step
    turn, permits = seats[0].turn(lambda: False), Permits(roster)
    turn.begin(1)
    turn.pass_on(None)
    assert permits.held == 1, "nobody waits: it is kept"
    got: list[tuple[int, int] | None] = []
    waiting = threading.Thread(target=lambda: got.append(permits.take(3_000_000, 1_000_000)))
    waiting.start()
    assert wait_until(lambda: permits.contended)
    turn.pass_on(2)
    assert permits.contended, "its own next batch is needed sooner"
    turn.pass_on(9)
    waiting.join(30)
    assert got and got[0] is not None and permits.held == 1
    permits.give(got[0])
    assert permits.held == 0
