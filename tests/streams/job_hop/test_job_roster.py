"""Who takes part, and how far each has come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.announcements import Announcement
from irregulars.streams.job_hop.job_roster import JobRoster
from tests.stored_states import stored


def announcement(rank: int, logged_ranks: int = 3, *, is_logged: bool = True) -> Announcement:
    return Announcement("j", 1, rank, 4, logged_ranks, (), is_logged=is_logged)


def roster(*ranks: int) -> JobRoster:
    made = JobRoster()
    for rank in ranks:
        made.announce(announcement(rank, len(ranks)))
    return made


def deliver(made: JobRoster, *rows: tuple[int, int]) -> list[bool]:
    """Deliver rows of rank and iteration, all at once."""
    rank, iteration = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return [bool(one) for one in made.deliver(rank, iteration)]


def test_those_are_behind_who_are_to_deliver_still() -> None:
    made = roster(0, 1, 2)
    deliver(made, (0, 5), (1, 4))
    made.end(2, "finished")
    assert made.lagging(5) == [1]
    assert made.lagging(4) == []
    assert (made.has_all(4), made.has_all(5)) == (True, False)


def test_reasons_are_said_worst_first() -> None:
    made = roster(0, 1, 2)
    for rank, reason in enumerate(("finished", "restarted", "stopped")):
        assert not made.is_ended
        made.end(rank, reason)
    assert (made.is_ended, made.end_reason) == (True, "restarted")


def test_ranks_that_do_not_log_have_no_say_in_the_end() -> None:
    made = JobRoster()
    made.announce(announcement(0, 1))
    made.announce(announcement(1, 1, is_logged=False))
    made.end(1, "stopped")
    assert not made.is_ended
    made.end(0, "finished")
    assert made.end_reason == "finished"


def test_a_rank_that_ends_twice_takes_no_other_with_it() -> None:
    made = roster(0, 1, 2)
    for _ in range(2):
        made.end(0, "finished")
        assert made.lagging(0) == [1, 2]


@given(
    st.lists(st.tuples(st.sampled_from(["deliver", "end", "give_up", "ask"]), st.integers(0, 3), st.integers(0, 6)))
)
def test_the_short_answer_is_the_long_one(steps: list[tuple[str, int, int]]) -> None:
    """`has_all` remembers who was behind; it must never differ from `lagging`, restored or not."""
    made = roster(0, 1, 2, 3)
    for what, rank, number in steps:
        if what == "deliver":
            deliver(made, (rank, number))
        elif what == "end":
            made.end(rank, "finished")
        elif what == "give_up":
            made.give_up([rank])
        assert made.has_all(number) == (not made.lagging(number))
    twin = JobRoster.from_state(stored(made.state()))
    for number in range(8):
        assert twin.lagging(number) == made.lagging(number)
    assert (twin.is_ended, twin.is_complete, twin.reasons) == (made.is_ended, made.is_complete, made.reasons)


class _OneByOne:
    """What a roster says of rows, in plain words."""

    def __init__(self) -> None:
        self.through: dict[int, int] = {}
        self.newest: int | None = None
        self.leaps = 0

    def deliver(self, rank: int, iteration: int) -> bool:
        if rank in self.through and iteration <= self.through[rank]:
            return False
        is_leap = self.newest is not None and iteration - self.newest > 1 << 21
        self.leaps = self.leaps + 1 if is_leap else 0
        if self.leaps == 1:
            return False
        self.newest = iteration if self.newest is None else max(self.newest, iteration)
        self.through[rank] = iteration
        return True


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.one_of(st.integers(-2, 9), st.just(2**40), st.just(-(2**40))))),
        max_size=8,
    )
)
def test_rows_that_come_together_count_as_they_do_one_by_one(messages: list[list[tuple[int, int]]]) -> None:
    made, plain = roster(0, 1, 2), _OneByOne()
    for rows in messages:
        assert deliver(made, *rows) == [plain.deliver(*row) for row in rows]
    assert made.state().through == plain.through
