"""Judge a recorded job in one process, by the two monitors of the stream, and explain one of its iterations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import IterationWindow
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Topology, topology_of
from irregulars.detectors.path.find_hang import Hang
from irregulars.detectors.path.find_mismatch import find_mismatch
from irregulars.detectors.plugins.protocol import with_say
from irregulars.detectors.verdicts.reasons import reasons_of_iteration
from irregulars.detectors.verdicts.revision import hang_verdict
from irregulars.errors import InputError
from irregulars.infra.runs.trace_reports import LateRank, arrivals_of, late_ranks
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict, with_first_names
from irregulars.messages.kinds import STANDSTILLS
from irregulars.messages.reasons import Reasons, Step
from irregulars.messages.records import OPERATORS, P2P, UNKNOWN, UNNUMBERED
from irregulars.printing import counted
from irregulars.producers.publishing.batches import cut_in_order
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.iterations import job_columns
from irregulars.settings import JudgeSettings
from irregulars.sinks.advice import alternatives_of, head_text, name_cause, name_step, path_texts, step_text
from irregulars.streams.local_pipeline import LocalPipeline, in_one_piece
from irregulars.words import duration, name_ranks, percent, span

# Rows of a batch, more than messages have: only the cost of a batch depends on it, and how many rows too many are
# read back
_BATCH_ROWS = 4_096

_RANKS_AT_ONCE = 64

_LAST_SHARE = 0.8  # of the iterations in which a rank must have been last to be named

_LOOK_OUTSIDE = (
    "Look outside of communication: stacks of the processes (py-spy dump), a kernel that does not end, storage, the "
    "data loader. Where calls are only counted (RAS), all may stand in the last one: look at NICs, switches and "
    "NCCL_DEBUG=INFO"
)

JOINED_GAP = 2  # ranges of irregular iterations join over at most so many regular ones


@dataclass(slots=True)
class IrregularPart:
    """Irregular iterations in which the same part of the critical path took most beyond its usual time."""

    iterations: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)  # of each iteration; none: these were not looked into

    def add(self, iteration: int, step: Step | None) -> None:
        """Add one iteration."""
        self.iterations.append(iteration)
        self.steps += [] if step is None else [step]

    def text(self) -> str:
        """Put it into words; of several the one that took most beyond its usual time stands for the others."""
        if not self.steps:
            return "no single part took longer, or none was looked into"
        longest = max(self.steps, key=lambda step: (step.elapsed_ns or 0.0) - (step.usual_ns or 0.0))
        return ("up to: " if len(self.steps) > 1 else "") + step_text(longest)

    def to_json(self) -> dict[str, Any]:
        """Return the object of the contract's section 2."""
        known = [step.elapsed_ns for step in self.steps if step.elapsed_ns is not None]
        usual = [step.usual_ns for step in self.steps if step.usual_ns is not None]
        first = asdict(self.steps[0]) if self.steps else {}
        if self.steps and not self.steps[0].has_rank:
            first["rank"] = None
        return {
            "iterations": self.iterations,
            **{name: first.get(name) for name in ("what", "rank", "peer", "operator", "communicator")},
            "elapsed_ns": [min(known), max(known)] if known else None,
            "usual_ns": median(usual) if usual else None,
        }


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
    late_ranks: list[LateRank] = field(default_factory=list)  # where nothing could be judged: who was last
    lost_rows: dict[int, int] = field(default_factory=dict)  # by rank, as far as the source reports them; no zeros

    @property
    def irregular_ranges(self) -> list[tuple[int, int]]:
        """Half-open ranges of irregular iterations, in the job's numbering."""
        return join_ranges(self.iterations)

    @property
    def parts(self) -> list[IrregularPart]:
        """Irregular iterations without a verdict, grouped by part; the largest group first. No step: not known.

        Empty where the recording cannot be judged, since its parts are not known either.
        """
        if self.unjudged_reason is not None:
            return []
        groups: dict[str | None, IrregularPart] = {}
        for one in self.iterations:
            if one.is_irregular and not one.verdict_ids:
                step = one.part
                name = None if step is None else name_step(step)
                groups.setdefault(name, IrregularPart()).add(one.iteration, step)
        return sorted(groups.values(), key=lambda part: -len(part.iterations))

    @property
    def last(self) -> tuple[int, int, int, float] | None:
        """The rank that worked longest in nearly all iterations, or None.

        In how many of how many it did, and by how much at the median, ns.
        """
        known = [one for one in self.iterations if one.last_rank is not None]
        ranks = Counter(one.last_rank for one in known)
        rank, count = max(ranks.items(), key=lambda pair: pair[1], default=(None, 0))
        if rank is None or count < _LAST_SHARE * len(known):
            return None
        return rank, count, len(known), median(one.last_ns or 0.0 for one in known if one.last_rank == rank)

    def to_json(self) -> dict[str, Any]:
        """Return the object of the contract's section 2, with ``unjudged_reason`` only if nothing could be judged."""
        unjudged = {} if self.unjudged_reason is None else {"unjudged_reason": self.unjudged_reason}
        return {
            "job": self.job,
            "iterations": len(self.iterations),
            "rejected_rows": self.rejected_rows,
            "irregular_iterations": [list(span) for span in self.irregular_ranges],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "irregular_parts": [part.to_json() for part in self.parts],
            **unjudged,
            **({"late_ranks": [one._asdict() for one in self.late_ranks]} if self.late_ranks else {}),
            **({"lost_rows": {str(rank): count for rank, count in self.lost_rows.items()}} if self.lost_rows else {}),
        }


