"""What is granted, and what comes of it: each order is made by exactly one, whatever helpers do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.granted import Granted, Room

ROWS, NBYTES = 4, 4 << 20


def order(number: int) -> Any:
    return SimpleNamespace(id=number, indices=bytes(8 * ROWS))


def rows(*faults: int) -> Any:
    return SimpleNamespace(held=0.0, faults=[(row, f"{row} is bad", "") for row in faults])


ENDS = st.sampled_from(["good", "bad", "made up", "lost"])


@given(st.lists(st.tuples(st.booleans(), ENDS), max_size=40), st.randoms(use_true_random=False))
def test_each_order_comes_from_one_of_the_two(what: list[tuple[bool, str]], chance: Any) -> None:
    granted: Granted[str] = Granted()
    rooms: list[tuple[int, Room]] = []
    for number, (trial, _) in enumerate(what):
        claim: Any = None if trial else number
        rooms.append((number, granted.grant(order(number), claim, 0.0, NBYTES, len(rooms))))
    chance.shuffle(rooms)
    came = []
    for number, room in rooms:
        end = what[number][1]
        if end == "lost":
            granted.lost([room])
        elif granted.arrived("a helper", room, rows(*{"bad": [1], "made up": [ROWS, -1]}.get(end, [])), 0.1):
            came.append(number)
    made = []
    while (void := granted.next_void()) is not None:
        assert void[1] == void[0].id
        made.append(void[0].id)
    assert sorted(came + made) == [number for number, (trial, _) in enumerate(what) if not trial]
    assert set(made) == {
        number for number, (trial, end) in enumerate(what) if not trial and end in ("bad", "lost")
    }
    assert granted.may(1 << 40), "nothing is on its way any more: whatever it is, one may go"


def test_who_is_wrong_about_a_sample_is_known_by_what_it_said() -> None:
    granted: Granted[str] = Granted()
    claim: Any = 7
    for number in range(3):
        room = granted.grant(order(number), claim, 0.0, NBYTES, 0)
        assert not granted.arrived(f"helper {number}", room, rows(1, 2), 0.1)
    done: Any = SimpleNamespace(order=0, faults=[(1, "", ""), (2, "", "")])
    assert granted.was_made(done) is None, "it was right"
    done = SimpleNamespace(order=1, faults=[(1, "", "")])
    assert granted.was_made(done) == ("helper 1", "2 is bad")
    assert granted.was_made(done) is None, "it is said once"
    done = SimpleNamespace(order=9, faults=[])
    assert granted.was_made(done) is None, "no helper said anything of it"
