"""Runs jobs and has them judged, in memory, by the two monitors that `irregulars analyze` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from irregulars.detectors.judging.iteration_rows import Span
from irregulars.errors import InputError
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.evidence import Evidence, Membership, encode_evidence
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict
from irregulars.messages.records import Batch, encode_batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.simulator.faults import Fault
from irregulars.producers.simulator.presets import with_preset
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline, OperatorLog, in_one_piece
from tests.benchmarks.incidents import Incident, Incidents
from tests.benchmarks.localization.cases import BEFORE, ITERATIONS, SEEDS, Base, Case
from tests.benchmarks.localization.places import draw_fault
from tests.benchmarks.localization.scoring import Truth, device_of, score

_DEVICES: Final = {
    "slow_rank": "gpu", "slow_host": "host", "slow_nic": "nic", "slow_link": "link", "slow_switch": "switch",
    "slow_stage": "stage", "hang": "gpu",
}  # fmt: skip
_PLACES_TRIED: Final = 8
_ENCODED_EVERY: Final = 16  # one batch in so many is encoded, to learn how many bytes a row takes


@dataclass(slots=True)
class Log(OperatorLog):
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


class Hearing:
    """One job before the two monitors, which hear it part by part.

    Parameters
    ----------
    incident
        Announces its ranks.
    deltas
        Each δ has a JobMonitor of its own; costs are those of the first.
    """

    def __init__(self, incident: Incident, deltas: Sequence[float]) -> None:
        settings = incident.settings
        self.job, self.attempt, self.deltas, self.log = settings.job, settings.attempt, tuple(deltas), Log()
        self.evidence_bytes = 0
        self.reduced_s = self.judged_s = 0.0
        self.rows_read = self.reads = 0
        self._pipelines = [LocalPipeline(self.job, JudgeSettings(delta=delta), self.log) for delta in self.deltas]
        self._judgements: list[list[Judgements]] = [[] for _ in self.deltas]
        for announcement in incident.announcements():
            self._pipelines[0].take(announcement)

    def hear(self, batches: Iterable[Batch], *, is_end: bool = True) -> None:
        """Take in a part of the job: both hops."""
        rows = self._reduce(batches, is_end=is_end)
        self.evidence_bytes += sum(map(len, encode_evidence(rows, self.job)))
        for pipeline, judgements in zip(self._pipelines, self._judgements, strict=True):
            self.log.rows_read = self.log.reads = 0
            began_s = time.process_time()
            judgements.append(pipeline.judge(rows))
            if pipeline is self._pipelines[0]:
                self.judged_s += time.process_time() - began_s
                self.rows_read += self.log.rows_read
                self.reads += self.log.reads

    def _reduce(self, batches: Iterable[Batch], *, is_end: bool) -> list[Evidence | Membership]:
        began_s = time.process_time()
        first_hop = self._pipelines[0]  # evidence does not depend on δ
        for batch in batches:
            for cut in cut_in_order(batch, BATCH_ROWS, BATCH_SPAN_S):
                first_hop.take(cut)
        for rank in first_hop.ranks if is_end else ():
            first_hop.take(Heartbeat(self.job, self.attempt, rank, {}, "ended", "finished"))
        rows = in_one_piece(first_hop.reduce())
        self.reduced_s += time.process_time() - began_s
        return rows

    def iterations(self, number: int = 0) -> list[JudgedIteration]:
        """Judged iterations, by the δ of this number."""
        return [one for part in self._judgements[number] for one in part.iterations]

    def revisions(self, number: int = 0) -> list[Verdict]:
        """Revisions of verdicts in their order."""
        return [one for part in self._judgements[number] for one in part.verdicts]

    def verdicts(self, number: int = 0) -> list[Verdict]:
        """Verdicts as `irregulars analyze` lists them: the newest revisions, most training time lost first."""
        newest = {verdict.verdict_id: verdict for verdict in self.revisions(number)}
        return sorted(newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))


@lru_cache(maxsize=1)
def healthy_job(base: Base) -> Incidents:
    """The healthy run that cases share; one is kept, since it is large."""
    job = Incidents(base.settings())
    job.healthy(ITERATIONS - 1)
    return job


@lru_cache(maxsize=1)
def common_beginning(base: Base, deltas: tuple[float, ...]) -> Hearing:
    """What the monitors know before the first fault of any case; who goes on with it uses it up."""
    incident = healthy_job(base).run()
    hearing = Hearing(incident, deltas)
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
    device = _DEVICES.get(label["fault"])
    if device is None:
        return None
    topology, ranks = incident.job.engine.topology, label["ranks"]
    rank = ranks[0]
    return device_of({
        "device": device, "rank": rank, "ranks": ranks, "host": topology.host_name(int(topology.host[rank])),
        "nic": topology.nic_name(int(topology.nic[rank])), "switch": label["switch"],
    })  # fmt: skip


def run_whole(make: Callable[[], Incident], delta: float, onset: int = 0) -> tuple[Incident, Truth, dict[str, Any]]:
    """Run an incident that shares nothing with others, and judge it; returns its row too."""
    began_s = time.process_time()
    incident = make()
    truth, simulated_s = truth_of(incident), time.process_time() - began_s
    hearing = Hearing(incident, (delta,))
    hearing.hear(incident.batches())
    return incident, truth, judged_row(hearing, truth, onset) | {"simulated_s": simulated_s}


def run_case(case: Case, deltas: tuple[float, ...]) -> dict[str, Any]:
    """Run a case and judge it, with the first δ in full and with the others for the score alone.

    It uses up `common_beginning`: run it in a process that ends with it.
    """
    began_s = time.process_time()
    incident = run_incident(case)
    truth, row = truth_of(incident), _described(case, incident)
    simulated_s = time.process_time() - began_s
    incident = replace(incident, runs=incident.runs[: case.iterations])
    if case.shape == "from_start":
        hearing, heard = Hearing(incident, deltas), 0
    else:
        hearing, heard = common_beginning(case.base, deltas), BEFORE
    hearing.hear(incident.batches(heard))
    row |= judged_row(hearing, truth, case.spans[0][0]) | {"simulated_s": simulated_s}
    for number, delta in enumerate(deltas[1:], 1):
        row.setdefault("by_delta", {})[f"{delta:g}"] = _scored(hearing.verdicts(number), truth)
    return row


def judged_row(hearing: Hearing, truth: Truth, onset: int) -> dict[str, Any]:
    """Verdicts, scores and costs."""
    per_row, log = hearing.log.bytes_per_row, hearing.log
    verdicts = hearing.verdicts()
    return {
        **_scored(verdicts, truth),
        "truth": {"kind": truth.kind, "culprits": truth.culprits},
        "verdicts": [verdict.to_json() for verdict in verdicts],
        "iterations": len(hearing.iterations()),
        "irregular_iterations": [one.iteration for one in hearing.iterations() if one.is_irregular],
        "iterations_to_verdict": _iterations_to_verdict(hearing, truth, onset),
        "reduced_s": hearing.reduced_s, "judged_s": hearing.judged_s, "operators": log.rows, "reads": hearing.reads,
        "log_bytes": log.rows * per_row, "evidence_bytes": hearing.evidence_bytes,
        "read_bytes": hearing.rows_read * per_row,
    }  # fmt: skip


def _scored(verdicts: Sequence[Verdict], truth: Truth) -> dict[str, Any]:
    return asdict(score([verdict.to_json() for verdict in verdicts], truth))


def _iterations_to_verdict(hearing: Hearing, truth: Truth, onset: int) -> int | None:
    """Iterations from the onset, its first one included, to the first revision that names the culprit."""
    for verdict in hearing.revisions():
        if score([verdict.to_json()], truth).is_top1 and verdict.time_ns is not None:
            known = [one.iteration for one in hearing.iterations() if one.start_ns <= verdict.time_ns]
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


_HEAVY_ITERATIONS: Final = 30
_HEAVY_IRREGULAR: Final = (20, 26)
_EXCESS: Final = 0.3
_HEARD_AT_ONCE: Final = 5  # the first hop holds what is not closed yet: two million rows an iteration


@dataclass(frozen=True, slots=True)
class HeavyCase:
    """The one job of its sort."""

    split: str

    @property
    def name(self) -> str:
        """Short name, as `--cases` takes it."""
        return f"{self.split}/2,048 GPUs, 1,000 operators, a fifth irregular"

    def settings(self) -> SimulatorSettings:
        """32 × 8 × 8 ranks, 16 micro-batches, 31 tensor parallel operators in each pass."""
        job = SimulatorSettings(
            job="heavy", dp=32, pp=8, tp=8, micro_batches=16, tp_operators=29, seed=SEEDS[self.split] + 900,
            iterations=_HEAVY_ITERATIONS, bandwidth_period_ms=0.0,
        )  # fmt: skip
        return with_preset(job, "suite")


def run_heavy(case: HeavyCase, delta: float) -> dict[str, Any]:
    """Run it, judge it, count the bytes."""
    began_s = time.process_time()
    first, past = _HEAVY_IRREGULAR
    incident = Incidents(case.settings()).run(f"slow_rank:rank=777,from={first},to={past},excess={_EXCESS}")
    truth, simulated_s = truth_of(incident), time.process_time() - began_s
    hearing = Hearing(incident, (delta,))
    for part in range(0, _HEAVY_ITERATIONS, _HEARD_AT_ONCE):
        is_end = part + _HEARD_AT_ONCE >= _HEAVY_ITERATIONS
        hearing.hear(incident.batches(part, part + _HEARD_AT_ONCE), is_end=is_end)
    return judged_row(hearing, truth, first) | {
        "case": case.name, "kind": "slow_rank", "ranks": incident.settings.world_size, "seed": case.settings().seed,
        "simulated_s": simulated_s,
    }  # fmt: skip
