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


def test_usual_pieces_and_their_ratios() -> None:
    # The usual gap and transfer of a row are the medians at its place
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
    # A gap after another operator than usual is not known
    usual = learn_usual_pieces(graph_of(*(
        row(0, 1000 * n + 100 * k, 1000 * n + 100 * k + 10, group=k, sequence=n, iteration=n)
        for n in range(3) for k in range(3)
    )))  # fmt: skip
    assert usual is not None
    graph = graph_of(row(0, 0, 10, sequence=9, iteration=9), row(0, 200, 210, group=2, sequence=9, iteration=9))
    gap_ns, transfer_ns = usual.of_graph(graph)
    assert np.isnan(gap_ns[at(graph, 0, 200)])
    assert transfer_ns[at(graph, 0, 200)] == 10
    # An iteration lasts from its entry to its last end
    graph = graph_of(row(0, 50, 90), row(1, 60, 91), entry={(0, 0): 20, (1, 0): 30})
    assert iteration_ns(graph, 0) == 71
    # A ratio is known where both times are
    found = log_ratios(np.array([2.0, 0.0, 3.0, 3.0]), np.array([1.0, 1.0, 0.0, np.nan]))
    np.testing.assert_allclose(found, [np.log(2), np.nan, np.nan, np.nan])
    # Of a time that is twice the usual half is above it
    np.testing.assert_allclose(share_above_usual(np.log(np.array([2.0, 1.0, 0.5]))), [0.5, 0.0, -1.0])


def test_robust_means_of_ratios() -> None:
    # A value far from the median counts as if it were two deviations away
    found = huber_means(np.zeros(3, dtype=np.int64), np.array([0.0, 0.0, 9.0]), np.ones(3), 1.0)
    np.testing.assert_allclose(found, [2 / 3])
    # Values that are not known and weights of nothing do not count
    group = np.array([0, 0, 0, 1])
    found = huber_means(group, np.array([1.0, np.nan, 5.0, np.nan]), np.array([2.0, 1.0, 0.0, 1.0]), 1.0)
    np.testing.assert_allclose(found, [1.0, 0.0])
    # Pieces that are always alike vary by a percent at least
    assert spread_of_pieces(np.zeros(3), np.ones(3)) == pytest.approx(0.01)
    assert spread_of_pieces(np.array([-0.2, 0.2, 0.1]), np.ones(3)) == pytest.approx(1.4826 * 0.2)
    # Slow ones that surely differ stay apart
    values, sigma = np.array([0.1, 0.9, 0.0]), np.full(3, 0.001)
    found = shrink_together(values, np.array([True, True, False]), sigma)
    np.testing.assert_allclose(found, values, atol=1e-5)
    # A slow one alone keeps its factor and without one there is none
    values, sigma = np.array([0.1, 0.9]), np.full(2, 0.1)
    np.testing.assert_allclose(shrink_together(values, np.array([False, True]), sigma), [0.0, 0.9])
    np.testing.assert_allclose(shrink_together(values, np.array([False, False]), sigma), [0.0, 0.0])
