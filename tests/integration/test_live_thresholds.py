"""`irregulars thresholds` on a real broker and database: what two workers judge, and what the next one judges again."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from irregulars.producers.trace.directory import Trace
from irregulars.streams.kafka.topics import rank_key
from irregulars.streams.messages.announcements import Announcement, encode_announcement, encode_heartbeat
from irregulars.streams.messages.judgements import Verdict
from irregulars.streams.messages.records import Batch, encode_batch
from irregulars.streams.messages.threshold_changes import ThresholdChange
from tests.integration.pipelines import Pipeline, Process
from tests.integration.worker_runs import partition_of, wait_until
from tests.streams.eight_ranks import EightRanks
from tests.streams.judged_streams import Message, MonitoredJob, in_order
from tests.streams.lockstep_job import MS

pytestmark = pytest.mark.integration

ITERATIONS, CHANGED, KILLED = 120, 60, 90
CHANGE = {"delta": 1.6, "alert_least_seen": 1000}
DEAD = "irregulars_worker_thresholds_revision"


def trace_of(job: str) -> Trace:
    """A job in which rank 2 is late twice, and single iterations are half as long again."""
    made = EightRanks(name=job)
    made.late_ns = lambda number, rank: (
        20 * MS * (rank == 2 and (35 <= number < 45 or 80 <= number < 100)) + 8 * MS * (number % 13 == 6)
    )
    return made.trace(ITERATIONS)


class Parts:
    """A job's messages, cut where all iterations before a number can be judged."""

    def __init__(self, job: str) -> None:
        self.trace = trace_of(job)
        starts = self.trace.batches("iterations")[0].columns
        self.starts = dict(zip(starts["iteration"].tolist(), starts["start_ns"].tolist(), strict=True))
        self.messages = in_order(self.trace, max_span_s=0.005)

    def between(self, begin: int, end: int) -> list[Message]:
        first, last = self.starts.get(begin, 0), self.starts.get(end, 1 << 62)
        return [one for one in self.messages if first <= self._time(one, begin) < last]

    def _time(self, message: Message, begin: int) -> int:
        if isinstance(message, Announcement):
            return self.starts[0] if begin == 0 else -1
        if isinstance(message, Batch):
            return message.header.watermark_ns or self.starts[0]
        return (1 << 62) - 1  # last words
