"""Who is accused of a hang: who did not arrive or stopped inside, and not who waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.find_hang import Hang, Operation, _Standing, find_hang, last_groups
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN
from tests.present import present

ALL_REDUCE = OPERATOR_CODES["all_reduce"]
WORLD, LEFT, RIGHT, PAIR = range(4)
TOPOLOGY = Topology(
    world_size=4,
    places={rank: Place() for rank in range(4)},
    members={WORLD: (0, 1, 2, 3), LEFT: (0, 1), RIGHT: (2, 3), PAIR: (1, 2)},
    names=("world", "left", "right", "pair"),
)

Row = tuple[int, int, int, float | None] | tuple[int, int, int, float | None, int, int]
"""Rank, communicator, sequence, elapsed (None: never ended); of p2p also operator and peer."""


def hang(*rows: Row, trusted: range = range(4)) -> Hang | None:
    """Look for a hang in rows that stand in the order in which each rank entered its operators."""
    return find_hang(columns_of(rows), TOPOLOGY, trusted)


def columns_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    full = [row if len(row) == 6 else (*row, ALL_REDUCE, UNKNOWN) for row in rows]
    return {
        "rank": np.array([row[0] for row in full]),
        "communicator": np.array([row[1] for row in full]),
        "sequence": np.array([row[2] for row in full]),
        "elapsed_ns": np.array([np.nan if row[3] is None else row[3] for row in full]),
        "operator": np.array([row[4] for row in full]),
        "peer": np.array([row[5] for row in full]),
        "start_ns": np.arange(len(full)) + 1_000,
        "size_bytes": np.full(len(full), np.nan),
    }


def accused(*rows: Row, trusted: range = range(4)) -> tuple[int, ...]:
    found = hang(*rows, trusted=trusted)
    return () if found is None else found.ranks


def test_missing_ranks() -> None:
    # Nothing hangs where all ended
    assert hang(*((rank, WORLD, 0, 5.0) for rank in range(4))) is None
    # Who never arrived is accused
    found = present(hang(*((rank, WORLD, 7, None) for rank in (0, 1, 3)), (2, WORLD, 6, 1.0)))
    assert (found.ranks, found.waiting, found.has_arrived, found.since_ns) == ((2,), 3, False, 1_000)
    # Who lost rows and is missing is not accused where another was seen to stop: rank 1 stands inside an operator
    # that rank 0 has left; the row in which rank 2 waits for the world is lost.
    rows: list[Row] = [(0, LEFT, 3, 1.0), (1, LEFT, 3, None), (0, WORLD, 7, None), (3, WORLD, 7, None),
                       (2, WORLD, 6, 1.0)]  # fmt: skip
    told = present(find_hang(columns_of(rows), TOPOLOGY, range(4), lossy={2}))
    assert (told.ranks, told.has_arrived) == ((1,), True)
    assert accused(*rows) == (2,)  # who lost nothing is missing for sure
    # Who lost rows and is missing is accused where nobody was seen to stop
    rows: list[Row] = [*((rank, WORLD, 7, None) for rank in (0, 1, 3)), (2, WORLD, 6, 1.0)]
    told = present(find_hang(columns_of(rows), TOPOLOGY, range(4), lossy={2}))
    assert told.ranks == (2,)
    # Who waits elsewhere for the missing one is a victim: rank 2 is missing from the world's operator, because it
    # waits for rank 3.
    rows: list[Row] = [(0, WORLD, 7, None), (1, WORLD, 7, None), (2, RIGHT, 3, None), (3, RIGHT, 2, 1.0)]
    assert accused(*rows) == (3,)
    # Who is missing only where another is known to stand before it may have lost its row, if rows are lost at all:
    # rank 2 waits for rank 3, and rank 0 for rank 2 at least; of rank 1 no row says where it stands.
    rows: list[Row] = [(0, WORLD, 7, None), (1, WORLD, 6, 1.0), (2, RIGHT, 3, None), (3, RIGHT, 2, 1.0)]
    assert accused(*rows) == (1, 3)
    enqueued: list[Row] = [*rows[:3], (2, WORLD, 7, None), rows[3]]
    for some in (rows, enqueued):
        told = present(find_hang(columns_of(some), TOPOLOGY, range(4), lossy={0}))
        assert told.ranks == (3,)
    # Operators enqueued behind the one that hangs accuse nobody else: on a GPU: all have enqueued further, but for
    # rank 3, whose process stopped.
    rows: list[Row] = [
        (0, LEFT, 1, None), (0, WORLD, 7, None), (1, WORLD, 7, None), (1, LEFT, 1, None),
        (2, RIGHT, 3, None), (2, WORLD, 7, None), (3, RIGHT, 2, 1.0),
    ]  # fmt: skip
    assert accused(*rows) == (3,)


def test_stopped_ranks_and_circles() -> None:
    # Who stopped inside what others have left is accused: rank 1 never comes out of what rank 0 has left; the others
    # wait, in operators that rank 1 enqueued too.
    rows: list[Row] = [
        (0, LEFT, 4, 2.0), (0, WORLD, 7, None), (1, LEFT, 4, None), (1, WORLD, 7, None),
        (2, WORLD, 7, None), (3, WORLD, 7, None),
    ]  # fmt: skip
    found = present(hang(*rows))
    assert (found.ranks, found.communicator, found.has_arrived, found.is_shared) == ((1,), LEFT, True, False)
    # A later collective shows that a rank has left an earlier one: dumps hold the tail of a log: rank 0's share of
    # the operator that rank 1 stopped in is not there any more.
    rows: list[Row] = [(0, LEFT, 9, None), (1, LEFT, 4, None), (2, WORLD, 7, None), (3, WORLD, 7, None)]
    assert accused(*rows) == (1,)
    # Where all are inside and nobody left all are named as one
    found = present(hang(*((rank, WORLD, 7, None) for rank in range(4))))
    assert (found.ranks, found.waiting, found.is_shared) == ((0, 1, 2, 3), 0, True)
    # Ranks that wait for each other in a circle show an order of calls that can't end, and accuse nobody: ranks 1 and
    # 2 both send first, and the others wait for them.
    rows: list[Row] = [
        (1, PAIR, 0, None, SEND, 2), (2, PAIR, 0, None, SEND, 1), (0, WORLD, 7, None), (3, WORLD, 7, None),
    ]  # fmt: skip
    found = present(hang(*rows))
    assert (found.ranks, [(one.rank, one.operator, one.peer) for one in found.circle]) == (
        (), [(1, SEND, 2), (2, SEND, 1)],
    )  # fmt: skip


class CountedMembers(dict[int, tuple[int, ...]]):
    """Communicators, and how often one was looked up."""

    lookups = 0

    def get(self, *args: Any) -> Any:
        self.lookups += 1
        return super().get(*args)


def test_a_hang_of_many_ranks_in_one_operator_is_found_without_going_through_them_for_each() -> None:
    for ranks in (10, 1000):
        members = CountedMembers({WORLD: tuple(range(ranks))})
        topology = replace(TOPOLOGY, members=members)
        found = find_hang(columns_of([(rank, WORLD, 7, None) for rank in range(ranks)]), topology, range(ranks))
        assert found is not None
        assert (len(found.ranks), found.is_shared) == (ranks, True)
        assert members.lookups < 10


def test_of_many_open_rows_each_is_searched_once_for_the_missing_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def missing(standing: _Standing, one: Operation) -> frozenset[int]:
        searched.append(one)
        return find_missing(standing, one)

    find_missing = _Standing.missing
    monkeypatch.setattr(_Standing, "missing", missing)
    ranks, operations = 100, range(7, 12)
    rows: list[Row] = [(rank, WORLD, number, None) for number in operations for rank in range(ranks // 2)]
    topology = replace(TOPOLOGY, members={WORLD: tuple(range(ranks))})
    found = present(find_hang(columns_of(rows), topology, range(ranks)))
    assert (found.ranks, found.waiting, found.sequence) == (tuple(range(50, 100)), 50, 7)
    assert sorted(searched) == [(WORLD, number, -1, -1) for number in operations]


IN_BOTH_RECVS: list[Row] = [
    (1, PAIR, 1, None, RECV, 2), (2, PAIR, 1, None, RECV, 1), (0, WORLD, 7, None), (3, WORLD, 7, None),
]  # fmt: skip
"""Ranks 1 and 2 wait for each other's second message."""


