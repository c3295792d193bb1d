"""Runs jobs and has them judged, in memory, by the two monitors that `irregulars analyze` runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final

from irregulars.errors import InputError
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.judgements import JudgedIteration, Verdict
from irregulars.messages.records import Batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.simulator.faults import FAULT_KINDS, Fault
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline, in_one_piece
from tests.benchmarks.incidents import Incident, Incidents
from tests.benchmarks.localization.cases import BEFORE, ITERATIONS, Base, Case
from tests.benchmarks.localization.places import draw_fault
from tests.benchmarks.localization.scoring import Truth, device_of, score

_PLACES_TRIED: Final = 8


class Hearing:
    """One job before the two monitors, which hear it part by part."""

    def __init__(self, incident: Incident, delta: float) -> None:
        settings = incident.settings
        self._ended = [Heartbeat(settings.job, settings.attempt, rank, {}, "ended", "finished")
                       for rank in range(settings.world_size)]  # fmt: skip
        self._pipeline = LocalPipeline(settings.job, JudgeSettings(delta=delta))
        self.iterations: list[JudgedIteration] = []
        self.revisions: list[Verdict] = []
        for announcement in incident.announcements():
            self._pipeline.take(announcement)

    def hear(self, batches: Iterable[Batch], *, is_end: bool = True) -> None:
        """Take in a part of the job: both hops."""
        for batch in batches:
            for cut in cut_in_order(batch, BATCH_ROWS, BATCH_SPAN_S):
                self._pipeline.take(cut)
        for beat in self._ended if is_end else ():
            if beat.rank in self._pipeline.ranks:
                self._pipeline.take(beat)
        judgements = self._pipeline.judge(in_one_piece(self._pipeline.reduce()))
        self.iterations += judgements.iterations
        self.revisions += judgements.verdicts

    def verdicts(self) -> list[Verdict]:
        """Verdicts as `irregulars analyze` lists them: the newest revisions, most training time lost first."""
        newest = {verdict.verdict_id: verdict for verdict in self.revisions}
        return sorted(newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))


@lru_cache(maxsize=1)
def healthy_job(base: Base) -> Incidents:
    """The healthy run that cases share; one is kept, since it is large."""
    job = Incidents(base.settings())
    job.healthy(ITERATIONS - 1)
    return job


@lru_cache(maxsize=1)
def common_beginning(base: Base, delta: float) -> Hearing:
    """What the monitors know before the first fault of any case; who goes on with it uses it up."""
    incident = healthy_job(base).run()
    hearing = Hearing(incident, delta)
    hearing.hear(incident.batches(past=BEFORE), is_end=False)
    return hearing


def run_incident(case: Case) -> Incident:
    """Run the incident of a case; where a place can't cause the excess, the next one drawn.

    Raises
    ------
    InputError
        If none of many places can cause it.
    """
    job = healthy_job(case.base)
    for attempt in range(_PLACES_TRIED):
        try:
            incident = job.run(draw_fault(case, job.engine, attempt))
            break
        except InputError:
            if attempt == _PLACES_TRIED - 1:
                raise
    if len(case.spans) == 1:
        return incident
    fitted = incident.faults[0]
    return job.run(*(replace(fitted, first=first, past=past) for first, past in case.spans))


def truth_of(incident: Incident) -> Truth:
    """Name the culprits as verdicts would name them."""
    faults = incident.label().get("faults", [])
    names = {_culprit(incident, label) for label in faults} - {None}
    kinds = {label["kind"] for label in faults} or {"none"}
    return Truth(kinds.pop(), tuple(sorted(name for name in names if name is not None)))


def _culprit(incident: Incident, label: dict[str, Any]) -> tuple[Any, ...] | None:
    device = FAULT_KINDS[label["fault"]].device
    if device is None:
        return None
    topology, ranks = incident.job.engine.topology, label["ranks"]
    rank = ranks[0]
    return device_of({
        "device": device, "rank": rank, "ranks": ranks, "host": topology.host_name(int(topology.host[rank])),
        "nic": topology.nic_name(int(topology.nic[rank])), "switch": label["switch"],
    })  # fmt: skip


def run_case(case: Case, delta: float) -> dict[str, Any]:
    """Run a case and judge it. It uses up `common_beginning`: run it in a process that ends with it."""
    incident = run_incident(case)
    truth, row = truth_of(incident), _described(case, incident)
    incident = replace(incident, runs=incident.runs[: case.iterations])
    if case.shape == "from_start":
        hearing, heard = Hearing(incident, delta), 0
    else:
        hearing, heard = common_beginning(case.base, delta), BEFORE
    hearing.hear(incident.batches(heard))
    return row | judged_row(hearing, truth, case.spans[0][0])


def judged_row(hearing: Hearing, truth: Truth, onset: int) -> dict[str, Any]:
    verdicts = [verdict.to_json() for verdict in hearing.verdicts()]
    return {
        **asdict(score(verdicts, truth)),
        "truth": {"kind": truth.kind, "culprits": truth.culprits},
        "verdicts": verdicts,
        "iterations": len(hearing.iterations),
        "irregular_iterations": [one.iteration for one in hearing.iterations if one.is_irregular],
        "iterations_to_verdict": _iterations_to_verdict(hearing, truth, onset),
    }


def _iterations_to_verdict(hearing: Hearing, truth: Truth, onset: int) -> int | None:
    """Iterations from the onset, its first one included, to the first revision that names the culprit."""
    for verdict in hearing.revisions:
        if score([verdict.to_json()], truth).is_top1 and verdict.time_ns is not None:
            known = [one.iteration for one in hearing.iterations if one.start_ns <= verdict.time_ns]
            return max(max(known, default=onset) - onset + 1, 1)
    return None


def _described(case: Case, incident: Incident) -> dict[str, Any]:
    faults: list[Fault] = list(incident.faults)
    label = incident.label()
    return {
        "case": case.name, "ranks": case.base.ranks, "dimensions": case.base.dimensions,
        "shape_of_job": case.base.shape,
        "base": case.base.number, "clock": incident.settings.clock, "has_bandwidth": case.base.has_bandwidth,
        "seed": case.seed, "job_seed": incident.settings.seed, "kind": case.kind, "shape": case.shape,
        "excess": case.excess, "measured_excess": [one["excess_ratio"] for one in label["faults"]],
        "spans": case.spans, "faults": [asdict(fault) for fault in faults],
    }  # fmt: skip
