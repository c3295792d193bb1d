"""What comes out of a rank, and when."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.announcements import Announcement, Heartbeat, encode_announcement
from irregulars.messages.evidence import Evidence
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN, Batch
from irregulars.producers.publishing.batches import event_times_ns
from irregulars.producers.publishing.sources import Record
from irregulars.producers.torch_hook import source
from irregulars.producers.torch_hook.hooks.groups import Groups
from irregulars.producers.torch_hook.hooks.ring import NO_PEER, ROW, UNSEEN
from irregulars.producers.torch_hook.identity import Start
from irregulars.producers.torch_hook.iterations import TRAIN
from irregulars.producers.torch_hook.source import STUCK_S, RowReader, measure_offset
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from tests.producers.torch_hook.sources import Rank


def drain(rank: Rank) -> list[Record]:
    rank.source.end()
    records: list[Record] = []
    while not rank.source.is_exhausted:
        records += rank.source.poll(2)
    return records


def announcements(records: Sequence[Record]) -> list[Announcement]:
    return [one for one in records if isinstance(one, Announcement)]


def batches(records: Sequence[Record]) -> list[Batch]:
    return [one for one in records if isinstance(one, Batch)]


def test_nothing_is_said_before_the_first_iteration_has_ended() -> None:
    rank = Rank(0)
    rank.operate(UNKNOWN)
    assert rank.source.poll(100) == []
    rank.train(1)
    announcement, *_ = rank.source.poll(100)
    assert isinstance(announcement, Announcement)
    assert (announcement.rank, announcement.world_size, announcement.sources) == (0, 2, ("commops", "iterations"))


@pytest.mark.parametrize("first", ["as sent", "commops", "iterations"])
def test_a_slow_start_loses_no_iteration_in_any_order(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ANNOUNCE_S", 0.0)
    rank = Rank(0)
    rank.operate(UNKNOWN)
    records = [*rank.source.poll(100), *rank.source.poll(100)]
    (announced,) = announcements(records)
    rank.train(4)
    rank.source.end()
    sent = [one for one in [*records, *rank.source.poll(100)] if isinstance(one, Batch)]
    monitor, rows = RankMonitor("job", 0, JudgeSettings()), []
    monitor.announce(announced)
    for offset, batch in enumerate(sorted(sent, key=lambda one: one.header.schema != first)):
        monitor.add(batch, offset)
        rows += monitor.drain()
    monitor.beat(Heartbeat("job", 0, 0, state="ended"))
    evidence = [one.columns for one in [*rows, *monitor.drain()] if isinstance(one, Evidence)]
    assert np.concatenate([one["iteration"] for one in evidence]).tolist() == [0, 1, 2, 3]
    assert (np.concatenate([one["phase"] for one in evidence]) == TRAIN).all()
    assert sum(int(one["late_rows"].sum()) for one in evidence) == 0


def test_a_rank_whose_groups_take_long_to_make_is_announced_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitors keep to the first announcement; thousands of ranks make their groups for minutes."""
    now_s = 100.0
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: now_s, monotonic_ns=time.monotonic_ns))
    rank = Rank(0)
    for name in ("1", "2"):
        assert rank.source.poll(100) == []
        now_s += 0.9 * source.ANNOUNCE_S
        rank.groups.add(name, range(2), 2, f"group {name}", 2)
    assert rank.source.poll(100) == []
    now_s += 1.1 * source.ANNOUNCE_S
    (announced,) = announcements(rank.source.poll(100))
    assert len(announced.communicators) == 3


@pytest.mark.parametrize("is_marked", [False, True])
def test_where_iterations_are_inferred_rows_of_them_are_announced_only_if_the_script_marks(is_marked: bool) -> None:
    rank = Rank(0, is_unmarked=True)
    (rank.train if is_marked else rank.train_unmarked)(2)
    (announced,) = announcements(drain(rank))
    assert announced.sources == (("commops", "iterations") if is_marked else ("commops",))
    assert announced.names_iterations is is_marked


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


def test_a_group_made_later_is_announced_too_and_a_rank_without_one_ends_without_a_word() -> None:
    rank = Rank(0)
    rank.train(1)
    rank.source.poll(100)
    rank.groups.add("1", [0], 2, "mesh_dp", 2)
    (announced,) = announcements(drain(rank))
    assert [one.id for one in announced.communicators] == ["world", "ranks-0"]
    rank = Rank(0)
    rank.source._world_of = lambda: None
    assert drain(rank) == []


