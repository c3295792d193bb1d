"""A job's iterations as the judge gets them, with the log from which their operators are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from irregulars.detectors.judging.iteration_rows import IterationRows, Span, join_rows, split_by_iteration
from irregulars.detectors.judging.operator_reader import OperatorReader
from irregulars.messages.evidence import Evidence
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace
from irregulars.streams.local_pipeline import LocalPipeline
from tests.streams.judged_streams import in_order


class ReadJob:
    """Both hops' data of one job, without the judge."""

    def __init__(self, trace: Trace) -> None:
        self.spans: list[Span] = []  # all that were read back
        self.reader = OperatorReader()
        self.reader.set_announcements({one.rank: one for one in trace.announcements})
        pipeline = LocalPipeline(trace.job)
        for message in in_order(trace):
            pipeline.take(message)
        self.log = pipeline.log
        parts: dict[int, list[IterationRows]] = {}
        for monitor in pipeline.ranks.values():
            for evidence in monitor.drain():
                if isinstance(evidence, Evidence):
                    for rows in split_by_iteration(evidence, np.ones(len(evidence), dtype=bool)):
                        parts.setdefault(rows.number, []).append(rows)
        self.rows = [join_rows(parts[number]) for number in sorted(parts)]

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        self.spans += spans
        return self.log.read_back(spans)
