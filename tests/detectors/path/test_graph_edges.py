"""The edges of the operator graph, as far as a log can tell them."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.path.graph_edges import find_batches, find_previous, join_batches
from irregulars.messages.records import RECV, SEND
from tests.detectors.operator_graphs import at, logged_graph, row

US, MS = 1_000, 1_000_000


@pytest.mark.parametrize(("late_us", "waited_us"), [(90, 1090), (110, 0)])
def test_a_partner_that_seems_to_come_after_the_end_was_waited_for_if_clocks_may_differ_so_much(
    late_us: int, waited_us: int
) -> None:
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


def test_rows_that_follow_each_other() -> None:
    # Rows that may have followed each other do and no two are each others previous one
    assert previous((0, 10, 2), (9, 20, 2), (18, 30, 2)) == [-1, 0, 1]
    assert previous((10, 11, 5), (10, 12, 5), (10, 13, 5)) == [-1, 0, 1]
    # Of rows that all seem over the last one that surely was is the previous one: the row that begins at 20 ends so
    # soon that it seems over itself; the one before it is still open then.
    assert previous((0, 10, 1), (5, 22, 1), (20, 23, 9)) == [-1, -1, 0]
    # A row of another block is never the previous one
    block, start_ns, end_ns = np.array([0, 1, 1]), np.array([0, 50, 70]), np.array([10, 60, 80])
    assert find_previous(block, start_ns, end_ns, np.array([True, True, False])).tolist() == [-1, -1, 1]
    # Messages of one start and end are a batch as far as the log can tell
    columns = {"operator": np.array([SEND, RECV, SEND, RECV]), "start_ns": np.array([0, 2, 2, 9])}
    block, slack_ns = np.zeros(4, dtype=np.int64), np.full(4, 3)
    assert find_batches(columns, block, np.array([20, 21, 30, 20]), slack_ns).tolist() == [0, 0, 2, 3]
    # A batch of which no part waited waits for nobody
    ready_ns, blocker = join_batches(np.array([0, 0, 2]), np.array([5, 5, 5]), np.array([0, 1, 2]))
    assert (ready_ns.tolist(), blocker.tolist()) == ([5, 5, 5], [0, 1, 2])
