"""Runs jobs and has them judged, in memory, by the two monitors that `irregulars analyze` runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from producers.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from producers.simulator.faults import Fault
from producers.simulator.incidents import Incident, Incidents
from streams.errors import InputError
from streams.evidence import Evidence, Membership, encode_evidence
from streams.job_monitor import JobMonitor
from streams.judgements import Judgements, Verdict
from streams.monitor_settings import MonitorSettings
from streams.operator_source import Span
from streams.rank_monitor import RankMonitor
from streams.records import Batch, Heartbeat, encode_batch
from tests.benchmarks.localization.cases import Case
from tests.benchmarks.localization.places import draw_faults
from tests.benchmarks.localization.scoring import Truth, device_of, score
from tests.benchmarks.localization.topologies import Base

_DEVICES: Final = {
    "slow_rank": "gpu", "slow_host": "host", "slow_nic": "nic", "slow_link": "link", "slow_switch": "switch",
    "slow_stage": "stage", "hang": "gpu",
}  # fmt: skip
_PLACES_TRIED: Final = 8
_ENCODED_EVERY: Final = 16  # one batch in so many is encoded, to learn how many bytes a row takes


@dataclass(slots=True)
class Log:
    """The batches of operators as the log in Kafka would hold them, and what was moved out of it."""

    batches: list[Batch] = field(default_factory=list)
    rows: int = 0
    rows_read: int = 0
    reads: int = 0
    _encoded_rows: int = 0
    _encoded_bytes: int = 0

    def append(self, batch: Batch) -> int:
        """Keep a batch; return its offset."""
        self.rows += len(batch)
        if len(self.batches) % _ENCODED_EVERY == 0:
            self._encoded_rows += len(batch)
            self._encoded_bytes += len(encode_batch(batch))
        self.batches.append(batch)
        return len(self.batches) - 1

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        """Return the batches of some spans; each time they are moved anew."""
        found = [self.batches[offset] for span in spans for offset in span.offsets]
        self.rows_read += sum(map(len, found))
        self.reads += 1
        return found

    @property
    def bytes_per_row(self) -> float:
        """Encoded as in Kafka, with headers."""
        return self._encoded_bytes / max(self._encoded_rows, 1)


@dataclass(frozen=True, slots=True)
class Reduced:
    """A job after the first hop."""

    job: str
    rows: list[list[Evidence | Membership]]
    log: Log
    evidence_bytes: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What the second hop said of a job, and what it cost."""

    judgements: Judgements
    verdicts: list[Verdict]
    took_s: float
    rows_read: int
    reads: int


def reduce_job(incident: Incident, settings: MonitorSettings) -> Reduced:
    """Run the first hop over all that the ranks of a job sent."""
    job, attempt, log = incident.settings.job, incident.settings.attempt, Log()
    began_s, rows, moved = time.process_time(), [], 0
    monitors: dict[int, RankMonitor] = {}
    for announcement in incident.announcements():
        monitors[announcement.rank] = RankMonitor(job, announcement.rank, settings)
        monitors[announcement.rank].announce(announcement)
    for batch in incident.batches():
        monitor = monitors[batch.header.rank]
        is_logged = batch.header.schema == "commops"
        for cut in cut_in_order(batch, BATCH_ROWS, BATCH_SPAN_S):
            monitor.add(cut, log.append(cut) if is_logged else -1)
    for rank, monitor in monitors.items():
        monitor.beat(Heartbeat(job, attempt, rank, {}, "ended", "finished"))
        rows.append(monitor.drain())
    took_s = time.process_time() - began_s
    moved = sum(len(value) for value in encode_evidence([row for own in rows for row in own], job))
    return Reduced(job, rows, log, moved, took_s)


def judge_job(reduced: Reduced, settings: MonitorSettings) -> Judged:
    """Run the second hop."""
    log, began_s = reduced.log, time.process_time()
    log.rows_read = log.reads = 0
    monitor = JobMonitor(reduced.job, settings)
    for rows in reduced.rows:
        monitor.add(rows)
    judgements = monitor.advance(log.read_back)
    newest = {verdict.verdict_id: verdict for verdict in judgements.verdicts}
    verdicts = sorted(newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))  # as `analyze`
    return Judged(judgements, verdicts, time.process_time() - began_s, log.rows_read, log.reads)


