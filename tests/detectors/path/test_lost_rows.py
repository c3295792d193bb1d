"""What a log has lost is told by the partners of what is missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.path.graph_edges import NO_ORDINAL
from irregulars.detectors.path.microbatch_work import microbatch_work_ns
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


@pytest.mark.parametrize(("ranks", "lost", "is_partial"), [(20, 1, False), (19, 1, True)])
def test_the_last_may_be_among_those_of_whom_a_twentieth_lost_their_row(
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


STAGE_OF = {0: 0, 1: 1, 2: 2}


def passed_on(
    sequence: int, came: int, sent: tuple[int, int], *, posted: int = 0, up: bool = True, rank: int = 1
) -> list[dict[str, Any]]:
    """A message that a rank gets from the stage before and sends on to the next one; or downwards."""
    source, destination = (rank - 1, rank + 1) if up else (rank + 1, rank - 1)
    return [
        row(rank, posted, came, "recv", group=7, sequence=sequence, peer=source),
        row(rank, *sent, "send", group=7, sequence=sequence, peer=destination),
    ]


def work(*rows: dict[str, Any], stage_of: dict[int, int] | None = None) -> dict[int, float]:
    graph = graph_of(*rows, entry={(1, 0): 0})
    return microbatch_work_ns(graph, 0, stage_of or STAGE_OF)


def test_work_on_micro_batches() -> None:
    # Work begins when the message has come: 30 and 20: whoever waits for a recv that is open does not work.
    assert work(*passed_on(0, 10, (40, 45)), *passed_on(1, 100, (120, 125), posted=10)) == {1: 50}
    # Work begins when the rank is free: the second message came early: from the first one's send to 90 is work,
    # however long the next recv is open.
    first, second = passed_on(0, 10, (40, 45)), passed_on(1, 12, (90, 95), posted=10)
    assert work(*first, *second, *passed_on(2, 200, (230, 235), posted=12)) == {1: 30 + 45 + 30}
    # A rank works while a send is left open: the third recv is posted at 42, before the first send has ended: the
    # rank was free at 40.
    first, second = passed_on(0, 10, (40, 45)), passed_on(1, 12, (90, 95), posted=10)
    assert work(*first, *second, *passed_on(2, 200, (230, 235), posted=42)) == {1: 30 + 50 + 30}
    # A send that the rank waits for is not work: nothing began before the send had ended at 60: the rank was free
    # then.
    assert work(*passed_on(0, 10, (40, 60)), *passed_on(1, 50, (90, 95))) == {1: 30 + 30}
    # Collectives within a microbatch are not work
    collective = row(1, 15, 25, group=3)
    assert work(*passed_on(0, 10, (40, 45)), collective) == {1: 5 + 15}
    # What comes after the last send is no work on micro batches: stages that are through early wait for the others,
    # and no operator need show it.
    assert work(*passed_on(0, 10, (40, 45)), row(1, 900, 950, group=3)) == {1: 30}


def test_messages_of_micro_batches_pair_up() -> None:
    # Backward messages pair up by themselves
    down = passed_on(0, 60, (80, 85), up=False)
    assert work(*passed_on(0, 10, (40, 45)), *down) == {1: 30 + 20}
    # A rank that lost a message is left out
    assert work(*passed_on(0, 10, (40, 45)), *passed_on(1, 50, (90, 95))[1:]) == {}
    # A rank whose messages skip a stage is left out
    assert work(*passed_on(0, 10, (40, 45)), stage_of={0: 0, 1: 1, 3: 2, 2: 3}) == {}


@pytest.mark.parametrize("rank", [0, 2])
def test_of_the_first_and_the_last_stage_nothing_is_said(rank: int) -> None:
    """The first makes messages of its own, the last makes none of some that it gets; unless that is asked for."""
    peer = 1
    rows = [row(rank, 0, 10, "recv", group=7, peer=peer), row(rank, 40, 45, "send", group=7, peer=peer)]
    assert work(*rows) == {}


def test_work_of_the_ends() -> None:
    """Two stages and three micro-batches: the last stage works for 60, the first one for 40 on each."""
    first = [
        *(row(0, at, at + 5, "send", group=7, sequence=n, peer=1) for n, at in enumerate((20, 40, 125))),
        *(row(0, posted, came, "recv", group=7, sequence=n, peer=1)
          for n, (posted, came) in enumerate(((0, 85), (85, 145), (145, 210)))),
        row(0, 240, 250, group=3),
    ]  # fmt: skip
    last = [
        *(row(1, at, at + 5, "send", group=7, sequence=n, peer=0) for n, at in enumerate((85, 145, 210))),
        *(row(1, posted, came, "recv", group=7, sequence=n, peer=0)
          for n, (posted, came) in enumerate(((0, 25), (25, 45), (85, 130)))),
    ]  # fmt: skip
    stages = {0: 0, 1: 1}
    assert microbatch_work_ns(graph_of(*first, *last), 0, stages, of_ends=True) == {0: 120, 1: 180}
    # A first stage that begins all micro-batches before one comes back shows no cycle.
    assert microbatch_work_ns(graph_of(*first[:2], *first[3:5], *last), 0, stages, of_ends=True) == {1: 180}


@pytest.mark.parametrize("micro_batches", [3, 6])
@pytest.mark.parametrize("rank", [0, 2])
def test_work_of_the_ends_of_a_ring(rank: int, micro_batches: int) -> None:
    """Three stages of two chunks: a message comes 10 before a forward pass ends, or 20 before a backward one."""
    rows, sequence = [], Counter[tuple[str, int]]()
    ahead = min(3 + 2 * (2 - rank), 2 * micro_batches)
    each = [(n - back, back) for n in range(ahead, 2 * micro_batches) for back in (0, ahead)]
    backward = [(n, 1) for n in range(2 * micro_batches - ahead, 2 * micro_batches)]
    has_ended = False
    for place, (number, back) in enumerate([*((n, 0) for n in range(ahead)), *each, *backward]):
        chunk = number % 6 // 3  # of a backward pass from the last one on
        step, begins, ends = (-1, rank == 2, rank == 0) if back else (1, rank == 0, rank == 2)
        sent = 100 * place + 60
        # Where a backward pass ended without a message, the next forward one's had come before it.
        came = sent - (20 if back else 150 if has_ended and rank == 0 else 10)
        has_ended = ends and chunk == 1
        messages = [
            *([] if begins and chunk == 0 else [("recv", -step, came - 5, came)]),
            *([] if has_ended else [("send", step, sent, sent + 5)]),
        ]
        for operator, to, begin, end in messages:
            peer = (rank + to) % 3
            n = sequence[operator, peer]
            sequence[operator, peer] += 1
            rows.append(row(rank, begin, end, operator, group=7, sequence=n, peer=peer))
    assert microbatch_work_ns(graph_of(*rows), 0, STAGE_OF, of_ends=True) == {rank: 2 * micro_batches * (10 + 20)}
    assert microbatch_work_ns(graph_of(*rows[1:]), 0, STAGE_OF, of_ends=True) == {}  # a message was lost


def test_a_send_that_waited_for_the_one_before_tells_no_work() -> None:
    """The second was ready at some time between 50, when its message came, and 100, when the first had gone."""
    first, second = passed_on(0, 10, (40, 100)), passed_on(1, 50, (100, 160), posted=45)
    assert work(*first, *second, *passed_on(2, 170, (200, 205), posted=110)) == {1: 3 * 30}


def test_a_graph_of_other_ranks_and_iterations_says_nothing() -> None:
    rows = passed_on(0, 10, (40, 45))
    assert microbatch_work_ns(graph_of(*rows), 1, STAGE_OF) == {}
    assert microbatch_work_ns(graph_of(*rows), 0, {}) == {}
