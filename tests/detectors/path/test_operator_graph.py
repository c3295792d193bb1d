"""Who waited for whom, in cases that fit on a napkin, and what holds in all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.path.graph_edges import find_previous
from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph, collective_rows
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND
from tests.detectors.operator_graphs import (
    QUICK,
    RING,
    SLOW,
    WORK,
    any_rows,
    at,
    columns_of,
    exact_graph,
    graph_of,
    logged_graph,
    ring_rows,
    row,
)


def waits(graph: OperatorGraph, rank: int, start: int) -> tuple[int, int, int]:
    """Rank that a row waited for (its own: nobody), how long it waited, and how long its transfer took."""
    here = at(graph, rank, start)
    return int(graph.rank[graph.blocker[here]]), int(graph.wait_ns[here]), int(graph.transfer_ns[here])


# --- collectives ----------------------------------------------------------------------------------------------------


def test_who_a_collective_waited_for() -> None:
    # The late member of a collective is who all waited for
    graph = graph_of(row(0, 10, 60), row(1, 50, 60), row(2, 20, 61))
    assert waits(graph, 0, 10) == (1, 40, 10)
    assert waits(graph, 1, 50) == (1, 0, 10)
    assert waits(graph, 2, 20) == (1, 30, 11)
    # Collectives of other sequence or communicator are other collectives
    graph = graph_of(row(0, 0, 10), row(1, 5, 10, group=1), row(1, 7, 10, sequence=1))
    assert graph.wait_ns.tolist() == [0, 0, 0]
    assert len(set(graph.group.tolist())) == 3
    # A root that ended before a leaf came did not wait for it
    graph = graph_of(row(0, 0, 5, "broadcast"), row(1, 3, 6, "broadcast"), row(2, 90, 95, "broadcast"))
    assert waits(graph, 0, 0) == (1, 3, 2)
    assert waits(graph, 2, 90) == (2, 0, 5)
    # Members that come together wait for nobody
    graph = graph_of(row(0, 10, 20), row(1, 10, 20))
    assert graph.wait_ns.tolist() == [0, 0]
    assert graph.blocker.tolist() == [0, 1]
    # A member that came as the other left is still waited for
    graph = graph_of(row(0, 0, 10), row(1, 10, 10))
    assert waits(graph, 0, 0) == (1, 10, 0)
    # A lone share reads as transfer from its own start
    graph = graph_of(row(4, 3, 90))
    assert waits(graph, 4, 3) == (4, 0, 87)


# --- p2p ------------------------------------------------------------------------------------------------------------


def test_who_sends_and_recvs_waited_for() -> None:
    # A recv waits for its late sender
    graph = graph_of(row(0, 40, 45, "send", peer=1), row(1, 10, 50, "recv", peer=0))
    assert waits(graph, 1, 10) == (0, 30, 10)
    assert waits(graph, 0, 40) == (0, 0, 5)
    # A send waits for its late receiver
    graph = graph_of(row(0, 10, 50, "send", peer=1), row(1, 40, 51, "recv", peer=0))
    assert waits(graph, 0, 10) == (1, 30, 10)
    assert waits(graph, 1, 40) == (1, 0, 11)
    # A buffered send did not wait for its receiver
    graph = graph_of(row(0, 10, 12, "send", peer=1), row(1, 40, 45, "recv", peer=0))
    assert waits(graph, 0, 10) == (0, 0, 2)
    assert waits(graph, 1, 40) == (1, 0, 5)
    # Both directions with one sequence are two transfers
    graph = graph_of(
        row(0, 0, 10, "send", peer=1), row(1, 1, 10, "recv", peer=0),
        row(1, 20, 30, "send", peer=0), row(0, 25, 30, "recv", peer=1),
    )  # fmt: skip
    assert graph.group[at(graph, 0, 0)] == graph.group[at(graph, 1, 1)]
    assert graph.group[at(graph, 0, 25)] == graph.group[at(graph, 1, 20)]
    assert graph.group[at(graph, 0, 0)] != graph.group[at(graph, 1, 20)]
    # P2p and a collective with one sequence are apart
    graph = graph_of(row(0, 0, 10), row(1, 5, 10), row(0, 20, 30, "send", peer=1), row(1, 25, 30, "recv", peer=0))
    assert len(set(graph.group.tolist())) == 2


def test_a_batch_of_send_and_recv_is_ready_when_the_last_of_its_partners_is() -> None:
    """Rank 1 sends forward to 2 and takes the gradient back from 2 in one batch; so does 0 with 1 apart from it."""
    graph = graph_of(
        row(1, 10, 70, "send", peer=2), row(1, 10, 70, "recv", peer=0),
        row(2, 20, 30, "recv", peer=1), row(0, 60, 65, "send", peer=1),
    )  # fmt: skip
    assert graph.ready_ns[at(graph, 1, 10, "send")] == 60
    assert graph.ready_ns[at(graph, 1, 10, "recv")] == 60
    assert {int(graph.rank[graph.blocker[at(graph, 1, 10, op)]]) for op in ("send", "recv")} == {0}


@pytest.mark.parametrize("slow", range(RING))
def test_a_message_took_no_longer_than_what_was_left_at_either_of_its_ends(slow: int) -> None:
    """Both batches of a slow link last long; the other messages in them have an end in a batch that does not."""
    graph = graph_of(*ring_rows({slow}))
    assert graph.transfer_ns.tolist().count(SLOW) == 4
    np.testing.assert_array_equal(graph.own_transfer_ns, np.where(graph.source == slow, SLOW, QUICK))


def test_parts_of_a_batch() -> None:
    # Two slow messages of one batch are both slow
    graph = graph_of(*ring_rows({1, 2}))
    np.testing.assert_array_equal(graph.own_transfer_ns, np.where(np.isin(graph.source, [1, 2]), SLOW, QUICK))
    # The end of a buffered send does not say how long its message took: rank 0 has left its two messages to the
    # network before rank 1 takes its one, for which that waits long.
    graph = graph_of(
        row(0, 0, 2, "send", peer=1), row(0, 0, 2, "send", peer=2), row(1, 40, 100, "recv", peer=0),
        row(2, 1, 3, "recv", peer=0),
    )  # fmt: skip
    assert graph.own_transfer_ns[at(graph, 1, 40)] == 60
    assert graph.own_transfer_ns[at(graph, 2, 1)] == 1
    # What is in no batch took what was left when all were there
    graph = graph_of(row(0, 40, 45, "send", peer=1), row(1, 10, 50, "recv", peer=0), row(2, 0, 9), row(3, 2, 8))
    assert not graph.is_batched.any()
    np.testing.assert_array_equal(graph.own_transfer_ns, graph.transfer_ns)
    # Work beside another communicator began when the operator before of its own had ended
    graph = graph_of(
        row(0, 10, 20), row(0, 25, 70, group=1), row(0, 90, 95, sequence=1), row(0, 97, 99, group=1, sequence=1),
        entry={(0, 0): 4},
    )  # fmt: skip
    assert [int(graph.since_same_communicator_ns[at(graph, 0, start)]) for start in (10, 25, 90, 97)] == [
        6,
        5,
        70,
        27,
    ]
    # Work before a batch began when the batch before had ended
    graph = graph_of(*ring_rows((), ()))
    np.testing.assert_array_equal(graph.since_same_communicator_ns, np.where(graph.sequence == 0, 0, WORK))


def test_rows_beside_batches() -> None:
    # An operator before that is still open says nothing of the work
    graph = graph_of(row(0, 0, 10, group=1), row(0, 12, 50), row(0, 30, 60, sequence=1))
    assert graph.since_same_communicator_ns[at(graph, 0, 30)] == graph.gap_ns[at(graph, 0, 30)] == 20
    # P2p of one start and other ends is no batch
    graph = graph_of(
        row(1, 10, 25, "send", peer=2), row(1, 10, 70, "recv", peer=0),
        row(2, 20, 25, "recv", peer=1), row(0, 60, 65, "send", peer=1),
    )  # fmt: skip
    assert graph.ready_ns[at(graph, 1, 10, "send")] == 20
    # The part of a batch that nobody delayed keeps itself as blocker
    graph = graph_of(row(1, 10, 20, "send", peer=2), row(1, 10, 20, "recv", peer=0))
    assert sorted(graph.blocker.tolist()) == [0, 1]


# --- one rank -------------------------------------------------------------------------------------------------------


def test_gaps() -> None:
    # The gap runs from the end of the operator before
    graph = graph_of(row(0, 10, 20), row(0, 26, 30, sequence=1))
    assert graph.gap_ns.tolist() == [0, 6]
    assert graph.previous.tolist() == [-1, 0]
    # The first gap runs from the entry of the iteration
    graph = graph_of(row(0, 10, 20), row(1, 12, 20), entry={(0, 0): 4})
    assert graph.gap_ns.tolist() == [6, 0]
    # An entry after the first start is no negative gap
    graph = graph_of(row(0, 10, 20), entry={(0, 0): 15})
    assert graph.gap_ns.tolist() == [0]
    # Before an overlapping operator is the one that had ended last
    graph = graph_of(row(0, 0, 10), row(0, 5, 40, sequence=1), row(0, 12, 20, sequence=2), row(0, 30, 50, sequence=3))
    assert graph.previous[at(graph, 0, 12)] == at(graph, 0, 0)
    assert graph.previous[at(graph, 0, 30)] == at(graph, 0, 12)
    assert graph.previous[at(graph, 0, 5)] == -1
    assert graph.gap_ns[at(graph, 0, 30)] == 10
    # Operators of no length do not precede themselves
    graph = graph_of(
        row(0, 5, 10), row(0, 10, 10, sequence=1), row(0, 10, 10, sequence=2), row(0, 10, 15, sequence=3)
    )
    assert graph.previous.tolist() == [-1, 0, 1, 2]
    assert graph.gap_ns.tolist() == [0, 0, 0, 0]
    # Iterations and ranks do not precede each other
    graph = graph_of(row(0, 0, 10), row(0, 20, 30, sequence=1, iteration=1), row(1, 40, 50))
    assert graph.previous.tolist() == [-1, -1, -1]
    assert len(set(graph.block.tolist())) == 3


@pytest.mark.parametrize(("elapsed_us", "early_us", "is_over"), [
    (5_000, 40, True), (5_000, 60, False), (34_000, 90, True), (34_000, 110, False),
])  # fmt: skip
def test_an_operator_in_its_last_hundredth_is_over(elapsed_us: int, early_us: int, is_over: bool) -> None:
    """But for a simulator, which has exact times; and for no longer than clocks may be off."""
    rows = [row(0, 0, elapsed_us * 1_000), row(0, (elapsed_us - early_us) * 1_000, elapsed_us * 2_000, sequence=1)]
    assert logged_graph(*rows).previous.tolist() == [-1, 0 if is_over else -1]
    assert graph_of(*rows).previous.tolist() == [-1, -1]
    # Another one had just ended as it began: it waited for that one
    other = row(0, 0, (elapsed_us - early_us) * 1_000, group=1)
    assert logged_graph(other, *rows).previous.tolist() == [-1, -1, 0]


def test_rows_without_times_and_ordinals() -> None:
    # Operators of unknown start or end take no part
    graph = graph_of(row(0, None, None), row(0, 5, None), row(1, 6, 9))
    assert graph.rank.tolist() == [1]
    # No operators are an empty graph
    graph = graph_of()
    assert len(graph) == len(graph.gap_ns) == len(graph.previous) == len(graph.ordinal) == 0
    # Ordinals count each class of an iteration from zero
    graph = graph_of(
        row(0, 0, 1, sequence=7), row(0, 2, 3, sequence=8), row(0, 4, 5, "send", peer=1, sequence=90),
        row(0, 6, 7, sequence=9, iteration=1),
    )  # fmt: skip
    assert graph.ordinal.tolist() == [0, 1, 0, 0]
    # A lost operator does not move the ordinals of those after it
    graph = graph_of(row(0, 0, 1, sequence=7), row(0, 4, 5, sequence=9))
    assert graph.ordinal.tolist() == [0, 2]


# --- what always holds ----------------------------------------------------------------------------------------------


@given(rows=any_rows())
def test_every_row_splits_into_wait_and_transfer(rows: list[dict[str, Any]]) -> None:
    graph = exact_graph(rows, {})
    assert len(graph) == len(rows)
    assert (graph.wait_ns >= 0).all()
    assert (graph.transfer_ns >= 0).all()
    assert (graph.gap_ns >= 0).all()
    np.testing.assert_array_equal(graph.wait_ns + graph.transfer_ns, graph.end_ns - graph.start_ns)


@given(rows=any_rows())
def test_blockers_are_partners_and_the_operator_before_had_ended(rows: list[dict[str, Any]]) -> None:
    graph = exact_graph(rows, {})
    np.testing.assert_array_equal(graph.start_ns[graph.blocker][~graph.is_p2p], graph.ready_ns[~graph.is_p2p])
    assert (graph.group[graph.blocker] == graph.group)[~graph.is_p2p].all()
    for here, before in enumerate(graph.previous.tolist()):
        if before >= 0:
            assert graph.block[before] == graph.block[here]
            assert graph.end_ns[before] <= graph.start_ns[here]
            assert before != here


@given(rows=any_rows())
def test_the_operator_before_is_found_as_by_hand(rows: list[dict[str, Any]]) -> None:
    graph = exact_graph(rows, {})
    for here in range(len(graph)):
        ended = (graph.block == graph.block[here]) & (graph.end_ns <= graph.start_ns[here])
        ended[here] = False
        is_longer = graph.end_ns[here] > graph.start_ns[here]
        if is_longer:  # of operators of no length at one time, any order is right
            latest = graph.end_ns[ended].max() if ended.any() else None
            before = int(graph.previous[here])
            assert (None if before < 0 else int(graph.end_ns[before])) == latest


@given(rows=any_rows(), communicators=st.sampled_from([[], [0], [1], [0, 1]]), step=st.sampled_from([0, 7, 50_000]))
def test_the_collectives_of_some_communicators_are_as_in_the_graph_of_all_operators(
    rows: list[dict[str, Any]], communicators: list[int], step: int
) -> None:
    """Also where times are logged, in whole steps of ns: what else a rank ran says how exactly."""
    steps = {"start_ns": step or 1, "elapsed_ns": step or 1}
    columns = {name: column * steps.get(name, 1) for name, column in columns_of(rows).items()}
    graph = build_graph(columns, {}, is_exact=not step)
    found = collective_rows(columns, communicators, is_exact=not step)
    own = np.isin(graph.communicator, communicators) & ~graph.is_p2p
    for name, column in found._asdict().items():
        np.testing.assert_array_equal(column, getattr(graph, name)[own], err_msg=name)


def test_a_message_says_how_exactly_the_collectives_beside_it_were_logged() -> None:
    """One recv is not in whole milliseconds, so that the broadcast ended in time for its late leaf to be apart."""
    rows = [row(rank, at * 10**6, (at + 1) * 10**6, sequence=at) for rank in (0, 1) for at in range(40)]
    rows += [
        row(0, 10**9, 10**9 + 10**6, "broadcast", sequence=90),
        row(1, 1_001_500_000, 10**9 + 2 * 10**6, "broadcast", sequence=90),
    ]
    for messages in ([], [row(0, 1, 2, "recv", peer=1), row(0, 5, 7, "recv", peer=1, sequence=1)]):
        graph, found = build_graph(columns_of(rows + messages), {}), collective_rows(columns_of(rows + messages), [0])
        np.testing.assert_array_equal(found.transfer_ns, graph.transfer_ns[~graph.is_p2p])
        assert found.transfer_ns[found.operator == OPERATOR_CODES["broadcast"]][0] == (10**6 if messages else 0)


@given(rows=any_rows(), data=st.data())
def test_the_order_of_rows_changes_nothing(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    one, two = exact_graph(rows, {}), exact_graph([rows[at] for at in order], {})

    def described(graph: OperatorGraph) -> list[tuple[int, ...]]:
        names = ("rank", "iteration", "communicator", "operator", "sequence", "peer", "start_ns", "end_ns",
                 "ready_ns", "gap_ns", "ordinal")  # fmt: skip
        return sorted(zip(*(getattr(graph, name).tolist() for name in names), strict=True))

    assert described(one) == described(two)


# --- what no clock should have said ---------------------------------------------------------------------------------


def test_times_that_can_not_be() -> None:
    # An operator that ends before it begins takes no part
    graph = graph_of(row(0, 10, 4), row(0, 20, 30, sequence=1), row(1, 25, 30, sequence=1))
    assert graph.rank.tolist() == [0, 1]
    # A time that overflows takes no part
    graph = graph_of(row(0, 2**63 - 10, 2**63 + 2000), row(0, 20, 30, sequence=1))
    assert graph.start_ns.tolist() == [20]


@pytest.mark.parametrize("stray", [0, -(2**62), 2**62])
def test_one_time_from_another_age_spoils_no_other_rank(stray: int) -> None:
    """A clock that was never set: 1970 beside today, on a job of many ranks and iterations."""
    now = 1_800_000_000_000_000_000
    good = [
        one
        for rank in range(12)
        for iteration in range(3)
        for one in (
            row(rank, now + 100 * iteration, now + 100 * iteration + 20, sequence=2 * iteration, iteration=iteration),
            row(
                rank,
                now + 100 * iteration + 50,
                now + 100 * iteration + 60,
                sequence=2 * iteration + 1,
                iteration=iteration,
            ),
        )
    ]
    expected = exact_graph(good, {})
    graph = exact_graph([row(12, stray, stray + 5, group=9), *good], {})
    is_good = graph.communicator == 0
    np.testing.assert_array_equal(graph.gap_ns[is_good], expected.gap_ns)
    np.testing.assert_array_equal(graph.previous[is_good], expected.previous)


def test_source_and_destination_of_p2p() -> None:
    graph = graph_of(row(0, 0, 1, "send", peer=3), row(3, 0, 1, "recv", peer=0))
    assert graph.source.tolist() == [0, 0]
    assert graph.destination.tolist() == [3, 3]
    assert graph.operator.tolist() == [SEND, RECV]


# --- work -----------------------------------------------------------------------------------------------------------


def work_to_last_message(*rows: dict[str, Any]) -> dict[int, float]:
    return graph_of(*rows, entry={(rank, 0): 0 for rank in range(2)}).own_work_ns(0, to_last_message=True)


def test_the_end_of_a_rank_s_work() -> None:
    # After the last send a rank may wait and no operator shows it
    rows = row(1, 30, 40, "send", peer=0), row(1, 900, 950, group=3), row(0, 20, 950, group=3)
    assert work_to_last_message(*rows) == {0: 20, 1: 30}
    assert graph_of(*rows, entry={(1, 0): 0, (0, 0): 0}).own_work_ns(0) == {0: 20, 1: 30 + 860}
    # A last send beside a collective is a last message too: a stage that hands its gradients on and reduces them at
    # the same time: 70 ns are its work.
    send = row(1, 90, 150, "send", peer=0)
    rows = (
        row(1, 0, 20, "recv", peer=0),
        send,
        row(1, 90, 200, group=3),
        row(1, 95, 110, group=4),
        row(1, 900, 950, group=3),
    )
    assert work_to_last_message(*rows) == {1: 70}
    # Work on what the last message brought ends where another communicator is used: work on a micro-batch has an
    # operator of experts (4) in its midst; gradients (3) come after it.
    one = [row(0, 10, 20, group=4), row(0, 30, 40, "send", peer=1)]
    two = [row(0, 50, 60, group=4), row(0, 70, 90, "recv", peer=1)]
    end = [row(0, 100, 110, group=4), row(0, 120, 130, group=3), row(0, 900, 910, group=4)]
    of_one = 10 + 10 + 10 + 10
    assert work_to_last_message(*one, *two, *end) == {0: of_one + 10 + 10}
    assert work_to_last_message(*one, row(0, 70, 90, "recv", peer=1), *end) == {0: 10 + 10 + 30 + 10 + 10}
    # A last recv leads to work
    rows = row(1, 10, 40, "recv", peer=0), row(1, 90, 120, group=3), row(1, 500, 510, group=3, sequence=1)
    assert work_to_last_message(*rows) == {1: 10 + 50}


US, MS = 1_000, 1_000_000


@pytest.mark.parametrize(("late_us", "waited_us"), [(90, 1090), (110, 0)])
def test_a_partner_seen_after_the_end_was_waited_for_if_clocks_differ_so_much(late_us: int, waited_us: int) -> None:
    graph = logged_graph(row(0, 0, MS), row(1, MS + late_us * US, 3 * MS + 7))
    assert graph.wait_ns[at(graph, 0, 0)] == waited_us * US


def test_a_send_that_was_over_did_not_wait_for_its_receiver_whatever_clocks_say() -> None:
    graph = logged_graph(row(0, 0, MS, "send", peer=1), row(1, MS + 90 * US, 3 * MS + 7, "recv", peer=0))
    assert graph.wait_ns[at(graph, 0, 0)] == 0


def previous(*rows: tuple[int, int, int]) -> list[int]:
    """Previous row of each row of one rank, of their starts, ends and slacks, in order of their ends."""
    start_ns, end_ns, slack_ns = (np.array(column) for column in zip(*rows, strict=True))
    is_first = np.arange(len(rows)) == 0
    return find_previous(np.zeros(len(rows), dtype=np.int64), start_ns, end_ns - slack_ns, is_first).tolist()


def test_of_rows_that_may_have_followed_each_other_no_two_are_each_others_previous_one() -> None:
    assert previous((0, 10, 2), (9, 20, 2), (18, 30, 2)) == [-1, 0, 1]
    assert previous((10, 11, 5), (10, 12, 5), (10, 13, 5)) == [-1, 0, 1]
    # Of rows that all seem over the last one that surely was is the previous one: the row that begins at 20 ends so
    # soon that it seems over itself; the one before it is still open then.
    assert previous((0, 10, 1), (5, 22, 1), (20, 23, 9)) == [-1, -1, 0]