def test_a_batch_is_held_up_by_the_recv_in_it_and_not_by_the_send_that_was_received() -> None:
    rows = (
        (0, 0, 5, None, SEND, 1), (0, 0, 5, 10.0, RECV, 3),  # rank 0 stopped: its message has come to rank 1
        (1, 0, 5, 10.0, RECV, 0), (1, 0, 5, 10.0, SEND, 2),
        (1, 0, 6, None, SEND, 2), (1, 0, 6, None, RECV, 0),  # it never sends the next one, for which rank 1 waits
        (2, 0, 6, 10.0, RECV, 1), (2, 0, 6, 10.0, SEND, 3),
        (3, 0, 6, 10.0, RECV, 2),
    )  # fmt: skip
    columns = columns_of(rows)
    columns["start_ns"][[4, 5]] = 2_000
    found = present(find_hang(columns, TOPOLOGY, range(4)))
    assert found.ranks == (0,)


def test_two_ranks_that_receive_from_each_other() -> None:
    # Of two that receive from each other the one that owes an answer is accused: rank 2 got an activation, posted the
    # next recv, and sent no gradient back.
    sent: list[Row] = [(1, PAIR, 0, 1.0, SEND, 2), (2, PAIR, 0, 1.0, RECV, 1)]
    found = present(hang(*sent, *IN_BOTH_RECVS))
    assert (found.ranks, found.waiting, found.has_arrived, found.is_shared) == ((2,), 3, False, False)
    # Two that receive from each other and owe nothing are a circle
    there: list[Row] = [(1, PAIR, 0, 1.0, SEND, 2), (2, PAIR, 0, 1.0, RECV, 1)]
    back: list[Row] = [(2, PAIR, 0, 1.0, SEND, 1), (1, PAIR, 0, 1.0, RECV, 2)]
    found = present(hang(*there, *back, *IN_BOTH_RECVS))
    assert (found.ranks, [one.rank for one in found.circle]) == ((), [1, 2])
    # Of two that receive from each other none is told apart by a log with holes
    sent: list[Row] = [(1, PAIR, 0, 1.0, SEND, 2), (2, PAIR, 0, 1.0, RECV, 1)]
    assert accused(*sent, *IN_BOTH_RECVS[:2], trusted=range(1)) == ()
    # A missing receiver is accused
    rows: list[Row] = [
        (1, PAIR, 5, None, SEND, 2),
        (2, PAIR, 4, 1.0, RECV, 1),
        (0, WORLD, 7, None),
        (3, WORLD, 7, None),
    ]
    assert accused(*rows) == (2,)
    # Nobody is accused for who is not logged: rank 1 may wait for rank 0, of which nothing is known.
    rows: list[Row] = [(1, LEFT, 3, None), (2, RIGHT, 2, 1.0), (3, RIGHT, 2, 1.0)]
    assert accused(*rows, trusted=range(1, 4)) == ()