@lru_cache(maxsize=1)
def healthy_job(base: Base) -> Incidents:
    """The healthy run that cases share; one is kept, since it is large."""
    return Incidents(base.settings())


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
            incident = job.run(draw_faults(case, job.engine, attempt))
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
    device = _DEVICES.get(label["fault"])
    if device is None:
        return None
    topology, ranks = incident.job.engine.topology, label["ranks"]
    rank = ranks[0]
    return device_of({
        "device": device, "rank": rank, "ranks": ranks, "host": topology.host_name(int(topology.host[rank])),
        "nic": topology.nic_name(int(topology.nic[rank])), "switch": label["switch"],
    })  # fmt: skip


def run_case(case: Case, deltas: Sequence[float]) -> dict[str, Any]:
    """Run a case and judge it, with the first δ in full and with the others for the score alone."""
    began_s = time.process_time()
    incident = run_incident(case)
    truth = truth_of(incident)
    simulated_s = time.process_time() - began_s
    reduced = reduce_job(incident, MonitorSettings(delta=deltas[0]))
    row = _described(case, incident, truth) | {"simulated_s": simulated_s}
    row |= judged_row(reduced, judge_job(reduced, MonitorSettings(delta=deltas[0])), truth, case.spans[0][0])
    for delta in deltas[1:]:
        judged = judge_job(reduced, MonitorSettings(delta=delta))
        row.setdefault("by_delta", {})[f"{delta:g}"] = _scored(judged.verdicts, truth)
    return row


def judged_row(reduced: Reduced, judged: Judged, truth: Truth, onset: int) -> dict[str, Any]:
    """Verdicts, scores and costs."""
    per_row, log = reduced.log.bytes_per_row, reduced.log
    irregular = [one.iteration for one in judged.judgements.iterations if one.is_irregular]
    return {
        **_scored(judged.verdicts, truth),
        "verdicts": [verdict.to_json() for verdict in judged.verdicts],
        "irregular_iterations": irregular,
        "iterations_to_verdict": _iterations_to_verdict(judged.judgements, truth, onset),
        "reduced_s": reduced.took_s, "judged_s": judged.took_s, "operators": log.rows, "reads": judged.reads,
        "log_bytes": log.rows * per_row, "evidence_bytes": reduced.evidence_bytes,
        "read_bytes": judged.rows_read * per_row,
    }  # fmt: skip


def _scored(verdicts: Sequence[Verdict], truth: Truth) -> dict[str, Any]:
    return asdict(score([verdict.to_json() for verdict in verdicts], truth))


def _iterations_to_verdict(judgements: Judgements, truth: Truth, onset: int) -> int | None:
    """Iterations from the onset, its first one included, to the first revision that names the culprit."""
    for verdict in judgements.verdicts:
        if score([verdict.to_json()], truth).is_top1 and verdict.time_ns is not None:
            known = [one.iteration for one in judgements.iterations if one.start_ns <= verdict.time_ns]
            return max(max(known, default=onset) - onset + 1, 1)
    return None


def _described(case: Case, incident: Incident, truth: Truth) -> dict[str, Any]:
    faults: list[Fault] = list(incident.faults)
    label = incident.label()
    return {
        "case": case.name, "ranks": case.base.ranks, "dimensions": case.base.dimensions,
        "shape_of_job": case.base.shape,
        "base": case.base.number, "clock": incident.settings.clock, "has_bandwidth": case.base.has_bandwidth,
        "seed": case.seed, "job_seed": incident.settings.seed, "kind": case.kind, "shape": case.shape,
        "excess": case.excess, "measured_excess": [one["excess_ratio"] for one in label["faults"]],
        "iterations": len(incident.runs), "spans": case.spans, "faults": [asdict(fault) for fault in faults],
        "truth": {"kind": truth.kind, "culprits": truth.culprits},
    }  # fmt: skip
