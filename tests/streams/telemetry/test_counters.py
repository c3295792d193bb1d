"""Each thing that happens is counted once, and delays are never below zero."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.judgements import JudgedIteration, Verdict
from irregulars.streams.telemetry.counters import DELAY_BOUNDS_S, Counters, Histogram
from tests.streams.evidence_rows import came, evidence_of


def judged(number: int, end_s: float, *, is_irregular: bool | None = False) -> JudgedIteration:
    start_ns = int((end_s - 2.0) * 1e9)
    return JudgedIteration("j", 0, number, start_ns, 2 * 10**9, math.nan, "train", is_irregular, 4)


def verdict(event: str, last: int) -> Verdict:
    return Verdict("v", 1, "open", "j", "slow_nic", (3, last + 1), 1.2, 1.0, None, (), "", event=event)


@given(st.lists(st.floats(0.0, 1e5), max_size=50))
def test_each_delay_is_in_one_bucket_whose_bound_is_not_below_it(delays_s: list[float]) -> None:
    histogram = Histogram()
    for delay_s in delays_s:
        histogram.add(delay_s)
    assert sum(histogram.counts) == len(delays_s)
    assert histogram.sum == pytest.approx(sum(delays_s))
    for bucket, bound in enumerate(DELAY_BOUNDS_S):
        assert sum(histogram.counts[: bucket + 1]) == sum(delay_s <= bound for delay_s in delays_s)


def test_messages_and_rows_are_counted_by_topic() -> None:
    counters = Counters()
    counters.took("commops", 1500)
    counters.took("commops", 20)
    counters.took_evidence("evidence", [came(0), evidence_of(0, {0: 10, 1: 10})])
    assert counters.batches == {"commops": 2, "evidence": 1}
    assert counters.rows == {"commops": 1520, "evidence": 2}


def test_late_rows_are_those_that_evidence_tells_of() -> None:
    counters = Counters()
    rows = evidence_of(0, {0: 10, 1: 10})
    rows.columns["late_rows"][:] = (0, 7)
    counters.took_evidence("evidence", [rows])
    assert counters.late_rows == 7


def test_a_judgement_is_as_late_as_its_iteration_has_ended() -> None:
    counters = Counters()
    counters.judged(
        [judged(1, 100.0), judged(2, 107.0, is_irregular=True), judged(3, 120.0, is_irregular=None)], 110.0
    )
    assert (counters.judged_iterations, counters.irregular_iterations) == (3, 1)
    assert counters.judgement_delays.sum == pytest.approx(10.0 + 3.0)  # a host's clock may run ahead of ours


def test_a_verdict_is_as_late_as_the_iteration_that_opened_it_has_ended() -> None:
    counters = Counters()
    iterations = [judged(4, 100.0), judged(5, 104.0)]
    counters.told(verdict("opened", 5), iterations, 110.0)
    counters.told(verdict("continued", 5), iterations, 110.0)
    counters.told(verdict("opened", 9), iterations, 110.0)  # of a hang: its iteration has no end
    assert counters.verdicts == {("slow_nic", "opened"): 2, ("slow_nic", "continued"): 1}
    assert counters.verdict_delays.sum == pytest.approx(6.0)


def test_a_sink_is_busy_until_it_answers() -> None:
    counters = Counters()
    counters.sink_was_busy(5.0)
    counters.sink_was_busy(6.0)
    assert (counters.sink_retries, counters.sink_busy_at_s) == (2, 6.0)
    counters.sink_answered()
    assert (counters.sink_retries, counters.sink_busy_at_s) == (2, None)
