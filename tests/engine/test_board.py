"""The board between real processes: every order is claimed once, whoever is killed, and budgets hold."""

from __future__ import annotations

import itertools
import os
import random
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.arena import PAGE, Arena
from headrace.channel.unix import pair
from headrace.engine import board as module
from headrace.engine.board import CAPACITY, PUT_DOWN, UNUSED, Board
from headrace.engine.link import Link
from tests.loader.helpers import wait_until

AREA = (0, 4096)
RECORD = struct.Struct("<qqq")


@pytest.fixture
def board() -> Iterator[Board]:
    arena = Arena()
    made = Board(arena)
    yield made
    made.close()
    arena.close()


class Child:
    """A forked process that runs ``body`` and reports through a pipe: records of three integers."""

    def __init__(self, board: Board, body: Callable[[Callable[[int, int, int], None]], None]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                board.attach()
                os.close(self._read)
                body(lambda *record: _put(write, record))
            except BaseException:
                os._exit(1)
            os._exit(0)
        os.close(write)

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def join(self) -> tuple[int, list[tuple[int, int, int]]]:
        """How it ended, and what it reported."""
        data = b""
        while part := os.read(self._read, 1 << 16):
            data += part
        os.close(self._read)
        _, status = os.waitpid(self.pid, 0)
        whole = len(data) // RECORD.size * RECORD.size
        return os.waitstatus_to_exitcode(status), list(RECORD.iter_unpack(data[:whole]))


def _put(fd: int, record: tuple[int, ...]) -> None:
    os.write(fd, RECORD.pack(*record))  # atomic: shorter than a pipe's buffer


def claim_all(
    board: Board, claimer: int, pause: float = 0.0, gate: int | None = None, skip: int = 0
) -> Callable[[Callable[[int, int, int], None]], None]:
    """Claims until nothing is left, and reports (position, order, claimer). ``gate``: a pipe from which it
    reads a byte first."""

    def body(report: Callable[[int, int, int], None]) -> None:
        if gate is not None:
            os.read(gate, 1)
        while (claim := board.claim(claimer, skip)) is not None:
            report(claim.position, claim.order, claimer)
            if pause:
                time.sleep(pause)

    return body


def test_orders_come_in_the_order_posted_with_their_place(board: Board) -> None:
    positions = [board.post(order, (PAGE * order, PAGE), 8 * order, order + 1) for order in range(5)]
    assert positions == list(range(5))
    for order in range(5):
        claim = board.claim(3)
        assert claim == (order, order, (PAGE * order, PAGE), 8 * order, order + 1)
        assert board.claimer(order) == 3
    assert board.claim(3) is None


def test_nobody_has_what_is_only_posted(board: Board) -> None:
    position = board.post(9, AREA, 0, 1)
    assert board.claimer(position) is None
    assert board.grown(position) == (0, 0)


def test_cancelled_orders_are_passed_over(board: Board) -> None:
    positions = [board.post(order, AREA, 0, 1) for order in range(4)]
    assert board.cancel(positions[0])
    assert board.cancel(positions[2])
    assert not board.cancel(positions[2])
    assert [claim.order for claim in iter(lambda: board.claim(0), None)] == [1, 3]
    assert not board.cancel(positions[1]), "it is claimed"
    assert board.claimer(positions[0]) is None


def test_orders_that_are_left_to_somebody_are_left_for_as_long_as_it_says(board: Board) -> None:
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        worker = Link(0, 0, None, board, theirs)  # type: ignore[arg-type]
        claims: list[int] = []

        def claim() -> None:
            while (found := worker.claim()) is not None:
                claims.append(found.order)

        thread = threading.Thread(target=claim)
        board.leave_orders(60.0)
        thread.start()
        for order in range(3):
            board.post(order, AREA, 0, 10)
        board.wake(3)
        time.sleep(0.2)
        assert board.left and not claims
        agents = board.claim(7)
        assert agents is not None and agents.order == 0, "who asked for it may claim"
        board.leave_orders(0.3)  # and is killed: it is never taken back
        deadline = time.monotonic() + 10
        while len(claims) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert claims == [1, 2] and not board.left
        assert board.claimed == 3
        worker.stopped = True
        board.wake(1)
        thread.join(10)
        assert not thread.is_alive()


def test_the_ring_goes_round(board: Board) -> None:
    for order in range(2 * CAPACITY + 7):
        board.post(order, AREA, 0, 1)
        claim = board.claim(order % 5)
        assert claim is not None and claim.order == order
        assert board.claimer(claim.position) == order % 5


def test_room_is_what_is_left_of_the_ring(board: Board) -> None:
    assert board.room(0) == CAPACITY
    for order in range(10):
        board.post(order, AREA, 0, 1)
    assert board.room(0) == CAPACITY - 10
    assert board.room(10) == CAPACITY


def test_an_order_that_runs_alone_is_known_to(board: Board) -> None:
    positions = [board.post(order, AREA, 0, 1) for order in range(2)]
    claims = [board.claim(7) for _ in positions]
    assert claims[1] is not None
    board.mark_alone(claims[1])
    assert [board.was_alone(position) for position in positions] == [False, True]
    assert [board.claimer(position) for position in positions] == [7, 7]


@given(
    st.lists(
        st.one_of(
            st.just(("post", 0)),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
            st.tuples(st.just("claim"), st.sampled_from([0, 0, 1, 3, 30])),
        ),
        max_size=60,
    )
)
def test_who_leaves_orders_to_others_takes_the_nearest_behind_them(steps: list[tuple[str, int]]) -> None:
    arena = Arena()
    board = Board(arena)
    try:
        waiting: list[int] = []
        taken: dict[int, int] = {}
        posted = 0
        for worker, (what, number) in enumerate(steps):
            if what == "post":
                assert board.post(posted, AREA, 0, 1) == posted
                waiting.append(posted)
                posted += 1
            elif what == "cancel" and number < posted:
                assert board.cancel(number) == (number in waiting)
                waiting = [one for one in waiting if one != number]
            elif what == "claim":
                claim = board.claim(worker, number)
                if not waiting:
                    assert claim is None
                    continue
                wanted = max([one for one in waiting if one <= waiting[0] + number])
                assert claim is not None and claim.order == claim.position == wanted
                waiting.remove(wanted)
                taken[wanted] = worker
            for order in range(posted):
                assert board.claimer(order) == taken.get(order)
                assert not board.was_alone(order)
    finally:
        board.close()
        arena.close()


@pytest.mark.parametrize("skip", [0, 40])
def test_processes_claim_each_order_exactly_once(board: Board, skip: int) -> None:
    count, processes = 1500, 6
    children = [Child(board, claim_all(board, claimer, skip=skip)) for claimer in range(processes)]
    for order in range(count):
        board.post(order, AREA, 0, 1)
    children += [Child(board, claim_all(board, claimer)) for claimer in range(processes, processes + 2)]
    got = []
    for child in children:
        code, records = child.join()
        assert code == 0
        orders = [order for _, order, _ in records]
        assert skip or orders == sorted(orders), "older orders first"
        got += records
    assert Counter(order for _, order, _ in got) == Counter(range(count))
    assert all(board.claimer(position) == claimer for position, _, claimer in got)


class Lingering:
    """The header, where whoever reads a word lets other threads run before going on."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def __getitem__(self, key: int) -> object:
        word = self._words[key]
        time.sleep(1e-5)
        return word

    def __setitem__(self, key: int, value: int) -> None:
        self._words[key] = value


def test_threads_of_one_process_claim_each_order_exactly_once(board: Board) -> None:
    """A record lock belongs to the whole process, so it does not keep threads apart."""
    for order in range(200):
        board.post(order, AREA, 0, 1)
    board._header = Lingering(board._header)  # type: ignore[assignment]
    got: list[int] = []

    def claim() -> None:
        while (claim := board.claim(1)) is not None:
            got.append(claim.order)

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(got) == Counter(range(200))


@pytest.mark.faults
@pytest.mark.parametrize("skip", [0, 40])
def test_killed_claimers_lose_nothing(board: Board, skip: int) -> None:
    """Post, kill at random, post again what the dead had claimed: all orders end, none with a dead claimer."""
    dice = random.Random(11)
    open_orders = {board.post(order, AREA, 0, 1): order for order in range(600)}
    done: Counter[int] = Counter()
    claimer = 0
    while open_orders:
        children = {
            t: Child(board, claim_all(board, t, pause=1e-4, skip=skip if t % 2 else 0))
            for t in range(claimer, claimer + 3)
        }
        claimer += 3
        killed = dice.sample(sorted(children), 2)
        time.sleep(dice.random() * 0.02)
        for name in killed:
            children[name].kill()
        for name, child in children.items():
            code, records = child.join()
            assert code == (-signal.SIGKILL if name in killed and code else 0)
            claimed = {at: order for at, order in open_orders.items() if board.claimer(at) == name}
            reported = {at: order for at, order, _ in records}
            # The board knows what a process had at least as well as the process had the time to say.
            assert reported.items() <= claimed.items()
            assert len(claimed) - len(reported) <= (1 if code else 0)
            for at, order in claimed.items():
                del open_orders[at]
                if code:
                    open_orders[board.post(order, AREA, 0, 1)] = order
                else:
                    done[order] += 1
    assert done == Counter(range(600)), "each order is done by exactly one claimer that lived"
    assert board.claim(0) is None


@pytest.mark.faults
@pytest.mark.parametrize("before", ["the claim", "the head moves"])
def test_a_claimer_killed_inside_its_claim(board: Board, before: str) -> None:
    """Deterministically at the worst moments: with the lock held, before and after the claim is written."""
    position = board.post(5, AREA, 0, 1)

    class Header:
        """The header, of which reading the tail or writing the head kills."""

        def __init__(self, words: np.ndarray) -> None:
            self.words = words

        def __getitem__(self, key: int) -> object:
            if key == module._TAIL and before == "the claim":
                os.kill(os.getpid(), signal.SIGKILL)
            return self.words[key]

        def __setitem__(self, key: int, value: int) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    def body(report: Callable[[int, int, int], None]) -> None:
        board._header = Header(board._header)  # type: ignore[assignment]
        board.claim(1)

    code, _ = Child(board, body).join()
    assert code == -signal.SIGKILL
    assert board.claimer(position) is None, "its claim did not come about, so there is nothing to post again"
    claim = board.claim(2)
    assert claim is not None and claim.order == 5
    assert board.claimer(position) == 2


@pytest.mark.faults
def test_cancelling_races_with_claiming(board: Board) -> None:
    """An order is either taken back or claimed, never both and never neither."""
    positions = [board.post(order, AREA, 0, 1) for order in range(800)]
    gate, opener = os.pipe()
    children = [Child(board, claim_all(board, claimer, gate=gate)) for claimer in range(2)]
    os.write(opener, b"go")
    cancelled = [at for at in reversed(positions) if board.cancel(at)]
    os.close(gate)
    os.close(opener)
    claimed = []
    for child in children:
        code, records = child.join()
        assert code == 0
        claimed += [order for _, order, _ in records]
    assert cancelled
    assert Counter(cancelled + claimed) == Counter(range(800))


def test_wake_ups_are_counted(board: Board) -> None:
    """Each wakes one waiter; none is lost when nobody waits."""
    board.wake(2)
    board.wake(0)
    board.wake(1)
    woken = []

    def wait() -> None:
        board.wait()
        woken.append(1)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(woken) < 3:
        time.sleep(0.001)
    assert sum(thread.is_alive() for thread in threads) >= 1
    board.wake(1)
    for thread in threads:
        thread.join()
    assert len(woken) == 4


# -- the cache's room ------------------------------------------------------------------------------------


def test_by_what_an_order_made_the_arena_longer_is_known(board: Board) -> None:
    position = board.post(0, AREA, 0, 1)
    claim = board.claim(4)
    grown = board.extend(2 * PAGE, claim)
    assert board.grown(position) == (grown, 2 * PAGE)
    again = board.post(1, AREA, 0, 1)
    assert board.grown(again) == (0, 0)


def test_processes_extend_the_arena_apart(board: Board) -> None:
    before = os.fstat(board._arena.fd).st_size

    def grow(report: Callable[[int, int, int], None]) -> None:
        for pages in range(1, 60):
            offset = board.extend(pages * PAGE)
            board._arena.map(offset, pages * PAGE)[:8] = struct.pack("<q", os.getpid())
            report(offset, pages * PAGE, os.getpid())

    children = [Child(board, grow) for _ in range(4)]
    own = [board._arena.allocate(PAGE) for _ in range(50)]
    ranges = [(offset, size, 0) for offset, size in own]
    for child in children:
        code, records = child.join()
        assert code == 0
        ranges += records
    ranges.sort()
    assert ranges[0][0] == before
    for (offset, size, _), (following, _, _) in itertools.pairwise(ranges):
        assert offset + size == following
    assert os.fstat(board._arena.fd).st_size == ranges[-1][0] + ranges[-1][1]
    for offset, size, pid in ranges:
        assert struct.unpack("<q", board._arena.map(offset, size)[:8])[0] == pid


def killed_after_its_note(board: Board, act: Callable[[module.Claim], object]) -> int:
    """A process claims, begins ``act`` and is killed as soon as it has noted what it takes."""

    def body(report: Callable[[int, int, int], None]) -> None:
        note = board._note

        def note_and_die(*args: object) -> None:
            note(*args)  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGKILL)

        board._note = note_and_die  # type: ignore[method-assign, assignment]
        claim = board.claim(1)
        assert claim is not None
        act(claim)

    position = board.post(0, AREA, 0, 1)
    code, _ = Child(board, body).join()
    assert code == -signal.SIGKILL
    assert board.claimer(position) == 1
    return position


@pytest.mark.faults
def test_a_worker_killed_while_it_extends_the_arena_does_not_get_it_given_out_twice(board: Board) -> None:
    position = killed_after_its_note(board, lambda claim: board.extend(4 * PAGE, claim))
    returned = board.grown(position)
    arena = board._arena
    ranges = []
    if returned[1]:
        arena.adopt(returned[1])
        arena.free(*returned)
        ranges.append(arena.allocate(returned[1]))
    ranges += [arena.allocate(PAGE) for _ in range(6)]
    ranges.sort()
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ranges)), "given out twice"


def test_the_range_used_last_is_taken_first_if_it_is_large_enough(board: Board) -> None:
    rows = [board.enlist(page * PAGE, pages * PAGE) for page, pages in ((100, 1), (200, 4), (300, 2))]
    assert board.take(PAGE) is None and len(set(rows)) == 3
    assert board.enlist(200 * PAGE, 4 * PAGE) == rows[1]
    for since, row in enumerate((rows[1], rows[2], rows[0]), 5):
        board.release(row, since)
    assert [board.free_ranges(pages * PAGE) for pages in (0, 2, 3, 5)] == [3, 2, 1, 0]
    position = board.post(0, AREA, 0, 1)
    assert board.take(2 * PAGE, board.claim(0)) == (300 * PAGE, 2 * PAGE)
    assert board.grown(position) == (300 * PAGE, 2 * PAGE)
    assert board.take(2 * PAGE) == (200 * PAGE, 4 * PAGE)
    assert board.take(2 * PAGE) is None
    board.release(rows[1], 9)
    assert board.withdraw(1) == [(100 * PAGE, PAGE)]
    assert board.withdraw(0) == [(200 * PAGE, 4 * PAGE)]
    assert board.free_ranges() == 0


def test_ranges_that_were_just_used_stay(board: Board) -> None:
    rows = [board.enlist(page * PAGE, PAGE) for page in range(1, 7)]
    for row, since in zip(rows, (PUT_DOWN, 10, 11, 12, 20, UNUSED), strict=True):
        board.release(row, since)
    assert board.withdraw(1, 10) == [(PAGE, PAGE), (2 * PAGE, PAGE)]
    assert board.withdraw(3, 0) == []
    assert board.withdraw(2, 8) == [(3 * PAGE, PAGE)]
    assert board.withdraw(0, 1) == [(4 * PAGE, PAGE)]
    assert board.withdraw(0, 0) == [(5 * PAGE, PAGE)]
    assert board.free_ranges() == 1, "one that nobody has used takes no memory"


def test_processes_never_have_the_same_range(board: Board) -> None:
    rows = [board.enlist(page * PAGE, PAGE) for page in range(1, 9)]
    words = np.frombuffer(board._arena.map(*board._arena.allocate(PAGE)), np.int64)
    for since, row in enumerate(rows, 1):
        board.release(row, since)

    def take_turns(report: Callable[[int, int, int], None]) -> None:
        for turn in range(400):
            found = board.take(PAGE)
            if found is None:
                continue
            page = found[0] // PAGE
            before, words[page] = int(words[page]), os.getpid()
            report(before, page, int(words[page]) == os.getpid())
            words[page] = 0
            board.release(rows[page - 1], 100 + turn)

    records = []
    for child in [Child(board, take_turns) for _ in range(3)]:
        code, own = child.join()
        assert code == 0
        records += own
    assert len(records) > 400
    assert all(before == 0 and still for before, _, still in records)
    assert board.free_ranges() == 8


@pytest.mark.faults
def test_a_worker_killed_while_it_takes_a_range_does_not_get_it_given_out_twice(board: Board) -> None:
    board.release(board.enlist(100 * PAGE, PAGE), 1)
    position = killed_after_its_note(board, lambda claim: board.take(PAGE, claim))
    assert board.grown(position) == (100 * PAGE, PAGE)
    assert board.take(PAGE) is None


def test_more_orders_than_the_ring_holds_are_refused_and_not_overwritten(board: Board) -> None:
    posted = 0
    with pytest.raises(Exception, match=r"(?i)ring|board|full|room"):
        for posted in range(CAPACITY + 1):
            board.post(posted, AREA, 0, 1)
    assert posted == CAPACITY
    first = board.claim(0)
    assert first is not None and first.order == 0


def test_while_others_take_orders_too_a_worker_claims_no_more_than_it_gets_to(board: Board) -> None:
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        worker = Link(0, 0, None, board, theirs)  # type: ignore[arg-type]
        claims: list[int] = []
        most = 2

        def has_enough(seconds: float) -> bool:
            time.sleep(seconds)
            return len(claims) >= most

        def claim() -> None:
            while (found := worker.claim(None, has_enough)) is not None:
                claims.append(found.order)

        thread = threading.Thread(target=claim)
        board.share_orders(60.0)
        thread.start()
        for order in range(5):
            board.post(order, AREA, 0, 10)
        board.wake(5)
        assert wait_until(lambda: claims == [0, 1])
        time.sleep(0.2)
        agents = board.claim(7)
        assert claims == [0, 1] and agents is not None and agents.order == 2
        most = 3
        assert wait_until(lambda: claims == [0, 1, 3]), "it goes on when it is done with one"
        board.share_orders(0.1)  # and nobody says so again
        assert wait_until(lambda: claims == [0, 1, 3, 4]) and not board.shared
        worker.stopped = True
        board.wake(1)
        thread.join(10)
        assert not thread.is_alive()


def test_who_has_enough_keeps_nothing_from_who_has_nothing_to_do(board: Board) -> None:
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        busy, idle = (Link(0, claimer, None, board, theirs) for claimer in (1, 2))  # type: ignore[arg-type]
        done, asked, found = threading.Event(), threading.Event(), []

        def has_enough(seconds: float) -> bool:
            asked.set()
            return not done.wait(seconds)

        board.share_orders(600.0)
        board.post(5, AREA, 0, 10)
        one = threading.Thread(target=lambda: busy.claim(None, has_enough))
        one.start()
        board.wake(1)
        assert asked.wait(60), "it has been woken for the order"
        other = threading.Thread(target=lambda: found.append(idle.claim()))
        other.start()
        other.join(60)
        assert [one.order for one in found if one is not None] == [5]
        busy.stopped = True
        done.set()
        board.wake(1)
        one.join(60)
        assert not one.is_alive()


def test_rows_that_were_claimed_are_counted_whoever_claims_them_and_in_which_order(board: Board) -> None:
    for order, rows in enumerate((7, 1, 16, 4)):
        board.post(order, AREA, 0, 10, rows)
    assert board.claimed == 0
    found = [board.claim(3, skip=2), board.claim(1), board.claim(2)]
    assert [one.order for one in found if one is not None] == [2, 0, 1] and board.claimed == 24
    assert board.claim(1) is not None and board.claimed == 28
    assert board.claim(1) is None and board.claimed == 28


def test_what_making_a_row_takes_is_a_mean_of_what_workers_say(board: Board) -> None:
    assert board.making == 0.0
    board.made(1e-3)
    assert board.making == pytest.approx(1e-3)
    for _ in range(200):
        board.made(2e-4)
    assert board.making == pytest.approx(2e-4, rel=0.01)
