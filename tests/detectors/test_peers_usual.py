"""What a rank costs that is later than its peers, whether operators overlap its work or not."""

from __future__ import annotations

import pytest

from detectors.critical_path import Attribution
from detectors.lanes import Lane
from detectors.peers_usual import attribute_by_peers
from detectors.topology import Place, Topology
from tests.detectors.operator_graphs import graph_of, row

RANKS, LATE, BUCKETS, ITERATIONS = 6, 4, 8, 6
WORK, TRANSFER, LATER = 100_000, 30_000, 4_000


def iterations(*, is_overlapped: bool) -> list[dict[str, object]]:
    """Each rank works, and all reduce, in turn; the late one works 4 % longer, all a little unlike each other."""
    rows, entry = [], 0
    for iteration in range(ITERATIONS):
        done = [entry] * RANKS  # work of the rank
        free = entry  # the operator before has ended
        for bucket in range(BUCKETS):
            for rank in range(RANKS):
                uneven = 37 * ((7 * rank + 5 * bucket + 3 * iteration) % 11)
                done[rank] += WORK + uneven + LATER * (rank == LATE)
            starts = [max(one, free) for one in done]
            free = max(starts) + TRANSFER
            number = iteration * BUCKETS + bucket
            rows += [row(rank, s, free, sequence=number, iteration=iteration) for rank, s in enumerate(starts)]
            if not is_overlapped:
                done = [free] * RANKS
        entry = free
    return rows


def attributed(*, is_overlapped: bool) -> Attribution:
    topology = Topology(RANKS, {rank: Place() for rank in range(RANKS)}, {0: tuple(range(RANKS))}, ("world",))
    return attribute_by_peers(graph_of(*iterations(is_overlapped=is_overlapped)), ITERATIONS - 1, topology)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_late_rank_costs_what_it_works_longer_and_no_more(is_overlapped: bool) -> None:
    found = attributed(is_overlapped=is_overlapped)
    cost_ns = sum(ns for lane, ns in found.path_excess_ns.items() if lane.kind == "work")
    assert max(found.path_excess_ns, key=lambda lane: found.path_excess_ns[lane]) == Lane("work", LATE)
    assert cost_ns == pytest.approx(BUCKETS * LATER, rel=0.15)
