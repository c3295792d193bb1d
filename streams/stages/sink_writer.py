"""Hands results to a sink in a thread of its own; while the sink is busy they wait, packed, and judging goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from irregulars.errors import SendingGivenUp, ServiceError, SinkBusy, SinkRejected
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.messages.judgements import Judgements
from irregulars.messages.opinions import Opinion
from irregulars.messages.records import Batch
from irregulars.sinks.protocol import Sink
from irregulars.sinks.tables import SAMPLES, table_of_opinions, table_of_samples, tables_of
from irregulars.streams.health.counters import Counters

_PACK_BYTES: Final = 1 << 20
"""Size at which loose tables of one name are packed into one block, bytes; zstd makes them much smaller."""

_TABLE_BYTES: Final = 4096
"""Memory of a table beside its values, bytes: a job of 8 ranks gives hundreds of small ones a minute."""

_FIRST: Final = ("verdicts", "suspects", "iterations", "jobs")
"""Stored before the others when the database is back: few rows, and those that people look at."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one table: as Arrow tables, or packed as an Arrow stream."""

    name: str
    tables: tuple[pa.Table, ...]
    packed: bytes | None
    size_bytes: int

    def rows(self) -> pa.Table:
        """Return the rows as one table."""
        if self.packed is None:
            return pa.concat_tables(self.tables)
        return pa.ipc.open_stream(self.packed).read_all()


class RowQueue:
    """Rows by table, oldest first. A block that was taken counts until it is `settled`.

    >>> queue = RowQueue()
    >>> queue.add({"jobs": pa.table({"rank": [1]}), "verdicts": pa.table({"revision": [3, 4]})})
    >>> blocks = queue.take_all()
    >>> [(block.name, block.rows().num_rows) for block in blocks]
    [('verdicts', 2), ('jobs', 1)]
    >>> for block in blocks:
    ...     queue.settled(block)
    >>> queue.size_bytes
    0
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._loose: dict[str, list[pa.Table]] = {}
        self._loose_bytes: dict[str, int] = {}
        self._packed: dict[str, list[Block]] = {}
        self._lock: Final = threading.Lock()

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Take in rows; packing them may take some milliseconds."""
        with self._lock:
            for name, table in tables.items():
                size_bytes = table.nbytes + _TABLE_BYTES
                self._loose.setdefault(name, []).append(table)
                self._loose_bytes[name] = self._loose_bytes.get(name, 0) + size_bytes
                self.size_bytes += size_bytes
                if self._loose_bytes[name] >= _PACK_BYTES:
                    loose, loose_bytes = self._loose.pop(name), self._loose_bytes.pop(name)
                    packed = _encode(pa.concat_tables(loose).combine_chunks(), "zstd")
                    self._packed.setdefault(name, []).append(Block(name, (), packed, len(packed)))
                    self.size_bytes += len(packed) - loose_bytes

    def take_all(self) -> list[Block]:
        """Return all that waits, by table, the oldest rows of each first."""
        with self._lock:
            loose = {
                name: Block(name, tuple(tables), None, self._loose_bytes[name])
                for name, tables in self._loose.items()
            }
            packed, self._packed, self._loose, self._loose_bytes = self._packed, {}, {}, {}
        blocks = []
        for name in dict.fromkeys((*_FIRST, *packed, *loose)):
            blocks += packed.get(name, [])
            blocks += [loose[name]] if name in loose else []
        return blocks

    def settled(self, block: Block) -> None:
        """Count a block no more: its rows are stored, or kept elsewhere."""
        with self._lock:
            self.size_bytes -= block.size_bytes


LOG: Final = logging.getLogger("irregulars.worker")
UNSTORED_MIB: Final = 256
_SHARE_OF_SAMPLES: Final = 0.25
"""Of the limit: above it samples of devices, the bulk of all rows, are left to Kafka, and verdicts have the rest."""

_MAX_WAIT_S: Final = 8.0
_OPEN_AGAIN_S: Final = 2.0
_ROOM_S: Final = 0.05
_SAY_AGAIN_S: Final = 60.0


