"""Where the time went, of operators that do not say when they began."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.lane_tables import usual_lanes
from irregulars.detectors.path.without_start_times import (
    Waits,
    Work,
    attribute_untimed,
    attribute_untimed_by_peers,
    find_waits,
)
from irregulars.messages.records import UNKNOWN
from tests.detectors.operator_graphs import columns_of, row

WORLD = Lane("collective", 0)


def waits_of(*rows: dict[str, Any]) -> Waits:
    """The operators without their starts."""
    columns = columns_of(list(rows))
    return find_waits(columns | {"start_ns": np.full(len(rows), UNKNOWN)})


def lockstep(iteration: int, work: tuple[int, ...], transfer: int = 4) -> list[dict[str, Any]]:
    """All ranks work and meet in one all_reduce."""
    past = max(work) + transfer
    return [row(rank, own, past, sequence=iteration, iteration=iteration) for rank, own in enumerate(work)]


def test_waits_by_the_quickest_member() -> None:
    # Who spends least inside came last
    waits = waits_of(*lockstep(0, (10, 25, 12)))
    assert waits.waited_ns.tolist() == [15, 0, 13]
    assert waits.made_wait_ns.tolist() == [0, 15, 0]
    assert waits.table.lanes == [WORLD]
    assert waits.table.sums_ns.tolist() == [[4]]
    # What says nothing is left out
    pair = [row(0, 0, 9, "send", peer=1, sequence=9), row(1, 5, 9, "recv", peer=0, sequence=9)]
    lost = lockstep(1, (10, 25, 12))[:2]
    open_row = [row(0, 0, None, sequence=5)]
    waits = waits_of(*lockstep(0, (10, 25, 12)), *pair, *lost, *open_row)
    assert set(waits.iteration.tolist()) == {0}
    assert len(waits.rank) == 3
    assert len(waits_of(*pair).rank) == 0


def usual_of(*iterations: int) -> tuple[Waits, dict[int, float]]:
    regular = [one for number in iterations for one in lockstep(number, (10, 10, 12))]
    return waits_of(*regular), {0: 10.0, 1: 10.0, 2: 12.0}


def test_excess_without_start_times() -> None:
    # The rank that others waited for has the excess
    regular, work_ns = usual_of(0, 1, 2)
    work = Work({0: 10.0, 1: 30.0, 2: 12.0}, work_ns)
    found = attribute_untimed(waits_of(*lockstep(7, (10, 30, 12))), 7, usual_lanes(regular.table), work)
    assert found.path_excess_ns == {Lane("work", 1): 20.0, WORLD: 0.0}
    assert found.pieces[Lane("work", 1)][1:4] == (1, row(0, 0, 1)["operator"], 0)
    assert found.work_excess_ns == {0: 0.0, 1: 20.0, 2: 0.0}
    # A slow transfer is its communicators and accuses no device
    regular, work_ns = usual_of(0, 1, 2)
    slow = waits_of(*lockstep(7, (10, 10, 12), transfer=40))
    found = attribute_untimed(slow, 7, usual_lanes(regular.table), Work(work_ns, work_ns))
    assert found.path_excess_ns == {Lane("work", 2): 0.0, WORLD: 36.0}
    assert found.lanes == {}
    # Once is no proof
    regular, work_ns = usual_of(0, 1, 2)
    found = attribute_untimed(regular, 1, usual_lanes(regular.table), Work(work_ns, work_ns))
    assert found.incomplete == {0, 1, 2}
    # What all ranks work longer is nobodys
    regular, work_ns = usual_of(0, 1, 2)
    longer = waits_of(*lockstep(7, (20, 20, 24)))
    found = attribute_untimed(longer, 7, usual_lanes(regular.table), Work({0: 20.0, 1: 20.0, 2: 24.0}, work_ns, 2.0))
    assert found.path_excess_ns[EVERYBODY] == 12.0
    assert found.path_excess_ns[Lane("work", 2)] == 0.0
    # An iteration without collectives says nothing
    regular, work_ns = usual_of(0)
    found = attribute_untimed(regular, 5, usual_lanes(regular.table), Work(work_ns, work_ns))
    assert (found.path_excess_ns, found.work_excess_ns) == ({}, {0: 0.0, 1: 0.0, 2: 0.0})


@pytest.mark.parametrize("late", [0, 2])
def test_peers_say_who_is_late(late: int) -> None:
    work = {rank: 30.0 if rank == late else 10.0 for rank in range(3)}
    waits = waits_of(*lockstep(0, tuple(int(ns) for ns in work.values())))
    late_ns = {rank: ns - 10.0 for rank, ns in work.items()}
    found = attribute_untimed_by_peers(waits, 0, work, late_ns, Topology(3, {}, {0: (0, 1, 2)}, ("world",)))
    assert found.path_excess_ns[Lane("work", late)] == 20.0
