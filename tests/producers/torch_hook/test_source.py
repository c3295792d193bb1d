"""What comes out of a rank, and when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.publishing.batches import event_times_ns
from irregulars.producers.publishing.sources import Record
from irregulars.producers.torch_hook.hooks.ring import NO_PEER
from irregulars.producers.torch_hook.source import STUCK_S
from tests.producers.torch_hook.sources import Rank


def drain(rank: Rank) -> list[Record]:
    rank.source.end()
    records: list[Record] = []
    while not rank.source.is_exhausted:
        records += rank.source.poll(2)
    return records


def test_nothing_is_said_before_the_first_iteration_has_ended() -> None:
    rank = Rank(0)
    rank.operate(UNKNOWN)
    assert rank.source.poll(100) == []
    rank.train(1)
    announcement, *_ = rank.source.poll(100)
    assert isinstance(announcement, Announcement)
    assert (announcement.rank, announcement.world_size, announcement.sources) == (0, 2, ("commops", "iterations"))


def test_watermarks_rise_and_no_row_comes_below_one() -> None:
    rank, watermark_ns, rows = Rank(0), 0, 0
    rank.train(3)
    for record in [*rank.source.poll(100), *(rank.train(3) or ()), *drain(rank)]:
        if isinstance(record, Batch) and record.header.schema == "commops":
            event_ns = event_times_ns(record)
            assert (event_ns > watermark_ns).all()
            assert record.header.watermark_ns is not None
            watermark_ns, rows = record.header.watermark_ns, rows + len(record)
    assert rows == 6


def test_a_group_made_later_is_announced_too() -> None:
    rank = Rank(0)
    rank.train(1)
    rank.source.poll(100)
    rank.groups.add("1", [0], 2, "mesh_dp", 2)
    announced = [one for one in drain(rank) if isinstance(one, Announcement)]
    assert [[one.id for one in announcement.communicators] for announcement in announced] == [["world", "ranks-0"]]


def test_what_a_full_ring_dropped_is_told_at_once_and_once() -> None:
    rank = Rank(0, capacity=4)
    rank.train(7)
    (told,) = [one for one in rank.source.poll(100) if isinstance(one, Heartbeat)]
    assert (told.rank, told.state, told.sources["commops"].lost_rows) == (0, "running", 3)
    assert not [one for one in rank.source.poll(100) if isinstance(one, Heartbeat)]
    rank.source.start_over()
    announcement, told_anew = *rank.source.poll(100), *rank.source.poll(100)
    assert isinstance(announcement, Announcement)
    assert isinstance(told_anew, Heartbeat)


def test_an_operator_that_never_ended_comes_last_without_a_length() -> None:
    rank = Rank(0)
    rank.train(1)
    rank.operate(UNKNOWN, is_ended=False)
    columns = [one for one in drain(rank) if isinstance(one, Batch) and one.header.schema == "commops"][-1].columns
    assert np.isnan(columns["elapsed_ns"][-1])
    assert columns["start_ns"][-1] != UNKNOWN


def test_an_operator_that_is_open_for_long_is_told_once_and_again_when_it_has_ended() -> None:
    """If the job hangs, nobody will come to tell it later."""
    rank = Rank(0)
    rank.train(1)
    issued_ns = time.monotonic_ns() - round(1.1e9 * STUCK_S)
    ordinal = rank.hook.ring.add(issued_ns, 4, 1, 100, NO_PEER, 0, 0)
    rank.operate(1, is_ended=False)  # open too, and not for long
    told = [one for _ in range(3) for one in rank.source.poll(1000) if isinstance(one, Batch)]
    (open_row,) = rows_of_sequence(told, 100)
    assert np.isnan(open_row["elapsed_ns"])
    assert rows_of_sequence(told, 2) == []
    rank.hook.ring.finish(ordinal, time.monotonic_ns() - 50_000_000)
    (ended,) = rows_of_sequence([one for one in rank.source.poll(1000) if isinstance(one, Batch)], 100)
    assert ended["elapsed_ns"] == pytest.approx(1.1e9 * STUCK_S, rel=0.1)
    assert {name: ended[name] for name in ("start_ns", "iteration", "peer")} == {
        name: open_row[name] for name in ("start_ns", "iteration", "peer")
    }


def test_an_operator_that_is_still_open_is_told_to_whoever_is_fed_anew() -> None:
    """Whoever was fed before may be gone with what it was told; a rank that hangs says nothing else any more."""
    rank = Rank(0)
    rank.train(1)
    rank.hook.ring.add(time.monotonic_ns() - round(1.1e9 * STUCK_S), 4, 1, 100, NO_PEER, 0, 0)
    rank.source.poll(1000)
    rank.source.start_over()
    told = [one for _ in range(3) for one in rank.source.poll(1000) if isinstance(one, Batch)]
    assert len(rows_of_sequence(told, 100)) == 1


def rows_of_sequence(batches: Sequence[Batch], sequence: int) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        for at in np.flatnonzero(batch.columns.get("sequence", np.empty(0)) == sequence).tolist():
            rows.append({name: column[at].item() for name, column in batch.columns.items()})
    return rows


def test_a_rank_without_a_process_group_ends_without_a_word() -> None:
    rank = Rank(0)
    rank.source._world_of = lambda: None
    assert drain(rank) == []
