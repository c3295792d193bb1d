"""Rows reach the sink, wait with it while it is busy, or go to the dead letters; never a fourth thing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import ServiceRefused, ServiceUnavailable, SinkBusy, SinkError, SinkRejected
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.protocol import Rows
from irregulars.streams.health.counters import Counters
from irregulars.streams.stages import sink_writer
from irregulars.streams.stages.sink_writer import RowQueue, SinkWriter
from tests.sinks import made_up_job
from tests.sinks.memory_sink import MemorySink
from tests.waiting import DEADLINE_S, until


@dataclass
class Letters:
    """An outbox that keeps what is sent."""

    sent: list[tuple[bytes | None, dict[str, str]]] = field(default_factory=list)

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, *, headers: Sequence[tuple[str, bytes]]
    ) -> None:
        assert topic.endswith("deadletter")
        self.sent.append((value, {name: text.decode() for name, text in headers}))


class ScriptedSink(MemorySink):
    """Raises what it is told to, one after the other, and works after that."""

    def __init__(self, *script: Exception) -> None:
        super().__init__()
        self.script = list(script)
        self.calls = 0

    def _play(self) -> None:
        self.calls += 1
        if self.script:
            raise self.script.pop(0)

    def write(self, rows: Rows) -> None:
        self._play()
        super().write(rows)

    def flush(self) -> None:
        self._play()


class AwaySink(MemorySink):
    """Can't be opened as often as it is told to; who writes to it before that is in error."""

    def __init__(self, *away: Exception) -> None:
        super().__init__()
        self.away = list(away)
        self.is_open = False

    def open(self) -> None:
        if self.away:
            raise self.away.pop(0)
        super().open()
        self.is_open = True

    def write(self, rows: Rows) -> None:
        assert self.is_open
        super().write(rows)


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def run_with(letters: Letters) -> Iterator[Callable[..., None]]:
    """Run some calls of a writer on a sink, within a deadline."""
    writers: list[SinkWriter] = []

    def run(sink: MemorySink | None, work: Callable[[SinkWriter], Coroutine[Any, Any, None]]) -> None:
        writers.append(SinkWriter(sink, DeadLetters(letters, TopicSettings())))
        asyncio.run(asyncio.wait_for(work(writers[-1]), DEADLINE_S))

    yield run
    for writer in writers:
        writer.close()


RunWith = Callable[..., None]


def test_all_rows_reach_the_sink(run_with: RunWith, letters: Letters) -> None:
    async def work(writer: SinkWriter) -> None:
        await writer.write(made_up_job.judgements())
        await writer.write_samples([made_up_job.bandwidth(0), made_up_job.bandwidth(1)])
        await writer.flush()

    sink = MemorySink()
    run_with(sink, work)
    counts = {
        name: sink.read(name).num_rows for name in ("jobs", "iterations", "rank_iterations", "audits", "verdicts")
    }
    assert counts == {"jobs": 4, "iterations": 40, "rank_iterations": 160, "audits": 8, "verdicts": 1}
    assert (sink.read("bandwidth").num_rows, letters.sent) == (240, [])


def test_rows_are_taken_while_the_sink_is_busy_until_the_queue_is_full(letters: Letters) -> None:
    async def work() -> None:
        flushing = asyncio.ensure_future(writer.flush())
        await writer.write(made_up_job.judgements())  # fills what may wait
        assert writer.is_busy or sink.calls == 0
        waiting = asyncio.ensure_future(writer.write(made_up_job.judgements()))
        await until(lambda: counters.store_is_full)
        assert (waiting.done(), counters.store_is_full, writer.has_room_for_samples) == (False, True, False)
        await writer.write_samples([made_up_job.bandwidth()])  # whoever gives them all the same need not wait
        sink.script.clear()
        await asyncio.gather(flushing, waiting)
        await writer.flush()

    sink, counters = ScriptedSink(*(SinkBusy("away", 0.02) for _ in range(10_000))), Counters()
    writer = SinkWriter(sink, DeadLetters(letters, TopicSettings()), counters, limit_bytes=4096)
    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))
    writer.close()
    assert (counters.store_is_full, counters.unstored_bytes, counters.unstored_since_s) == (False, 0, None)
    assert (sink.read("verdicts").num_rows, sink.read("bandwidth").num_rows, letters.sent) == (1, 120, [])