@settings(max_examples=60)
@given(st.permutations(range(4)), st.randoms(use_true_random=False), st.integers(0, 3))
def test_other_numbers_and_orders_of_ranks_change_nothing(numbers: list[int], random: Random, which: int) -> None:
    """Each rank's own order stays; how ranks interleave, and what they are called, does not matter."""
    incidents: list[list[Row]] = [
        [(0, WORLD, 7, None), (1, WORLD, 7, None), (2, RIGHT, 3, None), (3, RIGHT, 2, 1.0)],
        [(0, LEFT, 4, 2.0), (0, WORLD, 7, None), (1, LEFT, 4, None), (2, WORLD, 7, None), (3, WORLD, 7, None)],
        [(1, PAIR, 0, None, SEND, 2), (2, PAIR, 0, None, SEND, 1), (0, WORLD, 7, None), (3, WORLD, 7, None)],
        [(rank, WORLD, 7, None) for rank in range(4)],
    ]
    rows = incidents[which]
    columns = columns_of(rows)
    renamed = {**columns, "rank": np.array(numbers)[columns["rank"]]}
    is_pair = columns["peer"] != UNKNOWN
    renamed["peer"] = np.where(is_pair, np.array(numbers)[np.where(is_pair, columns["peer"], 0)], UNKNOWN)
    members = {code: tuple(numbers[rank] for rank in ranks) for code, ranks in TOPOLOGY.members.items()}
    topology = Topology(4, TOPOLOGY.places, members, TOPOLOGY.names)
    ranks = sorted(range(4), key=lambda _: random.random())
    order = sorted(range(len(rows)), key=lambda at: ranks[rows[at][0]])  # stable: each rank's own order stays
    found = find_hang({name: column[order] for name, column in renamed.items()}, topology, range(4))
    expected = find_hang(columns, TOPOLOGY, range(4))
    assert found is not None
    assert expected is not None
    assert found.ranks == tuple(sorted(numbers[rank] for rank in expected.ranks))
    assert (found.has_arrived, found.is_shared) == (expected.has_arrived, expected.is_shared)
    assert {one.rank for one in found.circle} == {numbers[one.rank] for one in expected.circle}


