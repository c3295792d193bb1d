"""Which ranks the critical path may depend on, and what summaries say of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.path.ranks_to_read import (
    WIDE,
    Summaries,
    _partners,
    accused_lanes,
    beside,
    ends_of,
    is_known,
    lane_sums,
    lanes_beside,
    lanes_by_role,
    others_beside,
    path_rows,
    usual_sums,
    wanted_ranks,
)
from irregulars.messages.records import OPERATOR_CODES, RECV
from tests.detectors.operator_graphs import any_rows, graph_of, row

ALL_REDUCE = OPERATOR_CODES["all_reduce"]
MANY = tuple(range(2 * WIDE))
PLACES = {rank: Place(f"node-{rank // 2}", rank % 2, f"nic-{rank % 2}") for rank in MANY}
JOB = Topology(len(MANY), PLACES, {0: MANY, 1: (0, 1, 2), 2: (0, 5)})


Row = tuple[int, int, int, int, int, float]


def summaries(*rows: Row) -> Summaries:
    columns = list(zip(*rows, strict=True)) or [()] * 6
    ints = [np.array(column, dtype=np.int64) for column in columns[:5]]
    return Summaries(*ints, np.array(columns[5], dtype=np.float64))


def wide(rank: int, shortest: float) -> Row:
    return rank, 0, ALL_REDUCE, -1, 1, shortest


def wanted(*rows: dict[str, object], known: Summaries, read: set[int], worth: float = 0.0) -> set[int]:
    return wanted_ranks(graph_of(*rows), 0, known, JOB, set(MANY) - read, worth)


def test_ranks_that_the_path_needs() -> None:
    # The path goes from the last operator over who came last
    graph = graph_of(row(0, 10, 50), row(1, 40, 50), row(1, 0, 30, sequence=1, group=9))
    assert graph.rank[path_rows(graph, 0)].tolist() == [0, 1, 1]
    # No rows need nobody
    assert wanted(known=summaries(), read=set()) == set()
    # All members of a small collective are wanted
    assert wanted(row(0, 10, 50, group=1), known=summaries(), read={0}) == {1, 2}
    # Members of a small collective that took no longer than usual are not
    graph = graph_of(row(0, 10, 50, group=1))
    unread = set(MANY) - {0}
    assert wanted_ranks(graph, 0, summaries(), JOB, unread, 0.0, slow=lambda: {2}) == set()
    assert wanted_ranks(graph, 0, summaries(), JOB, unread, 0.0, slow=lambda: {1}) == {1, 2}
    # The other end of a recv is wanted with its pipeline
    assert wanted(row(0, 10, 50, "recv", group=2, peer=5), known=summaries(), read={0}) == {5}


@given(rows=any_rows(), data=st.data())
def test_partners_are_those_of_all_parts_of_each_batch(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    graph = graph_of(*rows)
    messages = np.flatnonzero(graph.is_p2p)
    own = np.array(data.draw(st.lists(st.sampled_from(messages.tolist() or [0]))), dtype=np.int64)
    own = own if len(messages) else own[:0]
    parts = [
        graph.peer[(graph.block == graph.block[at]) & (graph.start_ns == graph.start_ns[at]) & graph.is_p2p].tolist()
        for at in own
    ]
    assert _partners(graph, own, Topology(4, {}, {})) == {rank for peers in parts for rank in peers}


def test_candidates_of_wide_collectives() -> None:
    # Of a wide collective only those who may have come later are wanted
    known = summaries(*(wide(rank, 45.0) for rank in MANY if rank != 7), wide(7, 3.0))
    assert wanted(row(0, 10, 50), known=known, read={0}) == {7}
    # Nobody is wanted where the last arriver was read
    known = summaries(*(wide(rank, 45.0) for rank in MANY))
    assert wanted(row(0, 10, 50), row(7, 48, 50), known=known, read={0, 7}) == set()
    # A wait that is not worth it is not looked into
    known = summaries(*(wide(rank, 38.0) for rank in MANY))
    assert wanted(row(0, 10, 50), known=known, read={0}, worth=5.0) == set()
    assert wanted(row(0, 10, 50), known=known, read={0}, worth=1.0)
    # The likeliest of many candidates are wanted first, sixteen at a time
    known = summaries(*(wide(rank, 5.0 + (rank != 9)) for rank in MANY))
    found = wanted(row(0, 10, 50), known=known, read={0})
    assert 9 in found
    assert len(found) == 16


def recv(rank: int, peer: int, shortest: float, count: int = 4) -> Row:
    return rank, 2, RECV, peer, count, shortest


def test_lanes_to_read() -> None:
    # Lanes that were as quick as always are known without reading
    usual = usual_sums(lane_sums(summaries(recv(0, 5, ns), recv(6, 1, ns))) for ns in (10.0, 11.0, 12.0))
    assert usual[Lane("pair", 5, 0)] == pytest.approx((11.0, 1.4826))
    now = lane_sums(summaries(recv(0, 5, 11.5), recv(6, 1, 90.0), recv(20, 21, 50.0)))
    quick, slow = lanes_beside(now, usual, {0, 1}, JOB)
    assert quick[Lane("pair", 5, 0)].excess_ns == pytest.approx(4 * 0.5)
    assert slow == [Lane("pair", 1, 6)]
    assert lanes_beside(now, usual, {30}, JOB) == ({}, [])
    # A wide collective took no longer than its quickest member spent inside
    sums = lane_sums(summaries(*(wide(rank, 20.0 + rank) for rank in MANY)))
    assert sums.mean_ns == {Lane("collective", 0): 20.0}
    # Slow transfers that leave a host are looked at from all sides
    path = {Lane("pair", 0, 5): 50.0, Lane("pair", 0, 1): 50.0, Lane("work", 3): 60.0, Lane("pair", 2, 8): 1.0}
    attribution = Attribution(0, path, {}, {}, {})
    assert accused_lanes(attribution, JOB) == [Lane("pair", 0, 5)]
    # To know a lane both ends are read
    lanes = [Lane("pair", 3, 4), Lane("collective", 1), Lane("collective", 0)]
    assert ends_of(lanes, JOB) == {0, 1, 2, 3, 4}
    assert is_known(lanes[0], {3, 4}, set(MANY) - {3, 4}, JOB)
    assert not is_known(lanes[0], {3}, set(MANY) - {3}, JOB)
    assert is_known(lanes[2], {3}, set(MANY) - {3}, JOB)


# --- near the thresholds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ns", "is_accused"), [(23.0, False), (27.0, True)])
def test_a_lane_with_a_quarter_of_the_excess_is_accused(ns: float, is_accused: bool) -> None:
    path = {Lane("pair", 0, 5): ns, Lane("work", 3): 100.0 - ns}
    assert bool(accused_lanes(Attribution(0, path, {}, {}, {}), JOB)) is is_accused


@pytest.mark.parametrize(
    ("now_ns", "noise_ns", "is_slow"), [(122.0, 0.0, False), (128.0, 0.0, True), (155.0, 20.0, False),
                                        (165.0, 20.0, True)]
)  # fmt: skip
def test_a_lane_is_slow_by_a_quarter_and_three_deviations(now_ns: float, noise_ns: float, is_slow: bool) -> None:
    lane = Lane("pair", 5, 0)
    quick, slow = lanes_beside(lane_sums(summaries(recv(0, 5, now_ns))), {lane: (100.0, noise_ns)}, {0}, JOB)
    assert (slow == [lane]) is is_slow
    assert (lane in quick) is not is_slow


def test_which_slow_lanes_are_read_first() -> None:
    # Sixteen slow lanes are read to know them
    now = lane_sums(summaries(*(recv(0, rank, 100.0 + rank) for rank in range(1, 31))))
    usual = {Lane("pair", rank, 0): (10.0, 0.0) for rank in range(1, 31)}
    assert lanes_beside(now, usual, {0}, JOB)[1] == [Lane("pair", rank, 0) for rank in range(30, 14, -1)]
    # Lanes that stand out of their noise are read before those that lost more: behind a slow lane others wait, for
    # longer than its own transfers take, but as unevenly as always.
    waiting, own = Lane("pair", 1, 0), Lane("pair", 2, 0)
    now = lane_sums(summaries(recv(0, 1, 500.0), recv(0, 2, 40.0)))
    usual = {waiting: (100.0, 50.0), own: (10.0, 0.1)}
    assert lanes_beside(now, usual, {0}, JOB)[1] == [own, waiting]


def test_beside_a_slow_pair_its_ends_collectives_are_asked_beside_a_slow_collective_its_members_pairs() -> None:
    inside, far, apart = (0, 1), (0, 5), (20, 30)
    known = summaries(
        *(wide(rank, 20.0) for rank in MANY), *(recv(two, one, 9.0) for one, two in (inside, far, apart))
    )
    sums = lane_sums(known)
    roles = [[lane] for lane in sums.mean_ns]

    def found(lane: Lane) -> list[Lane]:
        return list(others_beside([lane], sums, roles, JOB))

    assert found(Lane("pair", *far)) == [Lane("collective", 0)]
    assert found(Lane("collective", 1)) == [Lane("pair", *far)]
    assert found(Lane("collective", 2)) == [Lane("pair", *far)]
    assert others_beside([], sums, roles, JOB) == {}


# --- against plain words --------------------------------------------------------------------------------------------

PLACED = Topology(
    24,
    {rank: Place(f"h{rank // 4}" if rank != 5 else None, 0, None, f"s{rank // 8}" if rank < 16 else None)
     for rank in range(22)},
    {0: tuple(range(20)), 1: tuple(range(4, 24))},
    stage_of={rank: rank // 6 for rank in range(20)},
)  # fmt: skip
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 23), st.just(2), st.just(RECV), st.integers(-1, 23), st.integers(1, 3),
                  st.sampled_from([3.0, 5.0, 8.5])),
        st.tuples(st.integers(0, 23), st.integers(0, 1), st.just(ALL_REDUCE), st.just(-1), st.integers(1, 3),
                  st.sampled_from([3.0, 5.0, 8.5])),
    ),
    max_size=60,
)  # fmt: skip


def pairs_one_by_one(rows: list[Row]) -> dict[Lane, tuple[float, int]]:
    found: dict[Lane, tuple[float, int]] = {}
    for rank, _, operator, peer, count, ns in rows:
        if operator == RECV:
            before_ns, before = found.get(Lane("pair", peer, rank), (np.inf, 0))
            found[Lane("pair", peer, rank)] = min(before_ns, ns), before + count
    return found


@given(ENTRIES)
def test_pairs_are_summed_up_in_the_order_in_which_they_appear(rows: list[Row]) -> None:
    """Their order is that of the parts of sums, so it must not change."""
    sums = lane_sums(summaries(*rows))
    pairs = {lane: (sums.mean_ns[lane], sums.counts[lane]) for lane in sums.mean_ns if lane.kind == "pair"}
    assert list(pairs.items()) == list(pairs_one_by_one(rows).items())
    assert list(sums.counts) == list(sums.mean_ns)


@given(ENTRIES, st.sets(st.integers(0, 23), max_size=4))
def test_what_lies_beside_some_ranks_is_what_all_lanes_say_of_them(rows: list[Row], carried: set[int]) -> None:
    every, some = lane_sums(summaries(*rows)), lane_sums(beside(summaries(*rows), carried, PLACED))
    touching = [lane for lane in every.mean_ns if not carried.isdisjoint(PLACED.lane_ranks(lane))]
    assert list(some.mean_ns.items()) == [(lane, every.mean_ns[lane]) for lane in touching]
    assert some.counts == {lane: every.counts[lane] for lane in touching}


@given(ENTRIES)
def test_roles_are_those_of_single_lanes(rows: list[Row]) -> None:
    sums = lane_sums(summaries(*rows))
    roles: dict[tuple[object, ...], list[Lane]] = {}
    for lane in sums.mean_ns:
        roles.setdefault((*PLACED.lane_role(lane, of_any_stage=False), sums.counts[lane]), []).append(lane)
    assert lanes_by_role(sums, PLACED) == list(roles.values())


def test_a_recv_that_never_ended_says_nothing_of_its_pair() -> None:
    sums = lane_sums(summaries(recv(0, 5, np.nan), recv(0, 5, 7.0), recv(1, 5, np.nan)))
    assert sums.mean_ns[Lane("pair", 5, 0)] == 7.0
    assert np.isnan(sums.mean_ns[Lane("pair", 5, 1)])