def join_ranges(iterations: Iterable[JudgedIteration]) -> list[tuple[int, int]]:
    """Join irregular iterations to ranges, over at most `JOINED_GAP` regular ones.

    Iterations that were not logged, or not judged (evaluations, checkpoints), neither split nor extend a range.
    """
    ranges: list[tuple[int, int]] = []
    # Beyond the gap, so that the first irregular iteration begins a range.
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
    if not any(verdict.kind in STANDSTILLS for verdict in newest.values()):
        # A hang's verdict names calls that differ itself.
        newest |= {verdict.verdict_id: verdict for verdict in _silent_mismatch(trace)}
    unjudged = None if newest else why_unjudged(trace, judgements.iterations)
    late = [] if unjudged is None else [one for one in late_ranks(*arrivals_of(trace)) if one.is_telling]
    return Analysis(
        trace.job,
        trace.rejected.count + refused_rows,
        list(judgements.iterations),
        sorted(newest.values(), key=order),
        unjudged,
        late,
        {one.rank: one.lost_rows for one in trace.announcements if one.lost_rows},
    )


def _silent_mismatch(trace: Trace) -> Iterator[Verdict]:
    """Yield a verdict on ranks whose calls differ although nothing hangs: sizes that no library compares."""
    columns, kinds = job_columns(trace)
    mismatch = find_mismatch(columns)
    if mismatch is None:
        return
    topology = topology_of(trace.announcements, {name: code for code, name in enumerate(kinds)})
    is_call = (columns["communicator"] == mismatch.communicator) & (columns["sequence"] == mismatch.sequence)
    number = max(int(columns["iteration"][is_call].max()), 0)  # unknown is far below 0
    hang = Hang(mismatch.odd, 0, mismatch.communicator, mismatch.sides[0].operator, None, has_arrived=True,
                sequence=mismatch.sequence, mismatch=mismatch)  # fmt: skip
    seen = Observation(number, 0, 0.0, UNKNOWN if mismatch.start_ns is None else mismatch.start_ns, None)
    name = f"{trace.job}/{trace.attempt}/{number}/mismatch"
    yield hang_verdict(name, hang, seen, None, "finished", trace.job, trace.attempt, topology)


