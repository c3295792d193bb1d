"""Rows come out of the queue as they went in, packed or not, and are counted until somebody else has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.streams.stages.row_queue import RowQueue


def rows(first: int, count: int) -> pa.Table:
    values = np.arange(first, first + count)
    return pa.table({"rank": values, "job": pa.array(["job"] * count).dictionary_encode()})


def drain(queue: RowQueue) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for block in queue.take_all():
        found.setdefault(block.name, []).extend(block.rows().column("rank").to_pylist())
        queue.settled(block)
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["bandwidth", "verdicts"]), st.integers(1, 60_000)), max_size=12))
def test_all_rows_come_out_once_and_in_order(added: list[tuple[str, int]]) -> None:
    queue, wanted, at = RowQueue(), dict[str, list[int]](), 0
    for name, count in added:
        queue.add({name: rows(at, count)})
        wanted.setdefault(name, []).extend(range(at, at + count))
        at += count
    assert drain(queue) == wanted
    assert queue.size_bytes == 0


def test_what_waits_long_takes_less_memory_and_many_small_tables_count_more_than_their_values() -> None:
    queue = RowQueue()
    queue.add({"bandwidth": rows(0, 200_000)})
    assert 0 < queue.size_bytes < rows(0, 200_000).nbytes / 2
    small = RowQueue()
    for one in range(100):
        small.add({"iterations": rows(one, 1)})
    assert small.size_bytes > 100 * rows(0, 1).nbytes * 10


def test_verdicts_come_first_and_a_block_counts_until_it_is_settled() -> None:
    queue = RowQueue()
    queue.add({"operators": rows(0, 5), "verdicts": rows(5, 1)})
    first, second = queue.take_all()
    before = queue.size_bytes
    queue.settled(first)
    assert (first.name, second.name) == ("verdicts", "operators")
    assert (before - queue.size_bytes, queue.size_bytes) == (first.size_bytes, second.size_bytes)