def partly_logged(*rows: Row) -> Hang | None:
    """Ranks 0 and 2 are logged, 1 and 3 are not."""
    topology = replace(TOPOLOGY, unlogged=frozenset({1, 3}))
    return find_hang(columns_of(rows), topology, (0, 2))


def test_silent_members_and_ends_of_walks() -> None:
    # Where all chains lead to one operator its silent member is named: who stands there is a victim: a process that
    # has died leaves no dump.
    found = present(partly_logged((0, WORLD, 7, None), (2, RIGHT, 4, None)))
    assert (found.ranks, found.silent, found.waiting) == ((3,), 1, 2)
    assert (found.has_arrived, found.is_shared) == (False, False)
    # Of more silent members than a host has gpus none is named
    members = tuple(range(12))
    topology = Topology(12, {rank: Place() for rank in range(3)}, {WORLD: members}, ("world",))
    found = present(find_hang(columns_of([(rank, WORLD, 7, None) for rank in range(3)]), topology, range(3)))
    assert (found.ranks, found.silent, found.waiting) == ((), 9, 3)
    # Where chains lead to several operators with silent members it is said that all wait, and nobody is named
    found = present(partly_logged((0, LEFT, 7, None), (2, RIGHT, 4, None)))
    assert (found.ranks, found.silent, found.waiting) == ((), 0, 2)
    # While one that logs is at work the others may only wait for it
    rows = columns_of([(0, LEFT, 7, None), (2, RIGHT, 4, None)])
    logs_too = replace(
        TOPOLOGY, world_size=5, places={rank: Place() for rank in range(5)}, unlogged=frozenset({1, 3})
    )
    assert find_hang(rows, logs_too, (0, 2, 4)) is None
    # Walks end in long chains and in circles
    chain = {at: [at + 1] for at in range(5_000)}
    assert last_groups(chain) == [{5_000}]
    assert last_groups({**chain, 5_000: [4_990]}) == [set(range(4_990, 5_001))]
    assert last_groups({}) == []
    # Who waits for two ends is at neither
    assert last_groups({"victim": ["slow", "stuck"], "stuck": ["stuck"]}) == [{"slow"}, {"stuck"}]
    # A circle with a way out is no end
    assert last_groups({1: [2], 2: [1, 3]}) == [{3}]
