"""When a notice is tried again."""

from __future__ import annotations

import queue
import threading

import pytest

from irregulars.sinks.notices.delivery import (
    LONGEST_S,
    LONGEST_TRY_S,
    MOST_LEFT,
    Courier,
    Outcome,
    Retries,
)
from irregulars.sinks.notices.ledger import Due, Ledger
from irregulars.sinks.notices.notice import Notice
from irregulars.sinks.notices.policy import Rules
from tests.present import present
from tests.sinks.notices.alerts import alert

S = 10**9


@pytest.mark.parametrize("wanted_s", [0.0, 1.0])
def test_pauses_double_up_to_the_longest_and_begin_anew_when_the_channel_answers(wanted_s: float) -> None:
    retries = Retries(give_up_s=1e9)
    pauses, now_ns = [], 0
    for _ in range(12):
        again_ns = retries.failed("n", now_ns, wanted_s)
        assert again_ns is not None
        assert retries.rests_until_ns == (again_ns if wanted_s else 0)
        pauses.append((again_ns - now_ns) / S)
        now_ns = again_ns
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_S
    retries.done("n")
    assert retries.failed("n", 0, wanted_s) == S


def test_a_notice_that_fails_pauses_no_other_unless_the_channel_asks_for_more_time() -> None:
    retries = Retries(give_up_s=3600.0)
    assert [retries.failed("n", 0, 0.0) for _ in range(3)] == [S, 2 * S, 4 * S]
    assert retries.failed("other", 0, 0.0) == S
    assert retries.rests_until_ns == 0
    retries = Retries(give_up_s=3600.0)
    assert retries.failed("n", 0, 120.0) == retries.rests_until_ns == 120 * S


def test_a_notice_is_given_up_when_its_next_try_would_come_too_late() -> None:
    retries = Retries(give_up_s=6.0)
    assert retries.failed("n", 0, 0.0) == S
    assert retries.failed("n", S, 0.0) == 3 * S
    assert retries.failed("n", 3 * S, 0.0) is None
    assert retries.failed("n", 3 * S, 0.0) == 4 * S  # it is forgotten: as if for the first time


class Stuck:
    """A channel that never comes back from its first try."""

    name = "c"

    def __init__(self) -> None:
        self.tries = 0
        self.is_stuck = threading.Event()
        self.goes_on = threading.Event()

    def deliver(self, notice: Notice) -> str | None:
        self.tries += 1
        if self.tries == 1:
            self.is_stuck.set()
            self.goes_on.wait(60)
        return f"try {self.tries}"

    def close(self) -> None:
        return


def due_notice() -> Due:
    ledger = Ledger({"c": Rules(hold_s=0.0)})
    ledger.apply_alert(alert(), 1)
    return present(ledger.next_due("c", 2))


def test_a_try_that_never_ends_is_left_and_the_channel_told_of_what_follows() -> None:
    """By an endpoint that answers byte by byte, or a stranger's: it got nothing more, and no line said so."""
    channel, outcomes, now_s, due = Stuck(), queue.SimpleQueue[Outcome](), [0.0], due_notice()
    courier = Courier(channel, outcomes, 60.0, clock_s=lambda: now_s[0])
    courier.send(due)
    assert channel.is_stuck.wait(60)
    now_s[0] = LONGEST_TRY_S - 1
    courier.leave_stuck()
    assert outcomes.empty()
    now_s[0] = LONGEST_TRY_S
    courier.leave_stuck()
    left = outcomes.get(timeout=60)
    assert (left.failure, left.is_final, left.may_have_arrived) == (
        "channel must answer within 1800 s; it did not", False, True
    )  # fmt: skip
    courier.leave_stuck()
    courier.send(due)
    assert outcomes.get(timeout=60).reference == "try 2"
    channel.goes_on.set()
    courier.send(due)
    assert outcomes.get(timeout=60).reference == "try 3", "the end of the first try, when it comes, is no outcome"
    courier.close()


def test_a_try_is_left_though_many_were_that_have_ended_since() -> None:
    channel, outcomes, now_s, due = Stuck(), queue.SimpleQueue[Outcome](), [0.0], due_notice()
    courier = Courier(channel, outcomes, 60.0, clock_s=lambda: now_s[0])
    for _ in range(MOST_LEFT + 1):
        channel.tries = 0
        channel.goes_on.clear()
        courier.send(due)
        now_s[0] += LONGEST_TRY_S
        courier.leave_stuck()
        assert outcomes.get(timeout=60).failure is not None
        channel.goes_on.set()
        courier._left[-1].join(60)
    assert outcomes.empty()
    courier.close()
