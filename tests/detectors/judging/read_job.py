"""A job's iterations as the judge gets them, with the log from which their operators are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from irregulars.detectors.judging.reading.iteration_rows import IterationRows, join_rows, split_by_iteration
from irregulars.detectors.judging.reading.operator_reader import OperatorReader
from irregulars.detectors.judging.reading.spans import Span
from irregulars.messages.announcements import Announcement
from irregulars.messages.evidence import Evidence
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from tests.streams.judged_streams import in_order


class ReadJob:
    """Both hops' data of one job, without the judge."""

    def __init__(self, trace: Trace) -> None:
        self.log: list[Batch] = []
        self.spans: list[Span] = []  # all that were read back
        self.reader = OperatorReader()
        self.reader.set_announcements({one.rank: one for one in trace.announcements})
        monitors = {one.rank: RankMonitor(trace.job, one.rank, MonitorSettings()) for one in trace.announcements}
        parts: dict[int, list[IterationRows]] = {}
        for message in in_order(trace):
            if isinstance(message, Batch):
                self.log.append(message)
                monitors[message.header.rank].add(message, len(self.log) - 1)
            elif isinstance(message, Announcement):
                monitors[message.rank].announce(message)
            else:
                monitors[message.rank].beat(message)
        for monitor in monitors.values():
            for evidence in monitor.drain():
                if isinstance(evidence, Evidence):
                    for rows in split_by_iteration(evidence, np.ones(len(evidence), dtype=bool)):
                        parts.setdefault(rows.number, []).append(rows)
        self.rows = [join_rows(parts[number]) for number in sorted(parts)]

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        self.spans += spans
        return [self.log[offset] for span in spans for offset in span.offsets]
