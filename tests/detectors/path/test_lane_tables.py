"""What the transfers of each lane took, and by how much that is longer than usual."""

from __future__ import annotations

from typing import Any

import pytest

from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.path.critical_path import attribute
from irregulars.detectors.path.lane_tables import lane_excess, lane_of, lane_table
from irregulars.detectors.path.usual_by_past import learn_reference
from tests.detectors.batched_rings import QUICK, RING, SLOW, ring_rows
from tests.detectors.operator_graphs import graph_of, row

WORLD = Lane("collective", 0)


def test_transfers_of_lanes() -> None:
    # The lane of a pair goes from its sender to its receiver
    graph = graph_of(row(0, 5, 6, "send", peer=1), row(1, 0, 30, "recv", peer=0), row(2, 0, 9, group=4))
    assert {lane_of(graph, at) for at in range(3)} == {Lane("pair", 0, 1), Lane("collective", 4)}
    # The transfer of a collective is the median of its members: one of the members left late, one early: neither says
    # how long the transfer of all took.
    graph = graph_of(row(0, 0, 20), row(1, 10, 14), row(2, 3, 15))
    assert {lane: usual.mean_ns for lane, usual in learn_reference(graph).lanes.items()} == {Lane("collective", 0): 5}
    # A ring with one slow way is slow although a member leaves as early as ever
    usual = learn_reference(graph_of(*(row(rank, 0, 14) for rank in range(4)))).lanes
    slow = lane_table(graph_of(row(0, 0, 14), row(1, 0, 30), row(2, 0, 45), row(3, 0, 31)))
    assert lane_excess(slow, 0, usual)[WORLD].excess_ns > usual[WORLD].mean_ns


def test_a_ring_in_which_the_same_member_always_leaves_early_is_slow_in_all_of_its_transfers() -> None:
    def iteration(number: int, *ends: int) -> list[dict[str, Any]]:
        return [
            row(rank, 1000 * number + 100 * turn, 1000 * number + 100 * turn + end, sequence=turn, iteration=number)
            for turn in range(4)
            for rank, end in enumerate(ends)
        ]

    reference = learn_reference(graph_of(*iteration(0, 14, 14, 14, 14)))
    found = attribute(graph_of(*iteration(1, 14, 30, 45, 31)), 1, reference).lanes[WORLD]
    assert (found.transfers, found.slow_transfers, found.is_stray) == (4, 4, False)


def test_the_transfer_of_a_pair_is_that_of_its_recv() -> None:
    graph = graph_of(row(0, 5, 6, "send", peer=1), row(1, 0, 30, "recv", peer=0))
    assert {lane: usual.mean_ns for lane, usual in learn_reference(graph).lanes.items()} == {Lane("pair", 0, 1): 25}


@pytest.mark.parametrize("slow", range(RING))
def test_of_a_batch_only_the_lane_of_the_slow_message_took_longer(slow: int) -> None:
    usual = learn_reference(graph_of(*ring_rows(()))).lanes
    found = lane_excess(lane_table(graph_of(*ring_rows({slow}))), 0, usual)
    longer = {lane: excess.excess_ns for lane, excess in found.items()}
    assert longer == {Lane("pair", one, (one + 1) % RING): (SLOW - QUICK) * (one == slow) for one in range(RING)}


def test_excess_of_lanes() -> None:
    # A lane in which one message hung is stray though one beside another message ended late as well
    reference = learn_reference(graph_of(*ring_rows((), ())))
    found = attribute(graph_of(*ring_rows({1}, {2}, iteration=3)), 3, reference).lanes
    assert {lane.first: excess.slow_transfers for lane, excess in found.items()} == dict.fromkeys(range(RING), 1)
    # The excess of a lane counts each of its operators
    regular = [row(rank, 1000 * n + rank, 1000 * n + 11, sequence=n, iteration=n, size=64.0)
               for n in range(3) for rank in (0, 1)]  # fmt: skip
    reference = learn_reference(graph_of(*regular))
    twice = graph_of(*[row(rank, 100 * n + rank, 100 * n + 1 + 30, sequence=50 + n, iteration=9, size=64.0)
                       for n in (0, 1) for rank in (0, 1)])  # fmt: skip
    found = attribute(twice, 9, reference).lanes[Lane("collective", 0)]
    assert (found.excess_ns, found.usual_ns, found.size_bytes) == (40, 20, 128)
    # A lane that is not in the iteration is left out
    graph = graph_of(
        row(0, 0, 5), row(1, 2, 5), row(0, 9, 12, group=1, iteration=1), row(1, 9, 12, group=1, iteration=1)
    )
    assert set(attribute(graph, 1, learn_reference(graph)).lanes) == {Lane("collective", 1)}
    # An iteration without rows has no lanes
    table = lane_table(graph_of(row(0, 0, 20), row(1, 10, 14)))
    usual = {WORLD: UsualLane(3.0, 1.0, 0.0)}
    assert lane_excess(table, 1, usual) == {}
    assert lane_excess(table, 0, usual).keys() == usual.keys()
