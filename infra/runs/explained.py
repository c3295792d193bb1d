"""Why one iteration was judged as it was: the judge's own facts of it, kept while a recording is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.window import IterationWindow
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.verdicts.reasons import reasons_of_iteration
from irregulars.errors import InputError
from irregulars.infra.runs.analysis import judge_trace
from irregulars.messages.judgements import JudgedIteration, Verdict
from irregulars.messages.reasons import Reasons
from irregulars.producers.trace.directory import Trace
from irregulars.settings import JudgeSettings
from irregulars.sinks.advice import name_cause
from irregulars.sinks.reasons_text import alternatives_of, head_text, path_texts
from irregulars.words import duration, percent, span


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
        values = _finite(asdict(replace(self, verdicts=())))
        return values | {"verdicts": [one.to_json() for one in self.verdicts]}


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
        elapsed_ns, work_ns = (_known(float(columns[name][at][0])) for name in ("elapsed_ns", "work_ns"))
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


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return _known(value)
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


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
    if one.noise_ns > 0:
        sigmas = (judged.elapsed_ns - one.level_ns) / one.noise_ns
        text += f"; {sigmas:.1f} standard deviations from the window's median"
    return f"{text}."


def _longer(excess_ns: float) -> str:
    return f"{duration(abs(excess_ns))} {'less' if excess_ns < 0 else 'more'} than usual"
