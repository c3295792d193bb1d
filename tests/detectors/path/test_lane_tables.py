"""What is usual of lanes, and how far they vary."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.lane_tables import LaneTable, left_first, usual_lanes
from tests.detectors.operator_graphs import logged_graph, row

MS = 1e6


def table(*times_ms: list[float], sizes: list[float] | None = None) -> LaneTable:
    """One transfer of each pair in each iteration."""
    sums = np.array(times_ms) * MS
    counts = np.ones_like(sums)
    lanes = [Lane("pair", at, at + 100) for at in range(len(sums))]
    size_bytes = np.outer(sizes or [1e6] * len(sums), np.ones(sums.shape[1]))
    return LaneTable(lanes, np.arange(sums.shape[1]), sums, counts, size_bytes)


CALM, RESTLESS = [4.0, 4.01, 4.0, 3.99, 4.0], [8.0, 7.0, 9.0, 8.0, 9.0]


def test_a_lane_that_was_calm_for_a_few_iterations_is_as_restless_as_its_kind() -> None:
    usual = usual_lanes(table(CALM, RESTLESS, RESTLESS, RESTLESS))
    of_kind = usual[Lane("pair", 1, 101)].noise_ns / (8 * MS)
    assert usual[Lane("pair", 0, 100)].noise_ns > 0.5 * of_kind * 4 * MS
    assert usual[Lane("pair", 0, 100)].mean_ns == 4 * MS
    assert usual[Lane("pair", 0, 100)].most_ns == 4 * MS  # its kind takes 8 ms


def test_a_pair_within_a_host_is_not_usually_as_slow_as_those_over_the_network() -> None:
    usual = usual_lanes(table([0.2, 0.21, 0.2, 0.19, 0.2], *[RESTLESS] * 6))
    assert usual[Lane("pair", 0, 100)].most_ns == pytest.approx(0.2 * MS)


@pytest.mark.parametrize("sizes", [None, [1e6, 9e6, 9e6, 9e6]])
def test_too_few_of_a_kind_and_lanes_of_other_sizes_say_nothing_of_it(sizes: list[float] | None) -> None:
    others = [RESTLESS] * (JOB.often - 2 if sizes is None else 3)
    own = usual_lanes(table(CALM, *others, sizes=sizes))[Lane("pair", 0, 100)]
    assert own.noise_ns < 0.02 * MS
    assert own.most_ns == pytest.approx(0.01 * MS)


def test_bytes_that_change_are_no_noise_of_a_lane_that_takes_as_long_for_each() -> None:
    sums = np.array([[4.0, 8.0, 6.0, 4.0, 8.0]]) * MS
    sizes = sums / MS * 1e6
    lane = Lane("collective", 0)
    usual = usual_lanes(LaneTable([lane], np.arange(5), sums, np.ones_like(sums), sizes))[lane]
    assert (usual.mean_ns, usual.noise_ns, usual.most_ns) == pytest.approx((6 * MS, 0.0, 0.0), abs=1e-6)
    assert usual.size_bytes == 6e6


@pytest.mark.parametrize(("apart_ns", "first"), [(0, ()), (1_000_000, ()), (3_000_000, ((0, 2),))])
def test_where_all_leave_at_about_one_time_nobody_is_first(apart_ns: int, first: tuple[tuple[int, int], ...]) -> None:
    """Ranks 1 and 2 enter 5 ms apart; in a slow ring rank 2 leaves by so much before rank 1."""
    graph = logged_graph(row(1, 0, 30_000_000 + apart_ns), row(2, 5_000_000, 30_000_000))
    slow = {Lane("collective", 0): LaneExcess(20 * MS, 5 * MS, 1000.0, 1e6)}
    assert left_first(graph, 0, slow, {0: (1, 2)}) == first
    assert left_first(graph, 0, slow, {0: (1, 2, 3)}) == ()  # of one nothing is known
    # Nor does the root of a broadcast, or the neighbour of who sends slowly to all
    for operator in ("broadcast", "all_to_all"):
        no_ring = logged_graph(row(1, 0, 30_000_000, operator), row(2, 0, 9_000_000, operator))
        assert left_first(no_ring, 0, slow, {0: (1, 2)}) == ()
