"""Both hops of one job in one process, without Kafka: for `irregulars analyze`, back-tests, and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from irregulars.detectors.judging.iteration_rows import Span
from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.evidence import Evidence, Membership, concatenate
from irregulars.messages.judgements import Judgements
from irregulars.messages.records import Batch
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor

_RANKS_AT_ONCE: Final = 64
"""Ranks reduced together: numpy's cost is per call, and the rows of more ranks would fall out of the caches."""


class OperatorLog:
    """The batches of operators, as their topic would hold them; a place in it is an offset."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def append(self, batch: Batch) -> int:
        """Keep a batch; return its offset."""
        self.batches.append(batch)
        return len(self.batches) - 1

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        """Return the batches of some spans."""
        return [self.batches[offset] for span in spans for offset in span.offsets]


class LocalPipeline:
    """A RankMonitor for each rank, the log of operators, and one JobMonitor.

    Messages are handed to `take`; `reduce` gives the evidence that they complete, and `judge` judges it. Each may be
    called as often as the caller likes: how messages of several ranks interleave changes no verdict.

    `log`: keeps the operators; of a class of its own where reading back is measured.
    """

    def __init__(self, job: str, settings: JudgeSettings | None = None, log: OperatorLog | None = None) -> None:
        self.job = job
        self.settings = settings or JudgeSettings()
        self.log = log or OperatorLog()
        self.ranks: dict[int, RankMonitor] = {}
        self.monitor = JobMonitor(job, self.settings)
        self.refused_rows = 0

    def take(self, message: Announcement | Batch | Heartbeat) -> None:
        """Hand a message to the monitor of its rank; a batch that can't be true is counted and left out."""
        rank = message.header.rank if isinstance(message, Batch) else message.rank
        monitor = self.ranks.get(rank)
        if monitor is None:
            monitor = self.ranks[rank] = RankMonitor(self.job, rank, self.settings)
        if isinstance(message, Announcement):
            monitor.announce(message)
        elif isinstance(message, Heartbeat):
            monitor.beat(message)
        else:
            try:
                # Only operators are ever read back, so that only they need a true offset.
                monitor.add(message, self.log.append(message) if message.header.schema == "commops" else -1)
            except RecordError:  # a worker sends such a batch to the dead letters, and goes on
                self.refused_rows += len(message)
        self.refused_rows += sum(len(one.batch) for one in monitor.take_refused())

    def reduce(self, ranks: Iterable[int] | None = None) -> list[Evidence | Membership]:
        """Return the evidence and memberships that are complete and were not returned yet, of all or some ranks."""
        monitors = iter([self.ranks[rank] for rank in (self.ranks if ranks is None else ranks)])
        rows: list[Evidence | Membership] = []
        while some := list(islice(monitors, _RANKS_AT_ONCE)):
            rows += reduce_closings(self.job, [one for monitor in some for one in monitor.take_closed()])
        return rows

    def judge(self, rows: Sequence[Evidence | Membership] | None = None) -> Judgements:
        """Judge evidence, by default all that is complete, and return the judgements."""
        self.monitor.add(self.reduce() if rows is None else rows)
        return self.monitor.advance(self.log.read_back)


def in_one_piece(rows: Sequence[Evidence | Membership]) -> list[Evidence | Membership]:
    """Join the evidence of all ranks of one attempt to one piece, which the second hop judges quicker.

    Memberships that begin come before it, those that end after it.
    """
    evidence = [one for one in rows if isinstance(one, Evidence)]
    members = [one for one in rows if isinstance(one, Membership)]
    began, ended = ([one for one in members if (one.reason is None) is is_first] for is_first in (True, False))
    return [*began, *([concatenate(evidence)] if evidence else []), *ended]
