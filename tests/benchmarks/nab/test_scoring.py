"""NAB's scoring on cases whose score follows from the published rules by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.benchmarks.nab.__main__ import read_series, score_series
from tests.benchmarks.nab.scoring import Series, best_threshold, corpus_score, normalized, raw_score, worth
from tests.conftest import find_shared_trace

ONE = Series("one", np.zeros(1000), ((400, 499),))


def detected(*places: int, rows: int = 1000) -> np.ndarray:
    flags = np.zeros(rows, dtype=np.bool_)
    flags[list(places)] = True
    return flags


@pytest.mark.parametrize(
    ("position", "value"), [(-1.0, 0.98661), (-0.5, 0.84828), (0.0, 0.0), (1.0, -0.98661), (3.0, -1.0), (99.0, -1.0)]
)
def test_what_a_position_is_worth_is_as_published(position: float, value: float) -> None:
    assert worth(position) == pytest.approx(value, abs=1e-5)


def test_nothing_detected_is_0_and_all_at_their_left_edges_is_100() -> None:
    two = Series("two", np.zeros(1000), ((400, 449), (700, 749)))
    assert normalized(raw_score(two, detected()), 2) == 0.0
    assert normalized(raw_score(two, detected(400, 700)), 2) == pytest.approx(100.0)


def test_the_earliest_detection_in_a_window_counts_and_later_ones_cost_nothing() -> None:
    assert raw_score(ONE, detected(450, 460, 499)) == raw_score(ONE, detected(450))
    assert raw_score(ONE, detected(450)) == pytest.approx(worth(-0.5) / worth(-1.0))


def test_a_detection_at_the_right_edge_is_worth_little() -> None:
    assert 0 < raw_score(ONE, detected(499)) < 0.03


def test_a_false_detection_before_any_window_costs_all_of_its_weight() -> None:
    assert raw_score(ONE, detected(300)) == pytest.approx(-1.0 - 0.11)


def test_a_false_detection_costs_more_the_further_it_lies_behind_a_window() -> None:
    costs = [raw_score(ONE, detected(at)) + 1.0 for at in (500, 549, 598, 900)]
    assert costs == sorted(costs, reverse=True)
    assert costs[2] == pytest.approx(0.11 * worth(1.0)), "99 values behind the last of a window of 100"
    assert costs[3] == pytest.approx(-0.11)


def test_the_probationary_period_does_not_count() -> None:
    early = Series("early", np.zeros(1000), ((10, 60), (400, 499)))
    assert early.probation == 150
    assert raw_score(early, detected(20, 140, 400)) == pytest.approx(1.0)
    assert Series("long", np.zeros(20_000), ()).probation == 750


def test_the_best_threshold_is_that_of_the_highest_score() -> None:
    scores = np.zeros(1000)
    scores[400], scores[200] = 9.0, 5.0
    threshold, best = best_threshold([ONE], [scores])
    assert 5 < threshold <= 9
    assert best == pytest.approx(100.0)
    assert corpus_score([ONE], [scores], 5.0) == pytest.approx(100.0 * (2 - 0.11) / 2)


def test_the_series_of_the_benchmark_are_read_with_their_windows() -> None:
    all_series = read_series(find_shared_trace("raw") / "nab")
    assert (len(all_series), sum(len(one.values) for one in all_series)) == (8, 73_593)
    assert sum(len(one.windows) for one in all_series) == 20
    assert all(first < last for one in all_series for first, last in one.windows)


def test_a_spike_is_detected_before_it_is_taught() -> None:
    from irregulars.detectors.plugins.loading import load_detector

    values = 100 * np.random.default_rng(1).lognormal(0, 0.02, 200)
    values[150] = 500
    scores = score_series(load_detector("river_gaussian"), Series("spike", values, ()))
    assert int(np.nanargmax(scores)) == 150
    assert math.isnan(scores[0])
