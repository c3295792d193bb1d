"""Hands results to a sink in a thread of its own; while the sink is busy they wait, and judging goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
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
from irregulars.streams.stages.row_queue import Block, RowQueue
from irregulars.streams.telemetry.counters import Counters

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

    `write` returns when rows are in a queue; `flush` when all rows that were given before are stored. Only what a
    flush has stored may be covered by a snapshot, so whatever is in the queue when a worker dies is judged again.
    While the sink is busy the queue grows up to `limit_bytes`; then `write` waits, and with it the judge, and in the
    end reading: back-pressure up to Kafka, where there is room. Rows that the sink will never take go to the
    dead-letter topic, as Arrow streams.

    One task talks to the sink, whoever writes and flushes: a sink that is away is asked once at a time. It opens the
    sink, too, which may be away until then.
    """

    def __init__(
        self,
        sink: Sink | None,
        dead_letters: DeadLetters,
        counters: Counters | None = None,
        limit_bytes: int = UNSTORED_MIB << 20,
    ) -> None:
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
        self._busy_since_s: float | None = None
        self._converter: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-rows")
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-sink")
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether the sink takes no rows at the moment."""
        return self._busy_since_s is not None

    @property
    def has_room_for_samples(self) -> bool:
        """Whether samples may be given; else whoever has them should read them again later."""
        return self._queue.size_bytes <= _SHARE_OF_SAMPLES * self._limit_bytes

    async def write(self, judgements: Judgements) -> None:
        """Give all rows of `judgements`; they are stored after the next `flush`. Waits where the queue is full."""
        if self._sink is not None:
            await self._wait_for_room()
            for part in _parts(judgements):
                await self._add(partial(tables_of, part))

    async def write_samples(self, batches: Sequence[Batch]) -> None:
        """Give samples of devices; they are stored after the next `flush`. Never waits for the sink."""
        if self._sink is None:
            return
        for name in SAMPLES:
            own = [batch for batch in batches if batch.header.schema == name]
            if own:
                await self._add(partial(_samples, name, own))

    async def write_opinions(self, opinions: Sequence[Opinion]) -> None:
        """Give what people say of verdicts; it is stored after the next `flush`. Never waits for the sink."""
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
        except Exception as error:  # a bug: whoever writes or flushes next must learn of it
            self._failure = error
            self._settle_flushes(self._flushes)

    async def _store_round(self, sink: Sink) -> None:
        """Write what is there now, and flush for those who wait by now: however much comes meanwhile, it ends."""
        began_s = time.monotonic()
        flushes, self._flushes = self._flushes, []
        try:
            for block in self._queue.take_all():
                await self._call(partial(_write, sink, block))
                self._queue.settled(block)
                self._counters.unstored_bytes = self._queue.size_bytes
            if not flushes:
                return
            await self._call(sink.flush)
        except Exception:
            self._flushes += flushes
            raise
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
                wait_s = min(busy.retry_after_s, _MAX_WAIT_S)
                self._was_busy(wait_s, str(busy))
                await asyncio.sleep(wait_s)
            except SinkRejected as rejection:
                self._answered()
                with suppress(SendingGivenUp):  # their partitions were dropped, and are judged again
                    await self._bury(rejection)
                return
        await loop.create_future()  # returning would say that the rows are stored

    def _was_busy(self, wait_s: float, reason: str) -> None:
        now_s = time.monotonic()
        self._counters.sink_was_busy(now_s)
        is_first, self._busy_since_s = self._busy_since_s is None, self._busy_since_s or now_s
        if is_first or now_s - self._said_at_s >= _SAY_AGAIN_S:
            self._said_at_s = now_s
            unstored_mib = self._queue.size_bytes / (1 << 20)
            LOG.warning("event=sink_busy retry_after_s=%g unstored_mib=%.1f reason=%r", wait_s, unstored_mib, reason)

    def _answered(self) -> None:
        self._counters.sink_answered()
        since_s, self._busy_since_s = self._busy_since_s, None
        if since_s is not None:
            LOG.info("event=sink_back away_s=%.1f", time.monotonic() - since_s)

    async def _bury(self, rejection: SinkRejected) -> None:
        for name, table in rejection.rows:
            self._counters.rejected(f"table {name}", table.num_rows)
            headers = {"reason": str(rejection), "topic": f"table {name}", "rows": str(table.num_rows)}
            await self._dead_letters.send(None, _encode(table), headers)
        if not rejection.rows:  # there are none yet: a value of ours fits no column
            LOG.error("event=sink_rejected reason=%r", str(rejection))
            await self._dead_letters.send(None, None, {"reason": str(rejection), "topic": "table"})


def _parts(judgements: Judgements) -> Iterator[Judgements]:
    """Kinds of rows apart: one that can't be converted must not take a verdict with it."""
    names = ("announcements", "iterations", "rank_iterations", "detector_scores", "operators", "patterns", "verdicts")
    for name in names:
        if len(getattr(judgements, name)):
            yield replace(Judgements(judgements.job), **{name: getattr(judgements, name)})


def _samples(name: str, batches: Sequence[Batch]) -> dict[str, pa.Table]:
    return {name: table_of_samples(batches)}


def _open(sink: Sink) -> None:
    try:
        sink.open()
    except ServiceError as error:  # who is refused now was not known at the start, and may be let in later
        raise SinkBusy(str(error), _OPEN_AGAIN_S) from error


def _write(sink: Sink, block: Block) -> None:
    sink.write({block.name: block.rows()})


def _encode(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
