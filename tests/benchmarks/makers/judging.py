"""Has a trace directory judged as `irregulars analyze` judges it, as often as mechanisms are switched off."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from irregulars.detectors.blame.observation import Observation
from irregulars.infra.runs.analysis import order, take_rank
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import JudgedIteration
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.local_pipeline import LocalPipeline, OperatorLog, in_one_piece
from tests.benchmarks.makers.scoring import Found

_RANKS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Reduced:
    """A job after the first hop, which no mechanism of the judgement touches."""

    trace: Trace
    rows: Sequence[Evidence | Membership]
    log: OperatorLog
    named: frozenset[int]


def reduce(directory: Path, change: Callable[[Trace], Trace] = lambda trace: trace) -> Reduced:
    """Read a recorded job, and let the first hop reduce it, or what `change` makes of it."""
    trace = change(number_iterations(read_trace(directory)).trace)
    pipeline, rows = LocalPipeline(trace.job, JudgeSettings(fills_columns=False)), list[Evidence | Membership]()
    for announcement in trace.announcements:
        take_rank(pipeline, trace, announcement)
        if len(pipeline.ranks) == _RANKS_AT_ONCE:
            rows += pipeline.reduce()
            pipeline.ranks.clear()  # they have ended: kept, they would hold memory until all ranks have
    job = json.loads((directory / "job.json").read_text(encoding="utf-8"))
    named = frozenset(map(int, job.get("ranks") or range(job["world_size"])))
    return Reduced(trace, in_one_piece([*rows, *pipeline.reduce()]), pipeline.log, named)


def judge(job: Reduced, settings: JudgeSettings | None = None) -> Found:
    """Judge a job, and note in which iteration each revision was decided."""
    begun: list[tuple[int, int]] = []  # of each iteration how many revisions there were before it

    def watch(observation: Observation, _window: object, _topology: object) -> None:
        # No result tells when a revision was decided: of a single spike, say, it is some iterations later.
        begun.append((observation.iteration, len(monitor._judge._log.verdicts)))

    settings = replace(settings or JudgeSettings(), fills_columns=False, watch=watch)
    monitor = JobMonitor(job.trace.job, settings)
    monitor.add(job.rows)
    judgements = monitor.advance(job.log.read_back)
    decided = [
        (max((iteration for iteration, before in begun if before <= place), default=0), verdict.to_json())
        for place, verdict in enumerate(judgements.verdicts)
    ]
    newest = {verdict.verdict_id: verdict for verdict in judgements.verdicts}
    return Found(
        [verdict.to_json() for verdict in sorted(newest.values(), key=order)],
        decided,
        _training_s(job, judgements.iterations),
        job.named,
    )


def _training_s(job: Reduced, iterations: Sequence[JudgedIteration]) -> dict[int, float]:
    """Return how long iterations took, s: labels leave checkpoints and evaluation out of a fault's cost.

    Without rows of iterations a log begins each with its first operator; what ranks do before that takes time too.
    """
    took_s = {one.iteration: one.elapsed_ns / 1e9 for one in iterations if one.phase == "train"}
    if not job.trace.iterations:
        pairs = ((one, after) for one, after in pairwise(iterations) if after.iteration == one.iteration + 1)
        took_s |= {a.iteration: (b.start_ns - a.start_ns) / 1e9 for a, b in pairs if a.iteration in took_s}
    return took_s
