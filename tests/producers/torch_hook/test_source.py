"""What comes out of a rank, and when."""

from __future__ import annotations

import numpy as np

from producers.batches import event_times_ns
from producers.sources import Record
from streams.announcements import Announcement, Heartbeat
from streams.records import UNKNOWN, Batch
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


def test_a_rank_without_a_process_group_ends_without_a_word() -> None:
    rank = Rank(0)
    rank.source._world_of = lambda: None
    assert drain(rank) == []