def judge_trace(
    trace: Trace, settings: JudgeSettings | None = None, *, fills_columns: bool = False
) -> tuple[Judgements, int]:
    """Judge a trace; return all judgements, and how many rows a monitor refused.

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
    judgements = judge_whole(pipeline, trace)
    iterations = with_first_names(judgements.iterations, judgements.verdicts)
    return replace(judgements, iterations=iterations), pipeline.refused_rows


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
    """Hand all messages of one rank to a pipeline, its end included."""
    pipeline.take(announcement)
    for schema in ("events", "bandwidth", "iterations", "commops"):
        whole = trace.batches(schema).get(announcement.rank)
        for batch in cut_in_order(whole, _BATCH_ROWS, math.inf) if whole is not None else ():
            pipeline.take(batch)
    pipeline.take(Heartbeat(trace.job, trace.attempt, announcement.rank, {}, "ended", "finished"))


def why_unjudged(trace: Trace, iterations: Sequence[JudgedIteration]) -> str | None:
    """Return why a trace without a verdict could not be judged, as a clause that follows "because"; None: it was."""
    if not iterations:
        if trace.commops:
            return "no iterations are marked, and its operators show no period that would tell them"
        if trace.bandwidth:
            return "there are no operators, and no iterations are known"
        # An answer of RAS in which all is well; other recordings of nothing have a clock, or other sources
        if trace.clock == "per_host" and len(trace.announcements) == trace.world_size > 1:
            alike = f"all {trace.world_size} are alike"
            return f"no rank waits for another one, as far as this tells: {alike}. {_LOOK_OUTSIDE}"
        return "there are neither operators nor iterations in it"
    if len(iterations) == 1 and trace.commops and not trace.iterations:  # dumps; profiles mark theirs
        nobody = _why_nobody_waits(trace)
        if nobody is not None:
            return nobody
    if trace.commops and not any((batch.columns["elapsed_ns"] > 0).any() for batch in trace.commops.values()):
        return "nothing tells how long its operators took: such a recording tells hangs alone"
    if not any(one.elapsed_ns > 0 for one in iterations):
        return (
            "its operators have no start times, and no times of iterations are logged: how long an iteration took is "
            "not known. (NCCL Inspector writes start times with NCCL_INSPECTOR_DUMP_VERBOSE=1)"
        )
    judged = [one for one in iterations if one.is_irregular is not None]
    if not judged:
        trained = sum(one.phase == "train" for one in iterations)
        if not trained:
            return "all of its iterations are evaluations or checkpoints"
        count = f"{counted(trained, 'training iteration')} {'is' if trained == 1 else 'are'}"
        least = IRREGULAR.min_iterations
        return f"{count} too few: what is usual is known after {least}. Record {2 * least} or more"
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
    if len(irregular) >= JOB.repeated and len(trace.commops) < trace.world_size:
        lacking = sorted(set(range(trace.world_size)) - trace.commops.keys())
        is_one = len(lacking) == 1
        why = f"{'it' if is_one else 'one of them'} may have been late, and its log is needed"
        return f"{_some(irregular)} and {name_ranks(lacking)} {'is' if is_one else 'are'} not logged: {why}"
    return None


def _why_nobody_waits(trace: Trace) -> str | None:
    """Return that no rank waits in a collective, and which was the last; None where one waits, or there was none."""
    columns, kinds = job_columns(trace)
    rows = np.flatnonzero(~np.isin(columns["operator"], P2P))
    if np.isnan(columns["elapsed_ns"]).any() or len(rows) == 0:
        return None
    # On the communicator with most ranks: of those that have its newest call, and of those that do not
    sizes = {code: len(np.unique(columns["rank"][rows[columns["communicator"][rows] == code]]))
             for code in np.unique(columns["communicator"][rows]).tolist()}  # fmt: skip
    widest = max(sizes, key=lambda code: sizes[code])
    own = rows[columns["communicator"][rows] == widest]
    newest = int(columns["sequence"][own].max())
    last = own[columns["sequence"][own] == newest]
    ranks = sorted(set(columns["rank"][last].tolist()))
    lacking = sorted(set(columns["rank"][own].tolist()) - set(ranks))
    number = f" {newest}" if newest < UNNUMBERED else ""
    operator = OPERATORS[columns["operator"][last[0]]]
    text = "nobody waits in a collective, as far as this tells: the last one was "
    text += f"{operator}{number} on {list(kinds)[widest]}, on {name_ranks(ranks)}"
    text += f", and {name_ranks(lacking)} did not call it" if lacking else ", the same on all that are here"
    return f"{text}. {_LOOK_OUTSIDE}"


def _some(irregular: Sequence[int]) -> str:
    if len(irregular) == 1:
        return f"iteration {irregular[0]} was irregular,"
    return f"{len(irregular)} iterations were irregular,"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank in the iteration, ns; None: not known, or not read."""

    rank: int
    # elapsed_ns, work_ns: time of the rank, and its own work (the gaps) in that
    elapsed_ns: float | None
    work_ns: float | None
    work_excess_ns: float | None  # how much longer than usual it worked
    # Its transfers: name of the way, how much longer than usual they took, and the usual time; the slowest first
    ways: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Explained:
    """One iteration, and the facts that the judge had."""

    judged: JudgedIteration
    # delta, level_ns, noise_ns: the δ in force, the median of the window's regular iterations and their noise (a
    # robust standard deviation)
    delta: float
    level_ns: float
    noise_ns: float
    why: tuple[str, ...] = ()  # why the judge looked into it, a clause each; empty: it had no reason to
    reasons: Reasons | None = None  # reasons in its operators, as its verdicts carry them; None: they were not read
    verdicts: tuple[Verdict, ...] = ()  # the newest revisions of verdicts whose range holds it
    rank: RankFacts | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON has them; times are ns."""
        from irregulars.infra.showing.found import plain  # judging alone needs nothing of it

        return {**plain(replace(self, verdicts=())), "verdicts": [one.to_json() for one in self.verdicts]}


@dataclass(slots=True)
class _IterationWatch:
    """Keeps the facts that the judge has when it judges one iteration."""

    iteration: int
    rank: int | None
    observation: Observation | None = None
    facts: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    reasons: Reasons | None = None
    work_excess_ns: float | None = None
    ways: list[tuple[str, float, float]] = field(default_factory=list)

    def __call__(self, observation: Observation, window: IterationWindow, topology: Topology) -> None:
        if observation.iteration != self.iteration:
            return
        self.observation = observation
        self.facts = (window.delta, window.level_ns, window.noise_ns)
        attribution = observation.attribution
        # Its operators were not read: there is no more to keep.
        if attribution is None:
            return
        self.reasons = replace(reasons_of_iteration(observation, (), topology), delta=window.delta)
        if self.rank is not None:
            self.work_excess_ns = attribution.work_excess_ns.get(self.rank)
            own = [lane for lane in attribution.lanes if lane.kind != "work" and self.rank in topology.lane_set(lane)]
            own.sort(key=lambda lane: (-attribution.lanes[lane].excess_ns, lane))
            self.ways = [
                (_name(lane, topology), attribution.lanes[lane].excess_ns, attribution.lanes[lane].usual_ns)
                for lane in own
            ]


def explain_iteration(trace: Trace, iteration: int, rank: int | None, settings: JudgeSettings) -> Explained:
    """Judge a recording, and return why one of its iterations was judged as it was.

    Raises `InputError` if the recording has no such iteration or rank.
    """
    watch = _IterationWatch(iteration, rank)
    judgements, _ = judge_trace(trace, replace(settings, watch=watch))
    judged = next((one for one in judgements.iterations if one.iteration == iteration), None)
    if judged is None:
        numbers = [one.iteration for one in judgements.iterations]
        known = f"one of {min(numbers)} to {max(numbers)}" if numbers else "recorded, and none is"
        raise InputError(f"iteration must be {known}; got {iteration}")
    newest = {one.verdict_id: one for one in judgements.verdicts}
    own = tuple(one for one in newest.values() if one.iterations[0] <= iteration < one.iterations[1])
    facts = None
    if rank is not None:
        columns = judgements.rank_iterations
        at = (columns["iteration"] == iteration) & (columns["rank"] == rank)
        if not at.any():
            raise InputError(f"rank must be one that logged iteration {iteration}; got {rank}")
        values = (float(columns[name][at][0]) for name in ("elapsed_ns", "work_ns"))
        elapsed_ns, work_ns = (value if math.isfinite(value) else None for value in values)
        facts = RankFacts(rank, elapsed_ns, work_ns, watch.work_excess_ns, tuple(watch.ways))
    why = () if watch.observation is None else tuple(_why(watch.observation))
    return Explained(judged, *watch.facts, why=why, reasons=watch.reasons, verdicts=own, rank=facts)


def _why(one: Observation) -> Iterator[str]:
    if one.is_long and (one.attribution is not None or one.is_unread):
        yield "its time alone stands out"
    if one.is_shifted:
        yield "it and those before it are longer than the ones before these"
    if one.latest is not None and one.latest.stands_out:
        yield f"rank {one.latest.rank} worked longer than its peers"
    if one.is_unread:
        yield "its operators were not read: nothing is usual yet, or the budget for reading was spent"
    if one.is_carried:
        yield "it looks like an iteration of an open verdict that was read"


def _name(lane: Lane, topology: Topology) -> str:
    if lane.kind == "pair":
        return f"rank {lane.first} to rank {lane.second}"
    return f"on {topology.names[lane.first]}" if lane.kind == "collective" else f"the NIC of rank {lane.first}"


# --- in words -------------------------------------------------------------------------------------------------------


def explanation_lines(one: Explained) -> Iterator[str]:
    """Yield the explanation line by line."""
    yield _judged_text(one)
    if one.why:
        yield f"Looked into because {'; '.join(one.why)}."
    elif one.reasons is None:
        yield "Not looked into: nothing in it stood out."
    for verdict in one.verdicts:
        who = f", {percent(verdict.suspects[0].probability)} sure" if verdict.suspects else ""
        where = f"{name_cause(verdict)} [{verdict.verdict_id}], {span(verdict.iterations)}{who}"
        yield f"Part of {where}: {verdict.evidence}"
        yield from (f"  or is it {what}? {text}" for what, text in alternatives_of(verdict))
    if one.reasons is not None:
        where = head_text(one.reasons)
        yield (
            where[:1].upper() + where[1:]
            if one.reasons.path
            else "No part of its critical path took longer than usual."
        )
        yield from (f"  {text}" for text in path_texts(one.reasons))
    if one.rank is not None:
        rank = one.rank
        took = "an unknown time" if rank.elapsed_ns is None else duration(rank.elapsed_ns)
        worked = "" if rank.work_ns is None else f", {duration(rank.work_ns)} of it its own work"
        longer = "" if rank.work_excess_ns is None else f" ({_longer(rank.work_excess_ns)})"
        yield f"Rank {rank.rank} took {took}{worked}{longer}."
        for name, excess_ns, usual_ns in rank.ways:
            yield f"  transfers {name}: {_longer(excess_ns)} (usual {duration(usual_ns)})"


def _judged_text(one: Explained) -> str:
    judged = one.judged
    took = f"Iteration {judged.iteration} of {judged.job} took {duration(judged.elapsed_ns)}"
    if judged.phase != "train":
        return f"{took}; phase {judged.phase} is not judged."
    if judged.is_irregular is None:
        return f"{took}; there was no window yet to judge it by."
    ratio = judged.elapsed_ns / judged.reference_ns
    word = "irregular" if judged.is_irregular else "regular"
    text = f"{took}, {ratio:.2f}x the usual {duration(judged.reference_ns)} (delta {one.delta:g}): {word}"
    if judged.is_irregular is False and ratio > one.delta:
        text += ", as the window's own noise reaches so far"
    # NaN, which fails the comparison, where there was no window.
    if one.noise_ns > 0:
        sigmas = (judged.elapsed_ns - one.level_ns) / one.noise_ns
        text += f"; {sigmas:.1f} standard deviations from the window's median"
    return f"{text}."


def _longer(excess_ns: float) -> str:
    return f"{duration(abs(excess_ns))} {'less' if excess_ns < 0 else 'more'} than usual"
