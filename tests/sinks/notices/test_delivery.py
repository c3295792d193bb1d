"""When a notice is tried again."""

from __future__ import annotations

import pytest

from irregulars.sinks.notices.ledger import LONGEST_S, Retries

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


def test_a_channel_that_asks_for_more_time_gets_it() -> None:
    retries = Retries(give_up_s=3600.0)
    assert retries.failed("n", 0, 120.0) == retries.rests_until_ns == 120 * S


def test_a_notice_that_fails_pauses_no_other() -> None:
    retries = Retries(give_up_s=3600.0)
    assert [retries.failed("n", 0, 0.0) for _ in range(3)] == [S, 2 * S, 4 * S]
    assert retries.failed("other", 0, 0.0) == S
    assert retries.rests_until_ns == 0


def test_a_notice_is_given_up_when_its_next_try_would_come_too_late() -> None:
    retries = Retries(give_up_s=6.0)
    assert retries.failed("n", 0, 0.0) == S
    assert retries.failed("n", S, 0.0) == 3 * S
    assert retries.waiting == 1
    assert retries.failed("n", 3 * S, 0.0) is None
    assert retries.waiting == 0
