"""Who takes part, and how far each has come."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.announcements import Announcement
from irregulars.streams.job_hop.job_roster import JobRoster
from irregulars.validation import LARGEST
from tests.stored_states import stored


def announcement(rank: int, logged_ranks: int = 3, *, is_logged: bool = True) -> Announcement:
    return Announcement("j", 1, rank, 4, logged_ranks, (), is_logged=is_logged)


def roster(*ranks: int) -> JobRoster:
    made = JobRoster()
    for rank in ranks:
        made.announce(announcement(rank, len(ranks)))
    return made


def deliver(made: JobRoster, *rows: tuple[int, int]) -> list[bool]:
    rank, iteration = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return [bool(one) for one in made.deliver(rank, iteration)]


def test_those_are_behind_who_are_to_deliver_still() -> None:
    made = roster(0, 1, 2)
    deliver(made, (0, 5), (1, 4))
    made.end(2, "finished")
    assert made.lagging(5) == [1]
    assert made.lagging(4) == []
    assert (made.has_all(4), made.has_all(5)) == (True, False)


class Counted(dict[int, Announcement]):
    """Announcements that count how many of them were looked at, one by one."""

    looked_at = 0

    def items(self) -> Any:
        for one in super().items():
            self.looked_at += 1
            yield one


def test_messages_of_the_others_do_not_go_through_all_ranks_while_one_stays_away() -> None:
    made = roster(*range(100))
    made.give_up([99])
    made.announcements = counted = Counted(made.announcements)
    for rank in range(50):
        deliver(made, (rank, 0))
        assert (made.has_all(0), made.is_ended) == (False, False)
    assert counted.looked_at <= 100 + 50
    deliver(made, *((rank, 0) for rank in range(50, 99)))
    assert made.has_all(0)
    deliver(made, (99, 0))  # it is back, and awaited again
    assert (made.lagging(1)[-1], counted.looked_at <= 2 * 100 + 52) == (99, True)


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


def test_a_job_that_numbers_by_tokens_loses_one_row_and_not_one_in_each_iteration() -> None:
    """Steps of 4,000,000 tokens: each iteration is a leap, and its first row came of rank 0 each time."""
    step, made = 4_000_000, roster(0, 1)
    assert deliver(made, (0, 0)) == deliver(made, (1, 0)) == [True]
    for number in range(1, 6):
        assert deliver(made, (0, number * step)) == [number > 1]
        assert deliver(made, (1, number * step)) == [True]
        made = JobRoster.from_state(stored(made.state()))
    assert deliver(made, (0, 100 * step)) == [False]  # a leap for this job too


def test_the_widest_leap_fits_into_a_stored_state() -> None:
    made = roster(0, 1)
    deliver(made, (0, -LARGEST))
    assert [*deliver(made, (0, LARGEST)), *deliver(made, (1, LARGEST))] == [False, True]
    assert stored(made.state()) == made.state()


class _OneByOne:
    """What a roster says of rows, in plain words."""

    def __init__(self) -> None:
        self.through: dict[int, int] = {}
        self.newest: int | None = None
        self.leaps = 0
        self.most_skipped = 1 << 21

    def deliver(self, rank: int, iteration: int) -> bool:
        if rank in self.through and iteration <= self.through[rank]:
            return False
        skipped = 0 if self.newest is None else iteration - self.newest
        self.leaps = self.leaps + 1 if skipped > self.most_skipped else 0
        if self.leaps == 1:
            return False
        if self.leaps > 1:
            self.most_skipped = 2 * skipped
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