class SinkWriter:
    """Writes judgements and samples; without a sink it does nothing.

    `write` returns when rows are in a queue; `flush` when all rows that were given before are stored. Only rows that
    a flush has stored may be covered by a snapshot, so iterations with rows in the queue of a worker that dies are
    judged again.
    While the sink is busy the queue grows up to `limit_bytes`; then `write` waits, and with it the judge, and in the
    end reading: back-pressure up to Kafka, where there is room. Rows that the sink will never take go to the
    dead-letter topic, as Arrow streams.

    One task talks to the sink, for all that write and flush: a sink that is away is asked once at a time. It opens
    the sink, too, which may be away until then.
    """

    def __init__(
        self, sink: Sink | None, dead_letters: DeadLetters, counters: Counters | None = None,
        limit_bytes: int = UNSTORED_MIB << 20,
    ) -> None:  # fmt: skip
        self._sink: Final = sink
        self._dead_letters: Final = dead_letters
        self._counters: Final = counters or Counters()
        self._limit_bytes: Final = limit_bytes
        self._counters.unstored_limit_bytes = limit_bytes
        self._counters.sink_is_missing = sink is not None
        self._queue: Final = RowQueue()
        self._flushes: list[asyncio.Future[None]] = []
        self._talking: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._said_at_s = 0.0
        # A thread of its own: rows are converted and queued while the sink's thread hangs in a call.
        self._converter: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-rows")
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-sink")
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether the sink takes no rows at the moment."""
        return self._counters.sink_busy_since_s is not None

    @property
    def has_room_for_samples(self) -> bool:
        """Whether samples may be given; else the caller should read them again later."""
        return self._queue.size_bytes <= _SHARE_OF_SAMPLES * self._limit_bytes

    async def write(self, judgements: Judgements) -> None:
        """Give all rows of `judgements`; they are stored after the next `flush`. Waits where the queue is full."""
        if self._sink is not None:
            await self._wait_for_room()
            for part in parts_of(judgements):
                await self._add(partial(tables_of, part))

    async def write_samples(self, batches: Sequence[Batch]) -> None:
        """Give samples of devices; they are stored after the next `flush`. Never waits for the sink."""
        if self._sink is None:
            return
        for name in SAMPLES:
            own = [batch for batch in batches if batch.header.schema == name]
            if own:
                await self._add(partial(lambda name, own: {name: table_of_samples(own)}, name, own))

    async def write_opinions(self, opinions: Sequence[Opinion]) -> None:
        """Give opinions on verdicts; they are stored after the next `flush`. Never waits for the sink."""
        if self._sink is not None and opinions:
            await self._add(lambda: {"feedback": table_of_opinions(opinions)})

    async def flush(self) -> None:
        """Return when all rows given so far are stored."""
        if self._sink is None:
            return
        self._require()
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append(flushed)
        self._talk()
        await flushed  # for ever once the writer is closed: returning would say that the rows are stored

    def close(self) -> None:
        """End the threads; calls that wait for them wait until they are cancelled. The sink belongs to the caller."""
        self._is_closed = True
        for thread in (self._converter, self._thread):
            thread.shutdown(wait=False, cancel_futures=True)

    # --- the queue --------------------------------------------------------------------------------------------------

    async def _wait_for_room(self) -> None:
        if self._queue.size_bytes < self._limit_bytes:
            return
        if not self._counters.store_is_full:
            self._counters.store_is_full = True
            LOG.error(
                "event=store_full unstored_mib=%d do='judging and alerts wait until the database takes rows'",
                self._limit_bytes >> 20,
            )
        while self._queue.size_bytes >= self._limit_bytes:
            # A writer that has failed never makes room.
            self._require()
            await asyncio.sleep(_ROOM_S)
        if self._counters.store_is_full:
            self._counters.store_is_full = False
            LOG.info("event=store_has_room")

    async def _add(self, make: Callable[[], Mapping[str, pa.Table]]) -> None:
        """Convert rows in a thread, where they are packed as well, and see to it that they are written."""
        self._require()
        if self._is_closed:
            await asyncio.get_running_loop().create_future()  # as `flush`
        try:
            await asyncio.get_running_loop().run_in_executor(self._converter, lambda: self._queue.add(make()))
        except SinkRejected as rejection:
            await self._bury(rejection)
        self._counters.unstored_bytes = self._queue.size_bytes
        self._counters.unstored_since_s = self._counters.unstored_since_s or time.monotonic()
        self._talk()

    def _require(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the one task that talks to the sink ------------------------------------------------------------------------

    def _talk(self) -> None:
        if not self._is_closed and (self._talking is None or self._talking.done()):
            self._talking = asyncio.ensure_future(self._talk_until_stored())

    async def _talk_until_stored(self) -> None:
        assert self._sink is not None
        try:
            if self._counters.sink_is_missing:
                await self._call(partial(_open, self._sink))
                self._counters.sink_is_missing = False
            while not self._is_closed and (self._queue.size_bytes or self._flushes):
                await self._store_round(self._sink)
        except Exception as error:  # a bug: the next call that writes or flushes raises it
            self._failure = error
            self._settle_flushes(self._flushes)

    async def _store_round(self, sink: Sink) -> None:
        """Write the rows that are queued now, and flush for those who wait by now: rows that come later wait."""
        began_s = time.monotonic()
        flushes, self._flushes = self._flushes, []
        try:
            for block in self._queue.take_all():
                await self._call(partial(lambda block: sink.write({block.name: block.rows()}), block))
                self._queue.settled(block)
                self._counters.unstored_bytes = self._queue.size_bytes
            if not flushes:
                return
            await self._call(sink.flush)
        # Back on the list, so that `_talk_until_stored` hands the error to those who wait.
        except Exception:
            self._flushes += flushes
            raise
        # Rows that are left came after this round began.
        self._counters.unstored_since_s = began_s if self._queue.size_bytes else None
        self._settle_flushes(flushes)

    def _settle_flushes(self, flushes: Sequence[asyncio.Future[None]]) -> None:
        for flushed in flushes:
            if flushed.done():  # cancelled
                continue
            if self._failure is None:
                flushed.set_result(None)
            else:
                flushed.set_exception(self._failure)

    async def _call(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            try:
                await loop.run_in_executor(self._thread, work)
                self._answered()
                return
            except SinkBusy as busy:
                wait_s, now_s = min(busy.retry_after_s, _MAX_WAIT_S), time.monotonic()
                self._counters.sink_retries.inc()
                is_first = not self.is_busy
                self._counters.sink_busy_since_s = self._counters.sink_busy_since_s or now_s
                if is_first or now_s - self._said_at_s >= _SAY_AGAIN_S:
                    self._said_at_s = now_s
                    LOG.warning("event=sink_busy retry_after_s=%g unstored_mib=%.1f reason=%r",
                                wait_s, self._queue.size_bytes / (1 << 20), str(busy))  # fmt: skip
                await asyncio.sleep(wait_s)
            except SinkRejected as rejection:
                self._answered()
                with suppress(SendingGivenUp):  # their partitions were dropped, and are judged again
                    await self._bury(rejection)
                return
        await loop.create_future()  # returning would say that the rows are stored

    def _answered(self) -> None:
        since_s, self._counters.sink_busy_since_s = self._counters.sink_busy_since_s, None
        if since_s is not None:
            LOG.info("event=sink_back away_s=%.1f", time.monotonic() - since_s)

    async def _bury(self, rejection: SinkRejected) -> None:
        for name, table in rejection.rows:
            self._counters.rejected_rows[f"table {name}"].inc(table.num_rows)
            headers = {"reason": str(rejection), "topic": f"table {name}", "rows": str(table.num_rows)}
            await self._dead_letters.send(None, _encode(table), headers)
        if not rejection.rows:  # there are none yet: a value of ours fits no column
            LOG.error("event=sink_rejected reason=%r", str(rejection))
            await self._dead_letters.send(None, None, {"reason": str(rejection), "topic": "table"})


def parts_of(judgements: Judgements) -> Iterator[Judgements]:
    """Yield each kind of rows by itself: one that can't be converted must not hold up a verdict."""
    for name in (one.name for one in fields(Judgements) if one.name != "job"):
        rows = getattr(judgements, name)
        if any(map(len, rows.values())) if isinstance(rows, Mapping) else rows:
            yield replace(Judgements(judgements.job), **{name: rows})


def _open(sink: Sink) -> None:
    try:
        sink.open()
    except ServiceError as error:  # also a refusal: a user that was unknown at the start may be made later
        raise SinkBusy(str(error), _OPEN_AGAIN_S) from error


def _encode(table: Any, compression: str | None = None) -> bytes:
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
