"""What a rank costs that is later than its peers, whether operators overlap its work or not."""

from __future__ import annotations

import pytest

from detectors.lanes import Lane
from detectors.peers_usual import attribute_by_peers
from detectors.topology import Place, Topology
from tests.detectors.operator_graphs import graph_of
from tests.detectors.overlapped_work import BUCKETS, LATER_NS, RANKS, rows_of

TOPOLOGY = Topology(RANKS, {rank: Place() for rank in range(RANKS)}, {0: tuple(range(RANKS))}, ("world",))


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_late_rank_costs_what_it_works_longer_and_no_more(is_overlapped: bool) -> None:
    found = attribute_by_peers(
        graph_of(*rows_of(6, dict.fromkeys(range(6), 4), is_overlapped=is_overlapped)), 5, TOPOLOGY
    )
    cost_ns = sum(ns for lane, ns in found.path_excess_ns.items() if lane.kind == "work")
    assert max(found.path_excess_ns, key=lambda lane: found.path_excess_ns[lane]) == Lane("work", 4)
    assert cost_ns == pytest.approx(BUCKETS * LATER_NS, rel=0.15)


@pytest.mark.parametrize("lost", [[], [0, 1, 2, 3, 5]])
def test_ranks_that_lost_the_last_row_of_an_iteration_have_their_peers_still(lost: list[int]) -> None:
    rows = rows_of(6, dict.fromkeys(range(6), 4), is_overlapped=False)
    last = max(one["sequence"] for one in rows)
    kept = [one for one in rows if one["sequence"] < last or one["rank"] not in lost]
    found = attribute_by_peers(graph_of(*kept), 5, TOPOLOGY)
    known = BUCKETS - 1  # of the last one the culprit's alone is there
    assert found.path_excess_ns[Lane("work", 4)] > 0.8 * known * LATER_NS
