"""What is usual, as regular iterations teach it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from detectors.critical_path import attribute
from detectors.lanes import Lane
from detectors.reference import Reference, incomplete_ranks, learn_reference
from tests.detectors.operator_graphs import graph_of, row


def regular(transfers: Sequence[int]) -> Reference:
    rows = []
    for number, transfer in enumerate(transfers):
        origin = 1000 * number
        rows += [row(rank, origin + rank, origin + 1 + transfer, sequence=number, iteration=number, size=64.0)
                 for rank in (0, 1)]  # fmt: skip
    return learn_reference(graph_of(*rows))


def test_usual_is_the_median_over_iterations() -> None:
    reference = regular([10, 11, 9, 10, 500])
    assert reference.lane_usual_ns == {Lane("collective", 0): 10}
    assert reference.lane_noise_ns == {Lane("collective", 0): pytest.approx(1.4826)}
    assert reference.iterations == (0, 1, 2, 3, 4)
    assert set(reference.transfer_ns.tolist()) == {10}


def test_the_median_of_an_even_number_lies_between() -> None:
    assert regular([10, 20]).lane_usual_ns == {Lane("collective", 0): 15}


def test_the_place_of_an_operator_in_the_iteration_has_its_own_usual_time() -> None:
    """The second call of the same kind is always slow: it is usual there and nowhere else."""

    def iteration(number: int, second: int) -> list[dict[str, Any]]:
        origin = 1000 * number
        spans = [(origin, origin + 5), (origin + 10, origin + 10 + second)]
        return [row(rank, a, b, sequence=2 * number + n, iteration=number)
                for n, (a, b) in enumerate(spans) for rank in (0, 1)]  # fmt: skip

    reference = learn_reference(graph_of(*[one for n in range(4) for one in iteration(n, 90)]))
    assert not any(attribute(graph_of(*iteration(7, 90)), 7, reference).path_excess_ns.values())
    assert attribute(graph_of(*iteration(7, 150)), 7, reference).path_excess_ns[Lane("collective", 0)] == 60


def test_a_rank_that_logged_fewer_operators_than_usual_is_incomplete() -> None:
    reference = regular([10, 10, 10])
    whole = [row(rank, rank, 30, sequence=9, iteration=9) for rank in (0, 1)]
    assert incomplete_ranks(graph_of(*whole), 9, reference) == frozenset()
    assert incomplete_ranks(graph_of(*whole[:1]), 9, reference) == {1}
