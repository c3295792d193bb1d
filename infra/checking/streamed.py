"""Judge a recording as a worker hears it: batch by batch, both hops, judging in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from irregulars.detectors.judging.reading.spans import Span
from irregulars.errors import RecordError
from irregulars.infra.checking.changed import Delivery
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.evidence import Membership
from irregulars.messages.judgements import Judgements, Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace, trace_batches
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor

_ROUND: Final = 64
"""Messages after which monitors are drained, as in the worker."""


def judge_streamed(trace: Trace, settings: MonitorSettings, delivery: Delivery) -> list[Verdict]:
    """Return the newest revision of each verdict, most training time lost first."""
    return _StreamedJob(trace, settings).hear(delivery)


class _StreamedJob:
    """The two monitors of one job, and the log that they read back from."""

    def __init__(self, trace: Trace, settings: MonitorSettings) -> None:
        self._trace = trace
        self._job = JobMonitor(trace.job, settings)
        self._log: list[Batch] = []
        self._ranks: dict[int, RankMonitor] = {}
        self._newest: dict[str, Verdict] = {}
        for announcement in trace.announcements:
            monitor = self._ranks[announcement.rank] = RankMonitor(trace.job, announcement.rank, settings)
            monitor.announce(announcement)

    def hear(self, delivery: Delivery) -> list[Verdict]:
        batches = trace_batches(self._trace, delivery.max_rows, delivery.max_span_s)
        for some in _rounds(batches):
            for batch in some:
                self._take(batch)
            self._advance()
        for rank, monitor in self._ranks.items():
            monitor.beat(Heartbeat(self._trace.job, self._trace.attempt, rank, {}, "ended", "finished"))
        self._advance()
        return sorted(self._newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))

    def _take(self, batch: Batch) -> None:
        offset = -1
        if batch.header.schema == "commops":
            offset = len(self._log)
            self._log.append(batch)
        with suppress(RecordError):  # as the worker puts aside what can't be true
            self._ranks[batch.header.rank].add(batch, offset)

    def _advance(self) -> None:
        closed: list[Closing | Membership] = [one for m in self._ranks.values() for one in m.take_closed()]
        self._job.add(reduce_closings(self._trace.job, closed))
        judgements: Judgements = self._job.advance(self._read_back)
        self._newest |= {verdict.verdict_id: verdict for verdict in judgements.verdicts}

    def _read_back(self, spans: Sequence[Span]) -> list[Batch]:
        return [self._log[offset] for span in spans for offset in span.offsets]


def _rounds(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    while some := list(islice(batches, _ROUND)):
        yield some
