"""Who counts as a server of the cluster: by when each was last heard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.membership import Membership
from headrace.cluster.messages import Node

NODES = "abcd"


def node(name: str, incarnation: int) -> Node:
    return Node(name, str(incarnation), "host", 1, "fingerprint", 1 << 20)


def membership() -> Membership:
    return Membership(patience=3.0, hopeless=10.0, start=60.0)


steps = st.lists(
    st.tuples(
        st.floats(0.1, 4.0),
        st.sets(st.sampled_from(NODES)),
        st.dictionaries(st.sampled_from(NODES), st.integers(0, 2)),
    ),
    max_size=40,
)


@given(steps)
def test_the_view_is_of_those_who_were_heard_lately(
    told: list[tuple[float, set[str], dict[str, int]]],
) -> None:
    members, now, view = membership(), 0.0, ()
    heard: dict[str, tuple[float, Node]] = {}
    for seconds, alive, answers in told:
        now += seconds
        found = {name: node(name, number) for name, number in answers.items() if name in alive}
        heard = {name: one for name, one in heard.items() if name in alive}
        heard.update({name: (now, one) for name, one in found.items()})
        new, hopeless = members.heard(alive, found, now)
        if new is not None:
            assert new != view
            view = new
        wanted = tuple(one for _, (last, one) in sorted(heard.items()) if now - last <= 3.0)
        assert view == wanted
        assert set(hopeless) <= alive - set(found)
        for name in hopeless:
            heard.pop(name, None)


def test_one_that_does_not_answer_is_ended_once_and_its_successor_has_time() -> None:
    members = membership()
    members.heard("ab", {"a": node("a", 0), "b": node("b", 0)}, 0.0)
    ended = []
    for second in range(1, 60):
        _, hopeless = members.heard("ab", {"a": node("a", 0)}, float(second))
        ended += hopeless
    assert ended == ["b"]
    view, hopeless = members.heard("ab", {"a": node("a", 0), "b": node("b", 1)}, 60.0)
    assert not hopeless and view is not None and view[1].incarnation == "1"


def test_one_that_died_has_as_long_to_start_as_the_first() -> None:
    members = membership()
    members.heard("a", {"a": node("a", 0)}, 0.0)
    ended = []
    for second in range(1, 60):  # (Ray says so now and then, and is silent in between)
        view, hopeless = members.heard("a", {}, float(second), "a" if second % 7 == 1 else "")
        ended += hopeless
        assert view is None or second == 4, "out of the view once, as it is silent"
    assert ended == []
    view, hopeless = members.heard("a", {"a": node("a", 1)}, 60.0)
    assert not hopeless and view is not None and view[0].incarnation == "1"
    ended = [second for second in range(61, 80) if members.heard("a", {}, float(second))[1]]
    assert ended == [71], "the next one is ended if it hangs"


def test_one_that_others_have_known_is_not_starting() -> None:
    members = membership()
    members.heard("abcd", {"a": node("a", 0)}, 0.0, "c")
    assert members.unheard == ["b", "d"], "of the third it is known that it starts"
    members.were_up("bce")
    assert members.unheard == ["d"]
    ended = {}
    for second in range(1, 75):
        _, hopeless = members.heard("abcd", {"a": node("a", 0)}, float(second))
        ended.update(dict.fromkeys(hopeless, second))
        assert not ended.get("b") or "b" not in members.unheard, "the next one is starting"
        members.were_up("bc")
    assert ended == {"b": 11, "c": 61, "d": 61}


happens = st.lists(
    st.tuples(
        st.sampled_from([0.5, 3.0, 8.0, 30.0]),
        st.dictionaries(
            st.sampled_from(NODES), st.sampled_from(["answers", "has died", "gone", "known to others"])
        ),
    ),
    max_size=30,
)


@given(happens)
def test_those_that_hang_are_ended_soon_and_those_that_start_are_not(
    told: list[tuple[float, dict[str, str]]],
) -> None:
    members, now = membership(), 0.0
    since: dict[str, tuple[str, float]] = {}
    for seconds, what in told:
        now += seconds
        for name in NODES:
            if what.get(name) == "gone":
                since.pop(name, None)
            elif what.get(name) == "answers":
                since[name] = "up", now
            elif name not in since:
                since[name] = "unheard", now
            if what.get(name) == "has died" and name in since:
                since[name] = "starting", since[name][1]
        _, hopeless = members.heard(
            {*since},
            {name: node(name, 0) for name, one in what.items() if one == "answers"},
            now,
            [name for name, one in what.items() if one == "has died"],
        )
        for name, (state, when) in since.items():
            assert (name in hopeless) == (now - when > (10.0 if state == "up" else 60.0)), (name, state)
        since.update(dict.fromkeys(hopeless, ("starting", now + 60.0)))
        assert members.unheard == sorted(name for name, (state, _) in since.items() if state == "unheard")
        known = [name for name, one in what.items() if one == "known to others"]
        members.were_up(known)
        for name in known:
            if since[name][0] == "unheard":
                since[name] = "up", since[name][1]


def test_one_that_never_starts_is_ended_after_a_while() -> None:
    members = membership()
    assert [members.heard("a", {}, float(second))[1] for second in range(0, 70, 10)][-1] == []
    assert any(members.heard("a", {}, float(second))[1] == ["a"] for second in range(70, 200, 10))
