"""When operators really began: against a queue that is played through."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.torch_hook.hooks.groups import Groups
from irregulars.producers.torch_hook.hooks.ring import NO_PEER, ROW, UNSEEN
from irregulars.producers.torch_hook.source import RowReader, execution_starts

SHIFT_NS = 1_000_000


def played(issued: list[int], work: list[int], lanes: int) -> tuple[list[int], list[int]]:
    """Starts and ends of operators that `lanes` threads take from one queue."""
    free, starts, ends = [0] * lanes, [], []
    for moment, length in zip(issued, work, strict=True):
        start = max(moment, heapq.heappop(free))
        starts.append(start)
        ends.append(start + length)
        heapq.heappush(free, start + length)
    return starts, ends


operators = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), min_size=1, max_size=40)


@given(operators, st.integers(1, 4))
def test_starts_are_those_of_the_queue(pairs: list[tuple[int, int]], lanes: int) -> None:
    issued = np.cumsum([between for between, _ in pairs])
    starts, ends = played(issued.tolist(), [length for _, length in pairs], lanes)
    assert execution_starts(issued, np.array(ends), lanes).tolist() == starts


def rows_of(issued: list[int], ended: list[int], *, op: str = "all_reduce", peer: int = NO_PEER) -> np.ndarray:
    rows = np.zeros(len(issued), dtype=ROW)
    rows["id"] = np.arange(1, len(issued) + 1)
    rows["issued"], rows["ended"] = issued, ended
    rows["op"], rows["peer"] = OPERATOR_CODES[op], peer
    rows["iteration"] = UNKNOWN
    return rows


@pytest.fixture
def groups() -> Groups:
    made = Groups()
    made.add("0", [0, 1, 2, 3], 4, "default_pg", lanes=2)
    made.add("1", [1, 3], 4, "mesh_pp", lanes=2)
    return made


@given(operators, st.data())
def test_taking_in_parts_changes_nothing(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    groups = Groups()
    groups.add("0", [0, 1], 2, "", lanes=2)
    issued = np.cumsum([between for between, _ in pairs]).tolist()
    starts, ends = played(issued, [length for _, length in pairs], 2)
    rows, reader, found = rows_of(issued, ends), RowReader(), {}
    now = 0
    while now <= max(ends):
        before, now = now, now + data.draw(st.integers(1, 200))
        taken = rows[(rows["ended"] >= before) & (rows["ended"] < now)]
        still_open = rows[(rows["issued"] < now) & (rows["ended"] >= now)].copy()
        still_open["ended"] = 0
        columns = reader.columns(taken, still_open, groups.all, SHIFT_NS)
        begins = zip(columns["start_ns"].tolist(), columns["elapsed_ns"].tolist(), strict=True)
        for start, elapsed in begins:
            found.setdefault(start + int(elapsed), []).append(start - SHIFT_NS)
    expected: dict[int, list[int]] = {}
    for start, end in zip(starts, ends, strict=True):
        expected.setdefault(end + SHIFT_NS, []).append(start)
    assert {end: sorted(some) for end, some in found.items()} == {end: sorted(s) for end, s in expected.items()}


def test_columns_are_in_the_order_of_ends_with_global_peers(groups: Groups) -> None:
    rows = rows_of([10, 20], [90, 40], op="send", peer=1)
    rows["group"] = 1
    columns = RowReader().columns(rows, rows[:0], groups.all, SHIFT_NS)
    assert columns["start_ns"].tolist() == [20 + SHIFT_NS, 10 + SHIFT_NS]
    assert columns["elapsed_ns"].tolist() == [20.0, 80.0]
    assert columns["peer"].tolist() == [3, 3]


def test_an_operator_whose_end_nobody_saw_is_left_out_not_called_hung(groups: Groups) -> None:
    rows = rows_of([10, 20], [UNSEEN, 40])
    assert len(RowReader().columns(rows, rows[:0], groups.all, 0)["operator"]) == 1


def test_on_a_device_the_start_is_its_event_s_and_the_queue_is_one(groups: Groups) -> None:
    rows = rows_of([10, 20], [90, 140])
    rows["started"] = [50, 60]
    columns = RowReader().columns(rows, rows[:0], groups.all, 0)
    assert columns["start_ns"].tolist() == [50, 90]


def test_what_has_not_ended_has_a_start_and_no_length(groups: Groups) -> None:
    columns = RowReader().open_columns(rows_of([10], [0]), groups.all, SHIFT_NS)
    assert (columns["start_ns"].tolist(), np.isnan(columns["elapsed_ns"]).tolist()) == ([10 + SHIFT_NS], [True])