def test_a_program_that_makes_a_group_in_each_step_is_not_announced_for_each_nor_ever_with_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message above the limit closed the connection, and no row of the rank came through any more."""
    rank, found = Rank(0), list[Record]()
    rank.train(1)
    monkeypatch.setattr(source, "MAX_ANNOUNCEMENT_BYTES", 5_000)
    for number in range(100):
        rank.groups.add(str(number), [0], 2, "one more", 2)
        rank.operate(1)
        found += rank.source.poll(100)
    time.sleep(0.03)
    found += rank.source.poll(1_000)
    announced = announcements(found)
    assert len(announced) < 30
    assert 4_000 < len(encode_announcement(announced[-1])) <= 5_000
    assert sum(len(one) for one in batches(found) if one.header.schema == "commops") == 101
    rank.source.start_over()
    assert rank.source.poll(100)[0] == announced[-1]


def test_what_a_full_ring_dropped_is_told_at_once_and_once() -> None:
    rank = Rank(0, capacity=4)
    rank.train(7)
    (told,) = [one for one in rank.source.poll(100) if isinstance(one, Heartbeat)]
    assert (told.rank, told.state, told.sources["commops"].lost_rows) == (0, "running", 3)
    assert not [one for one in rank.source.poll(100) if isinstance(one, Heartbeat)]
    rank.source.start_over()
    again = [*rank.source.poll(100), *rank.source.poll(100)]  # and rows, once they have settled
    assert [type(one) for one in again if isinstance(one, (Announcement, Heartbeat))] == [Announcement, Heartbeat]


def test_an_operator_that_never_ended_comes_last_without_a_length() -> None:
    rank = Rank(0)
    rank.train(1)
    rank.operate(UNKNOWN, is_ended=False)
    columns = [one for one in batches(drain(rank)) if one.header.schema == "commops"][-1].columns
    assert np.isnan(columns["elapsed_ns"][-1])
    assert columns["start_ns"][-1] != UNKNOWN


def test_an_operator_that_is_open_for_long_is_told_once_to_each_that_is_fed_and_again_when_it_has_ended() -> None:
    """If the job hangs, nobody will come to tell it later; and whoever was fed before may be gone."""
    rank = Rank(0)
    rank.train(1)
    issued_ns = time.monotonic_ns() - round(1.1e9 * STUCK_S)
    ordinal = rank.hook.ring.add(issued_ns, 4, 1, 100, NO_PEER, 0, 0)
    rank.operate(1, is_ended=False)  # open too, and not for long
    told = [one for _ in range(3) for one in batches(rank.source.poll(1000))]
    (open_row,) = rows_of_sequence(told, 100)
    assert np.isnan(open_row["elapsed_ns"])
    assert rows_of_sequence(told, 2) == []
    rank.source.start_over()
    assert len(rows_of_sequence([one for _ in range(3) for one in batches(rank.source.poll(1000))], 100)) == 1
    rank.hook.ring.finish(ordinal, time.monotonic_ns() - 50_000_000)
    (ended,) = rows_of_sequence(batches(rank.source.poll(1000)), 100)
    assert ended["elapsed_ns"] == pytest.approx(1.1e9 * STUCK_S, rel=0.1)
    for name in ("start_ns", "iteration", "peer"):
        assert ended[name] == open_row[name]


def rows_of_sequence(batches: Sequence[Batch], sequence: int) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        for at in np.flatnonzero(batch.columns.get("sequence", np.empty(0)) == sequence).tolist():
            rows.append({name: column[at].item() for name, column in batch.columns.items()})
    return rows


@pytest.mark.parametrize("is_again", [False, True])
def test_all_that_a_rank_sends_bears_the_start_that_it_asked_for_once_and_since_when_it_is_this_process_s(
    is_again: bool,
) -> None:
    began_ns, starts = time.time_ns(), iter([Start("a", is_again), Start("b")])
    rank = Rank(0, start=lambda rank: next(starts))
    rank.train(2)
    records = drain(rank)
    assert {type(one) for one in records} == {Announcement, Batch}
    headers = [one.header if isinstance(one, Batch) else one for one in records]
    ((start, since_ns),) = {(one.start, one.since_ns) for one in headers}
    assert (start, since_ns is not None) == ("a", is_again)
    assert began_ns <= (since_ns or began_ns) <= time.time_ns()


@pytest.mark.parametrize("starts", [("a", "a"), (None, None), ("a", "b")])
def test_a_process_that_goes_on_elsewhere_announces_it_with_rows_that_count_from_0(
    starts: tuple[str | None, str | None],
) -> None:
    asked = []

    def ask(number: int) -> Start:
        asked.append(number)
        return Start(starts[len(asked) - 1], is_again=starts == ("a", "a") and len(asked) > 1)

    rank = Rank(1, start=ask)
    rank.train(3)
    time.sleep(0.03)  # a row is given when it has ended for 20 ms
    before = rank.source.poll(1000)
    rank.groups.start_over()
    rank.place = None
    assert not announcements(rank.source.poll(1000))
    rank.groups.add("0", (0,), 1, "default_pg", 2)
    assert not announcements(rank.source.poll(1000)), "torch does not know the new rank yet"
    rank.place = (0, 1)
    rank.train(2)
    rank.source.end()
    announcement, *rest = rank.source.poll(1000)
    assert isinstance(announcement, Announcement)
    assert asked == [1, 0]
    assert (announcement.rank, announcement.world_size, announcement.start) == (0, 1, starts[1])
    assert [one.id for one in announcement.communicators] == ["world"]
    assert (announcement.since_ns == rank.groups.since_ns) is (starts != ("a", "b"))
    own = [one.header for one in batches(rest)]
    assert {(one.rank, one.start, one.since_ns, one.rows_before) for one in own} == {
        (0, starts[1], announcement.since_ns, 0)
    }
    assert {one.schema for one in own} == {"commops", "iterations"}
    assert sum(map(len, batches(before))) == 6


OFFSET_NS = 1_700_000_000_000_000_000


class Clock:
    """A clock that is read through two functions; the process is held up before some of the readings."""

    def __init__(self, *held_up_ns: int) -> None:
        self._now_ns = 0
        self._held_up: Iterator[int] = iter(held_up_ns)

    def monotonic_ns(self) -> int:
        self._now_ns += 50 + next(self._held_up, 0)
        return self._now_ns

    def wall_ns(self) -> int:
        return self.monotonic_ns() + OFFSET_NS


@pytest.mark.parametrize("held_up_ns", [(), (0, 14_000_000), (0, 0, 14_000_000, 0, 3_000_000)])
def test_a_process_held_up_between_two_readings_measures_again(held_up_ns: tuple[int, ...]) -> None:
    clock = Clock(*held_up_ns)
    assert measure_offset(clock.wall_ns, clock.monotonic_ns).offset_ns == OFFSET_NS
    assert held_up_ns or clock.monotonic_ns() == 4 * 50, "an undisturbed reading is taken at once"


def test_where_every_reading_is_disturbed_the_least_disturbed_counts_and_says_so() -> None:
    held_up = [0, 2_000_000, 0] * 7 + [0, 400_000, 0]
    found = measure_offset((clock := Clock(*held_up)).wall_ns, clock.monotonic_ns)
    assert found.width_ns == 400_100
    assert abs(found.offset_ns - OFFSET_NS) <= found.width_ns / 2


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


@given(operators, st.integers(1, 4), st.data())
def test_starts_are_those_of_the_queue_in_whichever_parts_rows_are_taken(
    pairs: list[tuple[int, int]], lanes: int, data: st.DataObject
) -> None:
    groups = Groups()
    groups.add("0", [0, 1], 2, "", lanes)
    issued = np.cumsum([between for between, _ in pairs]).tolist()
    starts, ends = played(issued, [length for _, length in pairs], lanes)
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


def test_columns_are_in_the_order_of_ends_with_global_peers_and_unseen_ends_are_left_out(groups: Groups) -> None:
    rows = rows_of([10, 20], [90, 40], op="send", peer=1)
    rows["group"] = 1
    columns = RowReader().columns(rows, rows[:0], groups.all, SHIFT_NS)
    assert columns["start_ns"].tolist() == [20 + SHIFT_NS, 10 + SHIFT_NS]
    assert columns["elapsed_ns"].tolist() == [20.0, 80.0]
    assert columns["peer"].tolist() == [3, 3]
    rows = rows_of([10, 20], [UNSEEN, 40])
    assert len(RowReader().columns(rows, rows[:0], groups.all, 0)["operator"]) == 1
    rows = rows_of([10, 20], [90, 140])
    rows["started"] = [50, 60]
    columns = RowReader().columns(rows, rows[:0], groups.all, 0)
    assert columns["start_ns"].tolist() == [50, 90]
