from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.runs.scoring import Counts, Fault, ScoredJob, alarms_of, count_job


def job_of(scores: np.ndarray, first: int = 0) -> ScoredJob:
    rows, ranks = scores.shape
    return ScoredJob(np.arange(first, first + rows), np.arange(ranks), scores.astype(np.float64))


def strange_in(rows: int, ranks: int, rank: int, first: int, past: int) -> np.ndarray:
    scores = np.zeros((rows, ranks))
    scores[first:past, rank] = 2.0
    return scores


def test_an_alarm_needs_four_of_six_iterations_with_an_opinion() -> None:
    scores = np.array([2.0, 0, 2, 0, 2, 0, 2, 2, 2, 0, 0, 0, 0])[:, None]
    stands, raised = alarms_of(scores)
    assert np.flatnonzero(stands).tolist() == [7, 8, 9]
    assert np.flatnonzero(raised).tolist() == [7]
    stands, _ = alarms_of(np.full((10, 1), np.nan))
    assert not stands.any()
    stands, raised = alarms_of(np.full((3, 2), 5.0))
    assert not stands.any()
    assert not raised.any()


def test_a_fault_is_found_with_the_delay_of_the_rule() -> None:
    counts = count_job(job_of(strange_in(40, 3, 1, 10, 20), 100), [Fault((1,), ((110, 120),))])
    assert (counts.faults, counts.found, counts.delays) == (1, 1, (3,))
    assert (counts.true, counts.right) == (10, 7)
    assert counts.recall == pytest.approx(0.7)
    assert (counts.precision, counts.false_alarms) == (1.0, 0)


def test_what_still_stands_behind_a_fault_is_neither_right_nor_wrong() -> None:
    counts = count_job(job_of(strange_in(40, 3, 1, 10, 21)), [Fault((1,), ((10, 20),))])
    assert counts.alarmed == counts.right == 7


def test_a_victim_under_an_alarm_is_wrong_and_one_end_of_a_link_is_enough() -> None:
    counts = count_job(job_of(strange_in(40, 3, 2, 10, 20)), [Fault((1,), ((10, 20),))])
    assert (counts.right, counts.found, counts.false_alarms) == (0, 0, 1)
    assert counts.precision == 0.0
    assert math.isnan(counts.delay)
    counts = count_job(job_of(strange_in(40, 4, 3, 10, 20)), [Fault((1, 3), ((10, 20),))])
    assert (counts.found, counts.true, counts.right) == (1, 20, 7)


def test_two_faults_are_two_and_one_without_rows_is_not_counted() -> None:
    scores = strange_in(60, 4, 0, 10, 20) + strange_in(60, 4, 2, 30, 40)
    counts = count_job(job_of(scores), [Fault((0,), ((10, 20),)), Fault((2,), ((30, 40),)), Fault((3,), ((50, 60),))])
    assert (counts.faults, counts.found, counts.delays) == (3, 2, (3, 3))
    counts = count_job(job_of(np.zeros((10, 2))), [Fault((1,), ((40, 50),))])
    assert (counts.faults, counts.true) == (0, 0)
    assert math.isnan(counts.recall)


def test_counts_of_jobs_add_up_and_false_alarms_are_per_thousand_iterations() -> None:
    one = count_job(job_of(strange_in(40, 3, 1, 10, 20)), [Fault((1,), ((10, 20),))])
    both = sum([one, Counts()], one)
    assert (both.true, both.found, both.delays, both.iterations) == (20, 2, (3, 3), 80)
    assert count_job(job_of(strange_in(200, 8, 5, 50, 60)), []).false_per_1000 == pytest.approx(5.0)


@given(st.lists(st.lists(st.sampled_from([0.0, 2.0, math.nan]), min_size=3, max_size=3), min_size=1, max_size=40))
def test_precision_and_recall_do_not_depend_on_the_order_of_ranks(rows: list[list[float]]) -> None:
    scores, faults = np.array(rows), [Fault((0,), ((5, 20),))]
    turned = ScoredJob(np.arange(len(rows)), np.array([2, 1, 0]), scores[:, ::-1])
    assert count_job(job_of(scores), faults) == count_job(turned, faults)
