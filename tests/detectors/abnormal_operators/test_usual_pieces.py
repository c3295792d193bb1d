"""What is usual of single gaps and transfers."""

from __future__ import annotations

import numpy as np

from irregulars.detectors.abnormal_operators.usual_pieces import iteration_ns, learn_usual_pieces
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
