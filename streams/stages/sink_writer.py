"""Hands results to a sink in a thread of its own, and waits as long as the sink is busy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.sinks.protocol import Sink
from irregulars.sinks.tables import SAMPLES, table_of_opinions, table_of_samples, tables_of
from irregulars.streams.kafka.dead_letters import DeadLetters
from irregulars.streams.messages.judgements import Judgements
from irregulars.streams.messages.opinions import Opinion
from irregulars.streams.messages.records import Batch
from irregulars.streams.telemetry.counters import Counters

LOG: Final = logging.getLogger("irregulars.worker")
_MAX_WAIT_S: Final = 30.0


class SinkWriter:
    """Writes judgements and samples; without a sink it does nothing.

    While the sink is busy `write` waits, and with it the stage that called it: back-pressure up to Kafka, where there
    is room. Rows that the sink will never take go to the dead-letter topic, as Arrow streams.
    """

    def __init__(self, sink: Sink | None, dead_letters: DeadLetters, counters: Counters | None = None) -> None:
        self._sink: Final = sink
        self._dead_letters: Final = dead_letters
        self._counters: Final = counters or Counters()
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-sink")
        self._is_closed = False

    async def write(self, judgements: Judgements) -> None:
        """Give all rows of `judgements` to the sink; they are stored after the next `flush`."""
        if self._sink is not None:
            for part in _parts(judgements):
                await self._call(partial(_write, self._sink, part))

    async def write_samples(self, batches: Sequence[Batch]) -> None:
        """Give samples of devices to the sink; they are stored after the next `flush`."""
        if self._sink is None:
            return
        for name in SAMPLES:
            own = [batch for batch in batches if batch.header.schema == name]
            if own:
                await self._call(partial(_write_samples, self._sink, name, own))

    async def write_opinions(self, opinions: Sequence[Opinion]) -> None:
        """Give what people say of verdicts to the sink; it is stored after the next `flush`."""
        if self._sink is not None and opinions:
            await self._call(partial(_write_opinions, self._sink, opinions))

    async def flush(self) -> None:
        """Return when all rows given so far are stored."""
        if self._sink is not None:
            await self._call(self._sink.flush)

    def close(self) -> None:
        """End the thread; calls that wait for it wait until they are cancelled. The sink belongs to the caller."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _call(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            try:
                await loop.run_in_executor(self._thread, work)
                return self._counters.sink_answered()
            except SinkBusy as busy:
                self._counters.sink_was_busy(time.monotonic())
                LOG.warning("event=sink_busy retry_after_s=%g reason=%r", busy.retry_after_s, str(busy))
                await asyncio.sleep(min(busy.retry_after_s, _MAX_WAIT_S))
            except SinkRejected as rejection:
                return await self._bury(rejection)
        await loop.create_future()  # returning would say that the rows are stored

    async def _bury(self, rejection: SinkRejected) -> None:
        self._counters.sink_answered()
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


def _write(sink: Sink, judgements: Judgements) -> None:
    sink.write(tables_of(judgements))


def _write_samples(sink: Sink, name: str, batches: Sequence[Batch]) -> None:
    sink.write({name: table_of_samples(batches)})


def _write_opinions(sink: Sink, opinions: Sequence[Opinion]) -> None:
    sink.write({"feedback": table_of_opinions(opinions)})


def _encode(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
