"""Judge a recorded job in one process: the two monitors of the stream, over a trace directory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from irregulars.detectors.judging.reading.spans import Span
from irregulars.detectors.plugins.protocol import with_say
from irregulars.errors import RecordError
from irregulars.infra.runs.why_unjudged import why_unjudged
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.evidence import Evidence, Membership, concatenate
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict
from irregulars.messages.records import Batch
from irregulars.producers.publishing.batches import cut_in_order
from irregulars.producers.trace.directory import Trace
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor

_BATCH_ROWS = 4_096
"""Larger than what travels: nothing depends on it but the price of a batch, and how much is read back too much."""

_RANKS_AT_ONCE = 64

JOINED_GAP = 2
"""Ranges of irregular iterations join over at most so many regular ones."""


@dataclass(slots=True)
class Analysis:
    """What was found in a trace.

    Parameters
    ----------
    verdicts
        The newest revision of each, most training time lost first; those that accuse nobody come last.
    unjudged_reason
        Why nobody can say whether anybody is to blame: a clause that follows "because". None where it was judged.
    """

    job: str
    rejected_rows: int
    iterations: list[JudgedIteration] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    unjudged_reason: str | None = None

    @property
    def irregular_ranges(self) -> list[tuple[int, int]]:
        """Half-open ranges of irregular iterations, in the job's numbering."""
        return join_ranges(self.iterations)

    def to_json(self) -> dict[str, Any]:
        """As the contract's section 2 says. ``unjudged_reason`` is there only where nothing could be judged."""
        unjudged = {} if self.unjudged_reason is None else {"unjudged_reason": self.unjudged_reason}
        return {
            "job": self.job,
            "iterations": len(self.iterations),
            "rejected_rows": self.rejected_rows,
            "irregular_iterations": [list(span) for span in self.irregular_ranges],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            **unjudged,
        }


def join_ranges(iterations: Iterable[JudgedIteration]) -> list[tuple[int, int]]:
    """Join irregular iterations to ranges, over at most `JOINED_GAP` regular ones.

    Iterations that were not logged, or not judged (evaluations, checkpoints), neither split nor extend a range.
    """
    ranges: list[tuple[int, int]] = []
    regular = JOINED_GAP + 1
    for one in sorted(iterations, key=lambda judged: judged.iteration):
        if one.is_irregular is None:
            continue
        if not one.is_irregular:
            regular += 1
        elif regular <= JOINED_GAP:
            ranges[-1] = (ranges[-1][0], one.iteration + 1)
            regular = 0
        else:
            ranges.append((one.iteration, one.iteration + 1))
            regular = 0
    return ranges


def analyze(trace: Trace, settings: MonitorSettings | None = None) -> Analysis:
    """Judge a trace as the stream would have judged the job.

    Parameters
    ----------
    trace
        What `producers.trace.directory.read_trace` read.
    settings
        As the worker's.
    """
    return analysis_of(trace, *judge_trace(trace, settings))


def analysis_of(trace: Trace, judgements: Judgements, refused_rows: int) -> Analysis:
    """Return what was found in a trace that `judge_trace` judged."""
    newest = {verdict.verdict_id: verdict for verdict in judgements.verdicts}
    return Analysis(
        trace.job,
        trace.rejected.count + refused_rows,
        list(judgements.iterations),
        sorted(newest.values(), key=order),
        None if newest else why_unjudged(trace, judgements.iterations),
    )


def judge_trace(
    trace: Trace, settings: MonitorSettings | None = None, *, fills_columns: bool = False
) -> tuple[Judgements, int]:
    """Judge a trace; return all that was decided, and how many rows a monitor refused.

    Parameters
    ----------
    fills_columns
        Whether operators and behaviour patterns of irregular iterations are wanted too; verdicts need none.
    """
    # Single operators, and detectors without a say, fill columns of the database alone.
    settings = settings or MonitorSettings()
    settings = replace(
        settings,
        operator_detectors=with_say(settings.operator_detectors),
        rank_detectors=with_say(settings.rank_detectors),
        fills_columns=fills_columns,
    )
    log = TraceLog()
    job = JobMonitor(trace.job, settings)
    job.add(reduce_ranks(trace, settings, log))
    return job.advance(log.read_back), log.refused_rows


def order(verdict: Verdict) -> tuple[bool, float, str]:
    """Sort key of verdicts: who is accused comes before what accuses nobody, and then what cost most."""
    return not verdict.suspects, -verdict.lost_s, verdict.verdict_id


def reduce_ranks(trace: Trace, settings: MonitorSettings, log: TraceLog) -> list[Evidence | Membership]:
    """Reduce all ranks, some at once, and join what they give: the second hop is cheaper with one large piece."""
    reduced: list[Evidence | Membership] = []
    for first in range(0, len(trace.announcements), _RANKS_AT_ONCE):
        some = trace.announcements[first : first + _RANKS_AT_ONCE]
        reduced += reduce_closings(
            trace.job, [one for each in some for one in close_rank(trace, each, settings, log)]
        )
    rows = [one for one in reduced if isinstance(one, Evidence)]
    members = [one for one in reduced if isinstance(one, Membership)]
    came, went = ([one for one in members if (one.reason is None) is is_first] for is_first in (True, False))
    return [*came, *([concatenate(rows)] if rows else []), *went]


def close_rank(
    trace: Trace, announcement: Announcement, settings: MonitorSettings, log: TraceLog
) -> list[Closing | Membership]:
    """Close all that one rank sent; how ranks and topics interleave changes nothing, so this is the quickest way."""
    monitor = RankMonitor(trace.job, announcement.rank, settings)
    monitor.announce(announcement)
    for schema in ("bandwidth", "iterations", "commops"):
        whole = trace.batches(schema).get(announcement.rank)
        for batch in cut_in_order(whole, _BATCH_ROWS, math.inf) if whole is not None else ():
            try:
                monitor.add(batch, log.append(batch))
            except RecordError:  # it can't be true, and the worker would put it aside
                log.refused_rows += len(batch)
    monitor.beat(Heartbeat(trace.job, trace.attempt, monitor.rank, {}, "ended", "finished"))
    return monitor.take_closed()


class TraceLog:
    """The trace's batches of operators, as the log that they would be in Kafka."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self.refused_rows = 0

    def append(self, batch: Batch) -> int:
        """Keep a batch; return its offset."""
        if batch.header.schema != "commops":
            return -1
        self._batches.append(batch)
        return len(self._batches) - 1

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        """Return the batches of some spans."""
        return [self._batches[offset] for span in spans for offset in span.offsets]
