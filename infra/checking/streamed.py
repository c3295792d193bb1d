"""Judge a recording as a worker hears it: batch by batch, both hops, judging in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from irregulars.infra.checking.changed import Delivery
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace, trace_batches
from irregulars.streams.local_pipeline import LocalPipeline
from irregulars.streams.monitor_settings import MonitorSettings

_ROUND: Final = 64
"""Messages after which monitors are drained, as in the worker."""


def judge_streamed(trace: Trace, settings: MonitorSettings, delivery: Delivery) -> list[Verdict]:
    """Return the newest revision of each verdict, most training time lost first."""
    pipeline, newest = LocalPipeline(trace.job, settings), dict[str, Verdict]()
    for announcement in trace.announcements:
        pipeline.take(announcement)
    ends = [Heartbeat(trace.job, trace.attempt, one.rank, {}, "ended", "finished") for one in trace.announcements]
    rounds: Iterator[Sequence[Batch | Heartbeat]] = _rounds(
        trace_batches(trace, delivery.max_rows, delivery.max_span_s)
    )
    for some in chain(rounds, [ends]):
        for message in some:
            pipeline.take(message)
        newest |= {verdict.verdict_id: verdict for verdict in pipeline.judge().verdicts}
    return sorted(newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))


def _rounds(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    while some := list(islice(batches, _ROUND)):
        yield some
