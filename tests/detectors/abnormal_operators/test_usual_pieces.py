"""What is usual of single gaps and transfers."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.abnormal_operators.usual_pieces import (
    huber_means,
    iteration_ns,
    learn_usual_pieces,
    log_ratios,
    share_above_usual,
    shrink_together,
    spread_of_pieces,
)
from tests.detectors.operator_graphs import at, graph_of, row


def test_the_usual_gap_and_transfer_of_a_row_are_the_medians_at_its_place() -> None:
    graph = graph_of(
        *(row(0, 100 * n, 100 * n + 10 * n, sequence=2 * n, iteration=n) for n in (1, 2, 3)),
        *(row(0, 100 * n + 50, 100 * n + 60 + n, sequence=2 * n + 1, iteration=n) for n in (1, 2, 3)),
    )
    usual = learn_usual_pieces(graph)
    assert usual is not None
    gap_ns, transfer_ns = usual.of_graph(graph)
    assert transfer_ns[at(graph, 0, 350)] == 12
    assert transfer_ns[at(graph, 0, 300)] == 20
    assert gap_ns[at(graph, 0, 350)] == 30


def test_a_gap_after_another_operator_than_usual_is_not_known() -> None:
    usual = learn_usual_pieces(graph_of(*(
        row(0, 1000 * n + 100 * k, 1000 * n + 100 * k + 10, group=k, sequence=n, iteration=n)
        for n in range(3) for k in range(3)
    )))  # fmt: skip
    assert usual is not None
    graph = graph_of(row(0, 0, 10, sequence=9, iteration=9), row(0, 200, 210, group=2, sequence=9, iteration=9))
    gap_ns, transfer_ns = usual.of_graph(graph)
    assert np.isnan(gap_ns[at(graph, 0, 200)])
    assert transfer_ns[at(graph, 0, 200)] == 10


def test_an_iteration_lasts_from_its_entry_to_its_last_end() -> None:
    graph = graph_of(row(0, 50, 90), row(1, 60, 91), entry={(0, 0): 20, (1, 0): 30})
    assert iteration_ns(graph, 0) == 71


def test_a_ratio_is_known_where_both_times_are() -> None:
    found = log_ratios(np.array([2.0, 0.0, 3.0, 3.0]), np.array([1.0, 1.0, 0.0, np.nan]))
    np.testing.assert_allclose(found, [np.log(2), np.nan, np.nan, np.nan])


def test_of_a_time_that_is_twice_the_usual_half_is_above_it() -> None:
    np.testing.assert_allclose(share_above_usual(np.log(np.array([2.0, 1.0, 0.5]))), [0.5, 0.0, -1.0])


def test_a_value_far_from_the_median_counts_as_if_it_were_two_deviations_away() -> None:
    found = huber_means(np.zeros(3, dtype=np.int64), np.array([0.0, 0.0, 9.0]), np.ones(3), 1.0)
    np.testing.assert_allclose(found, [2 / 3])


def test_values_that_are_not_known_and_weights_of_nothing_do_not_count() -> None:
    group = np.array([0, 0, 0, 1])
    found = huber_means(group, np.array([1.0, np.nan, 5.0, np.nan]), np.array([2.0, 1.0, 0.0, 1.0]), 1.0)
    np.testing.assert_allclose(found, [1.0, 0.0])


def test_pieces_that_are_always_alike_vary_by_a_percent_at_least() -> None:
    assert spread_of_pieces(np.zeros(3), np.ones(3)) == pytest.approx(0.01)
    assert spread_of_pieces(np.array([-0.2, 0.2, 0.1]), np.ones(3)) == pytest.approx(1.4826 * 0.2)


def test_slow_ones_that_surely_differ_stay_apart() -> None:
    values, sigma = np.array([0.1, 0.9, 0.0]), np.full(3, 0.001)
    found = shrink_together(values, np.array([True, True, False]), sigma)
    np.testing.assert_allclose(found, values, atol=1e-5)


def test_a_slow_one_alone_keeps_its_factor_and_without_one_there_is_none() -> None:
    values, sigma = np.array([0.1, 0.9]), np.full(2, 0.1)
    np.testing.assert_allclose(shrink_together(values, np.array([False, True]), sigma), [0.0, 0.9])
    np.testing.assert_allclose(shrink_together(values, np.array([False, False]), sigma), [0.0, 0.0])