async def test_a_sink_away_at_the_start_is_opened_later(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_writer, "_OPEN_AGAIN_S", 0.01)
    sink = AwaySink(ServiceUnavailable("nobody is there"), ServiceRefused("not with this password"))
    counters = Counters()
    writer = SinkWriter(sink, DeadLetters(letters, TopicSettings()), counters)
    assert counters.sink_is_missing
    await writer.write(made_up_job.judgements())
    await asyncio.wait_for(writer.flush(), DEADLINE_S)
    writer.close()
    assert not counters.sink_is_missing
    assert sink.read("verdicts").num_rows
    assert letters.sent == []


async def test_a_sink_is_opened_though_there_is_nothing_to_write(letters: Letters) -> None:
    sink, counters = AwaySink(), Counters()
    writer = SinkWriter(sink, DeadLetters(letters, TopicSettings()), counters)
    await asyncio.wait_for(writer.flush(), DEADLINE_S)
    writer.close()
    assert sink.is_open
    assert not counters.sink_is_missing


def test_a_flush_ends_however_much_comes_meanwhile(run_with: RunWith) -> None:
    async def work(writer: SinkWriter) -> None:
        async def write_on() -> None:
            while True:
                await writer.write_samples([made_up_job.bandwidth()])

        writing = asyncio.ensure_future(write_on())
        for _ in range(3):
            await writer.flush()
        writing.cancel()

    run_with(MemorySink(), work)


def test_a_busy_sink_is_asked_by_one_and_as_it_says(run_with: RunWith, caplog: pytest.LogCaptureFixture) -> None:
    async def work(writer: SinkWriter) -> None:
        await asyncio.gather(*(writer.flush() for _ in range(50)))
        assert writer._counters.registry.get_sample_value("irregulars_worker_sink_retries_total") == 2

    sink = ScriptedSink(SinkBusy("away", 0.05), SinkBusy("away", 0.1))
    began_s = time.monotonic()
    run_with(sink, work)
    assert sink.calls == 3
    assert time.monotonic() - began_s >= 0.15
    assert caplog.text.count("event=sink_busy retry_after_s=0.05") == 1
    assert caplog.text.count("event=sink_busy") == 1


def test_who_waits_for_a_busy_sink_is_not_told_that_rows_are_stored_once_it_is_closed(
    run_with: RunWith,
) -> None:
    async def work(writer: SinkWriter) -> None:
        waiting = asyncio.ensure_future(writer.flush())
        await until(lambda: writer.is_busy)  # it has asked once, and waits to ask again
        writer.close()
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done, waiting
        waiting.cancel()

    sink = ScriptedSink(SinkBusy("too many parts", 0.05))
    run_with(sink, work)
    assert sink.calls == 1


def test_rows_that_are_rejected_go_to_the_dead_letters_as_arrow(run_with: RunWith, letters: Letters) -> None:
    rows = pa.table({"rank": [1, 2, 3]})
    sink = ScriptedSink(SinkRejected("constraint c", [("iterations", rows), ("jobs", rows.slice(1))]))
    run_with(sink, lambda writer: writer.flush())
    found = [(pa.ipc.open_stream(value).read_all(), headers) for value, headers in letters.sent]
    assert [table for table, _ in found] == [rows, rows.slice(1)]
    assert [headers["topic"] for _, headers in found] == ["table iterations", "table jobs"]
    assert [headers["rows"] for _, headers in found] == ["3", "2"]
    assert {headers["reason"] for _, headers in found} == {"constraint c"}


def test_rows_that_fit_no_column_take_no_others_with_them(run_with: RunWith, letters: Letters) -> None:
    columns = {**made_up_job.rank_iterations(), "rank": np.full(160, -1)}
    sink = MemorySink()

    async def work(writer: SinkWriter) -> None:
        await writer.write(replace(made_up_job.judgements(), rank_iterations=columns))
        await writer.flush()

    run_with(sink, work)
    assert (sink.read("rank_iterations").num_rows, sink.read("verdicts").num_rows) == (0, 1)
    ((value, headers),) = letters.sent
    assert value is None
    assert "rank_iterations.rank must be uint32" in headers["reason"]


def test_an_error_that_is_a_bug_is_not_swallowed(run_with: RunWith) -> None:
    with pytest.raises(SinkError, match="must be open"):
        run_with(ScriptedSink(SinkError("sink must be open")), lambda writer: writer.flush())


def test_without_a_sink_nothing_happens(run_with: RunWith) -> None:
    async def work(writer: SinkWriter) -> None:
        await writer.write(made_up_job.judgements())
        await writer.write_samples([made_up_job.bandwidth()])
        await writer.flush()

    run_with(None, work)


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
