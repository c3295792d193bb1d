"""What a log has lost is told by the partners of what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.path.graph_edges import NO_ORDINAL
from irregulars.detectors.path.operator_graph import OperatorGraph
from tests.detectors.operator_graphs import at, graph_of, row

US, MS = 1_000, 1_000_000


def collectives(*lost: tuple[int, int], ranks: int = 2, count: int = 3) -> OperatorGraph:
    """Graph of some collectives that take 10 ms, 10 ms apart, without the shares (rank, sequence) that were lost."""
    rows = [
        row(rank, 20_000_000 * n, 20_000_000 * n + 10_000_000, sequence=7 + n)
        for rank in range(ranks)
        for n in range(count)
        if (rank, 7 + n) not in lost
    ]
    return graph_of(*rows)


def gaps_ms(graph: OperatorGraph, rank: int) -> list[float]:
    return (graph.gap_ns[graph.rank == rank] / 1e6).tolist()


def test_lost_operators() -> None:
    # The time of a lost operator is no work
    assert gaps_ms(collectives((1, 8)), 1) == [0, 10]  # not 30: its partner says when the lost one ended
    assert gaps_ms(collectives((1, 8)), 0) == [0, 10, 10]
    # The place of an operator does not move when the one before it is lost
    graph = collectives((1, 7))
    assert graph.ordinal[graph.rank == 1].tolist() == [1, 2]
    assert graph.ordinal[graph.rank == 0].tolist() == [0, 1, 2]
    # An operator that one rank alone counts to this iteration moves no place of others
    graph = graph_of(*(row(rank, 20 * n, 20 * n + 5, sequence=n) for rank in range(3) for n in range(3) if rank or n))
    early = graph_of(
        *(row(rank, 20 * n, 20 * n + 5, sequence=n) for rank in range(3) for n in range(3) if not rank or n)
    )
    assert graph.ordinal[graph.rank == 1].tolist() == [0, 1, 2]
    assert early.ordinal[early.rank == 0].tolist() == [NO_ORDINAL, 0, 1]
    assert early.ordinal[early.rank == 1].tolist() == [0, 1]
    # Who came last is not known where a share is lost
    graph = collectives((1, 8))
    assert graph.sequence[graph.is_partial].tolist() == [8]
    assert not collectives((1, 8), ranks=20).is_partial.any()  # one of twenty: most likely another one came last
    # A recv whose send was lost says when the sender was free
    messages = [
        row(rank, 20_000_000 * n, 20_000_000 * n + 10_000_000, operator, peer=1 - rank, sequence=n)
        for rank, operator in ((0, "send"), (1, "recv"))
        for n in range(3)
        if (rank, n) != (0, 1)
    ]
    assert gaps_ms(graph_of(*messages), 0) == [0, 10]


def test_of_ranks_that_logged_nothing_nothing_is_lost() -> None:
    graph = graph_of(
        row(0, 0, 10, "send", peer=5), row(0, 30, 40, "send", peer=5, sequence=1), row(1, 0, 10, group=1)
    )
    assert not graph.is_partial.any()
    assert graph.gap_ns[at(graph, 0, 30)] == 20


def test_the_holes_of_one_iteration_change_no_other() -> None:
    whole, holed = [], []
    for iteration in range(2):
        for rank in range(2):
            for n in range(3):
                start = 100_000_000 * iteration + 20_000_000 * n
                one = row(rank, start, start + 10_000_000, sequence=3 * iteration + n, iteration=iteration)
                whole.append(one)
                holed += [] if (iteration, rank, n) == (1, 0, 1) else [one]
    before, after = graph_of(*whole), graph_of(*holed)
    of_first = np.flatnonzero(after.iteration == 0)
    np.testing.assert_array_equal(after.gap_ns[of_first], before.gap_ns[before.iteration == 0])
    np.testing.assert_array_equal(after.ordinal[of_first], before.ordinal[before.iteration == 0])


@pytest.mark.parametrize(("ranks", "lost", "is_partial"), [(20, 2, False), (9, 1, True)])
def test_the_last_to_come_may_be_among_those_of_whom_more_than_a_tenth_lost_their_row(
    ranks: int, lost: int, is_partial: bool
) -> None:
    graph = collectives(*((rank, 8) for rank in range(1, 1 + lost)), ranks=ranks)
    assert bool(graph.is_partial.any()) is is_partial


def test_of_a_collective_with_two_rows_lost_each_is_found() -> None:
    graph = collectives((1, 8), (2, 8), ranks=4)
    assert [gaps_ms(graph, rank) for rank in range(4)] == [[0, 10, 10], [0, 10], [0, 10], [0, 10, 10]]


@pytest.mark.parametrize(("early_us", "gap_us"), [(90, 0), (110, 9_890)])
def test_a_row_that_began_a_little_before_the_lost_one_had_ended_was_behind_it(early_us: int, gap_us: float) -> None:
    """The lost one ended at 15 ms by the clock of its partner, which may differ by 100 µs."""
    rows = [row(rank, 0, 5 * MS, sequence=7) for rank in range(2)]
    rows.append(row(0, 6 * MS, 15 * MS, sequence=8))
    rows += [row(rank, 15 * MS - early_us * US * rank, 20 * MS, sequence=9) for rank in range(2)]
    graph = graph_of(*rows)
    assert graph.gap_ns[graph.rank == 1].tolist() == [0, gap_us * US]
