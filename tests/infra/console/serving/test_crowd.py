"""Who has to go where too many connections stand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.console.serving.crowd import Crowd


def crowd_of(most: int, most_of_one: int) -> Crowd[str]:
    """A crowd whose members are named by their address and a number; ``proxy`` stands for many visitors."""
    return Crowd(lambda address: None if address == "proxy" else address, most=most, most_of_one=most_of_one)


def enter(crowd: Crowd[str], *members: str) -> list[str | None]:
    return [crowd.enter(one, one.rstrip("0123456789")) for one in members]


def test_an_address_gives_up_its_own_oldest_silent_connection() -> None:
    crowd = crowd_of(9, 2)
    assert enter(crowd, "a1", "a2", "b1", "a3") == [None, None, None, "a1"]
    crowd.work("a2")
    assert enter(crowd, "a4") == ["a3"]


def test_an_address_whose_requests_are_all_being_answered_gets_no_more() -> None:
    crowd = crowd_of(9, 2)
    enter(crowd, "a1", "a2")
    crowd.work("a1")
    crowd.work("a2")
    assert enter(crowd, "a3", "b1") == ["a3", None]
    crowd.wait("a1")
    assert enter(crowd, "a4") == ["a1"]


def test_a_proxy_has_as_many_as_it_likes_and_makes_room_for_others() -> None:
    crowd = crowd_of(4, 2)
    assert enter(crowd, "proxy1", "proxy2", "proxy3", "proxy4", "a1") == [None] * 4 + ["proxy1"]


def test_a_visitor_who_came_later_stays_where_everybody_has_one() -> None:
    crowd = crowd_of(3, 2)
    assert enter(crowd, "a1", "b1", "c1", "d1", "e1") == [None, None, None, "a1", "b1"]
    crowd.work("c1")
    crowd.wait("c1")  # it waits again: those that are silent for longer go first
    assert enter(crowd, "f1", "g1") == ["d1", "e1"]


def test_where_all_are_being_answered_one_more_is_let_in_to_be_told_so() -> None:
    crowd = crowd_of(2, 2)
    enter(crowd, "a1", "b1")
    crowd.work("a1")
    crowd.work("b1")
    assert enter(crowd, "c1", "d1") == [None, "c1"]


STEPS = st.lists(st.tuples(st.sampled_from(["enter", "work", "wait", "leave"]), st.sampled_from("abc"),
                           st.integers(0, 5)), max_size=200)  # fmt: skip


@given(STEPS)
def test_limits_hold_and_nobody_goes_who_is_being_answered(steps: list[tuple[str, str, int]]) -> None:
    crowd, standing, working = crowd_of(6, 3), set[str](), set[str]()
    for what, address, at in steps:
        member = f"{address}{at}"
        if what == "enter" and member not in standing:
            standing.add(member)
            leaving = crowd.enter(member, address)
            assert leaving not in working
            standing.discard(leaving or "")
        elif what != "enter":
            getattr(crowd, what)(member)
            standing -= {member} if what == "leave" else set()
            working = (working | {member} if what == "work" else working - {member}) & standing
        assert len(standing) <= 6 or len(working) >= 6
        assert all(sum(one[0] == name for one in standing) <= 3 for name in "abc")
