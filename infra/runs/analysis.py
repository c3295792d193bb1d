"""Judge a recorded job in one process: the two monitors of the stream, over a trace directory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.plugins.protocol import with_say
from irregulars.detectors.verdicts.thresholds import VERDICTS
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict
from irregulars.messages.records import UNKNOWN
from irregulars.producers.publishing.batches import cut_in_order
from irregulars.producers.trace.directory import Trace
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline, in_one_piece
from irregulars.words import name_ranks

# Larger than what travels: nothing depends on it but the price of a batch, and how much is read back too much
_BATCH_ROWS = 4_096

_RANKS_AT_ONCE = 64

JOINED_GAP = 2  # ranges of irregular iterations join over at most so many regular ones


@dataclass(slots=True)
class Analysis:
    """Result of judging a trace."""

    job: str
    rejected_rows: int
    iterations: list[JudgedIteration] = field(default_factory=list)
    # The newest revision of each, most training time lost first; those that accuse no device come last
    verdicts: list[Verdict] = field(default_factory=list)
    # Why the trace could not be judged: a clause that follows "because". None where it was.
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


def analyze(trace: Trace, settings: JudgeSettings | None = None) -> Analysis:
    """Judge a trace as the stream would have judged the job. `trace`: From `producers.trace.directory.read_trace`."""
    return analysis_of(trace, *judge_trace(trace, settings))


def analysis_of(trace: Trace, judgements: Judgements, refused_rows: int) -> Analysis:
    """Return the analysis of a trace that `judge_trace` judged."""
    newest = {verdict.verdict_id: verdict for verdict in judgements.verdicts}
    return Analysis(
        trace.job,
        trace.rejected.count + refused_rows,
        list(judgements.iterations),
        sorted(newest.values(), key=order),
        None if newest else why_unjudged(trace, judgements.iterations),
    )


def judge_trace(
    trace: Trace, settings: JudgeSettings | None = None, *, fills_columns: bool = False
) -> tuple[Judgements, int]:
    """Judge a trace; return all that was decided, and how many rows a monitor refused.

    `fills_columns`: whether operators and behaviour patterns of irregular iterations are wanted too; verdicts need
    none.
    """
    # Single operators, and detectors without a say, fill columns of the database alone.
    settings = settings or JudgeSettings()
    settings = replace(
        settings,
        operator_detectors=with_say(settings.operator_detectors),
        rank_detectors=with_say(settings.rank_detectors),
        fills_columns=fills_columns,
    )
    pipeline = LocalPipeline(trace.job, settings)
    return judge_whole(pipeline, trace), pipeline.refused_rows


def order(verdict: Verdict) -> tuple[bool, float, str]:
    """Return the sort key of verdicts: those with a suspect first, then the costlier."""
    return not verdict.suspects, -verdict.lost_s, verdict.verdict_id


def judge_whole(pipeline: LocalPipeline, trace: Trace) -> Judgements:
    """Hand a whole trace to a pipeline, rank by rank, and judge it in one piece."""
    rows: list[Evidence | Membership] = []
    for announcement in trace.announcements:
        take_rank(pipeline, trace, announcement)
        if len(pipeline.ranks) == _RANKS_AT_ONCE:
            rows += pipeline.reduce()
            pipeline.ranks.clear()  # they have ended: kept, they would hold memory until all ranks have
    return pipeline.judge(in_one_piece([*rows, *pipeline.reduce()]))


def take_rank(pipeline: LocalPipeline, trace: Trace, announcement: Announcement) -> None:
    """Hand all that one rank sent to a pipeline, its end included."""
    pipeline.take(announcement)
    for schema in ("bandwidth", "iterations", "commops"):
        whole = trace.batches(schema).get(announcement.rank)
        for batch in cut_in_order(whole, _BATCH_ROWS, math.inf) if whole is not None else ():
            pipeline.take(batch)
    pipeline.take(Heartbeat(trace.job, trace.attempt, announcement.rank, {}, "ended", "finished"))


def why_unjudged(trace: Trace, iterations: Sequence[JudgedIteration]) -> str | None:
    """Return why a trace without a verdict could not be judged; None where it was, and no device is to blame.

    Returns
    -------
    str
        A clause that follows "because", without a stop.
    """
    if not iterations:
        if trace.commops:
            return "no iterations are marked, and its operators show no period that would tell them"
        if trace.bandwidth:
            return "there are no operators, and no iterations are known"
        return "there are neither operators nor iterations in it"
    if trace.commops and not any((batch.columns["elapsed_ns"] > 0).any() for batch in trace.commops.values()):
        return (
            "nothing tells how long its operators took: such a log tells hangs alone. (clog's times can be used on "
            "gloo, where calls block, and not where a watchdog looks at the GPU)"
        )
    if not any(one.elapsed_ns > 0 for one in iterations):
        return (
            "its operators have no start times, and no times of iterations are logged: how long an iteration took is "
            "not known. (NCCL Inspector writes start times with NCCL_INSPECTOR_DUMP_VERBOSE=1)"
        )
    judged = [one for one in iterations if one.is_irregular is not None]
    if not judged:
        return _why_none_judged(iterations)
    irregular = [one.iteration for one in judged if one.is_irregular]
    if not trace.commops:
        return f"{_some(irregular)} and there are no operators to tell why" if irregular else None
    if irregular and not any((batch.columns["start_ns"] != UNKNOWN).any() for batch in trace.commops.values()):
        return f"{_some(irregular)} and its operators have no start times: who waited for whom is not known"
    if len(trace.commops) == 1 and trace.world_size > 1:
        (rank,) = trace.commops
        seen = _some(irregular) if irregular else "no iteration was longer than those before it,"
        why = "it has no peers to compare with, and what it waited for may be a slow transfer or a late rank"
        return f"{seen} and of {trace.world_size} ranks only rank {rank} is logged: {why}"
    if len(irregular) >= VERDICTS.seen and len(trace.commops) < trace.world_size:
        return _why_some_ranks(trace, irregular)
    return None


def _why_none_judged(iterations: Sequence[JudgedIteration]) -> str:
    trained = [one for one in iterations if one.phase == "train"]
    if not trained:
        return "all of its iterations are evaluations or checkpoints"
    count = "1 training iteration is" if len(trained) == 1 else f"{len(trained)} training iterations are"
    least = IRREGULAR.min_iterations
    return f"{count} too few: what is usual is known after {least}. Record {2 * least} or more"


def _some(irregular: Sequence[int]) -> str:
    if len(irregular) == 1:
        return f"iteration {irregular[0]} was irregular,"
    return f"{len(irregular)} iterations were irregular,"


def _why_some_ranks(trace: Trace, irregular: Sequence[int]) -> str:
    lacking = sorted(set(range(trace.world_size)) - trace.commops.keys())
    is_one = len(lacking) == 1
    why = f"{'it' if is_one else 'one of them'} may have been late, and its log is needed"
    return f"{_some(irregular)} and {name_ranks(lacking)} {'is' if is_one else 'are'} not logged: {why}"
