"""Verdicts on numbers: kinds ``corruption`` and ``loss_spike``.

==========  ========================================================================================================
opens       with the first finding (`findings`): numbers that are wrong are wrong at once
goes on     its sensor finds the same rank again, or any sensor does
changes     a spike of one rank's loss or norm becomes a corruption when its replicas or a replay show one
closes      its ranks' sensors did not find it in 10 observations, checksums in 128, audits in 3, or the job ended
takes in    findings without a rank, while a verdict is open that names one: the job feels the same fault
severity    a page where the run is wrong from there on, a ticket for one rank's spike, a note for the job's
==========  ========================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.numerics.findings import EQUAL, OWN, Finding, Findings, FindingsState
from irregulars.detectors.numerics.thresholds import NUMERIC
from irregulars.detectors.verdicts.counted_verdicts import CountedVerdict, CountedVerdicts, next_ordinal
from irregulars.detectors.verdicts.revision import suspect_of
from irregulars.detectors.verdicts.severity import worse
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.evidence import NUMERIC_COLUMNS, EvidenceRows
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import GPU, layer_of
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import UNKNOWN
from irregulars.words import name_ranks

_SENSORS: Final = {"checksum": "parameters_checksum"}
"""Columns of sensors that are not called like them; without its column a sensor observed nothing."""

_THEN: Final = "; then "  # between what a rank did and what the whole job felt of it

_SURE: Final = {"audit": 0.95}
_ELSE: Final = 0.9
"""Probability that a rank is the right one, by its first sensor; shared among alternatives.

Of 299 injected faults that made replicas differ the odd rank was at fault in 280: in a ring a receiver hands on the
wrong values of its buffer, so that the last one may differ for being right.
"""


@dataclass(slots=True, kw_only=True)
class OpenNumeric(CountedVerdict):
    """One open verdict; `severity` grows with each finding."""

    kind: str
    ranks: tuple[int, ...]  # alternatives
    sensors: tuple[str, ...]  # that found it, the first one first
    text: str  # of the finding that opened or changed it
    said: tuple[str, tuple[int, ...], str] = ("", (), "")  # kind, ranks and severity of the newest revision
    among: tuple[int, ...] = ()  # as of its newest `Finding` that names nobody

    def see(self, finding: Finding, iteration: int, time_ns: int) -> None:
        """Take in a finding."""
        self.seen += self.last != iteration or not self.seen
        self.last, self.time_ns, self.quiet = iteration, time_ns, 0
        self.among = finding.among or self.among
        if finding.sensor not in self.sensors:
            self.sensors = (*self.sensors, finding.sensor)
        is_surer = finding.kind == "corruption" != self.kind
        is_nearer = bool(finding.ranks) and (not self.ranks or len(finding.ranks) < len(self.ranks))
        # Of replicas that differ without a majority, one stands out by its own values
        if is_surer and self.ranks and not finding.ranks:
            self.kind, self.text = finding.kind, f"{finding.text}; {self.text}"
        elif is_nearer and self.kind == "corruption" != finding.kind:
            self.ranks, self.text = finding.ranks, f"{self.text}; {finding.text}"
        elif is_surer or is_nearer:
            self.kind, self.ranks, self.text = finding.kind, finding.ranks, finding.text
            self.sensors = (finding.sensor, *(one for one in self.sensors if one != finding.sensor))
        self.severity = worse(self.severity, _severity(finding))


@dataclass(slots=True)
class NumericsState:
    """The state of a `NumericsJudge`."""

    findings: FindingsState
    ordinals: dict[str, int]
    open: list[OpenNumeric]


class NumericsJudge(CountedVerdicts[OpenNumeric]):
    """Judges the numbers of one attempt of a job."""

    def __init__(self, job: str, attempt: int, state: NumericsState | None = None) -> None:
        super().__init__(job, attempt, state.open if state else ())
        self._findings = Findings(state.findings) if state else None  # None: no number has come
        self._ordinals = state.ordinals if state else {}

    def observe(
        self, rows: EvidenceRows, topology: Topology, time_ns: int, phase: str
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in the rows of an iteration, by rank; `time_ns`: its start; `phase`: of the job in it.

        Returns revisions, and the ids of verdicts whose cause was seen in it.
        """
        columns = {name: rows.columns[name] for name in NUMERIC_COLUMNS if name in rows.columns}
        if not columns and rows.audits is None:
            return [], ()
        if phase != "train":
            # Gradient and update are of training, whatever else ran in the iteration. A loss may be of an evaluation,
            # and NaN on all ranks may stand for a step that was none.
            judged = (*EQUAL, *OWN) if phase == "checkpoint" else (*EQUAL, "local_grad_norm", "update_rms")
            columns = {
                name: np.where(np.isinf(column), np.nan, column)
                if name != EQUAL[0] and not np.isfinite(column).any()
                else column
                for name, column in columns.items()
                if name in judged
            }
        rank = rows.columns["rank"]
        sets: Ints = np.array([topology.replica_set.get(one, -1) for one in rank.tolist()], dtype=np.int64)
        self._findings = self._findings or Findings()
        iteration = int(rows.columns["iteration"][0])
        is_whole = len(rank) == topology.world_size
        found = self._findings.observe(rank, columns, rows.audits, sets, iteration, is_whole=is_whole)
        found = _joined(found, topology)
        seen = [self._of(one, iteration, time_ns) for one in found]
        self._count_quiet(rank, columns, rows.audits, seen)
        return self._follow_up(topology), tuple(dict.fromkeys(one.verdict_id for one in seen))

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        return [(one.severity, one.kind) for one in self._open]

    def _of(self, finding: Finding, iteration: int, time_ns: int) -> OpenNumeric:
        """Add a finding to its verdict, a new one if there is none."""
        # A rank's verdict first, where an infinity has spread.
        for one in sorted(self._open, key=lambda one: not (finding.is_grave and one.ranks)):
            named = {*finding.ranks, *finding.among}
            # A reduction hands a rank's infinity, or the weights it ruined, on to all.
            is_spread = not named and finding.is_grave and finding.kind == "loss_spike" and not one.quiet
            is_spread &= iteration - one.last <= IRREGULAR.min_iterations  # its sensor may have no value for long
            if not (named or is_spread) and one.ranks and worse(one.severity, _severity(finding)) == one.severity:
                return one  # the job feels this rank's error: no further evidence against the rank
            is_same = is_spread or not named.isdisjoint(one.ranks or one.among) or not (finding.ranks or one.ranks)
            if is_spread and one.ranks and _THEN not in one.text:
                one.text += f"{_THEN}{finding.text.partition(':')[0]}"
            if is_same or (not (one.ranks or one.among) and one.first == iteration):
                one.see(finding, iteration, time_ns)
                return one
        first = iteration if finding.since is None else finding.since
        key = f"{first}:{finding.kind}"
        verdict_id = f"{self.job}:{self.attempt}:{key}.{next_ordinal(self._ordinals, key)}"
        one = OpenNumeric(
            verdict_id, first, iteration, time_ns, kind=finding.kind, ranks=finding.ranks,
            sensors=(finding.sensor,), text=finding.text,
        )  # fmt: skip
        one.see(finding, iteration, time_ns)
        self._open.append(one)
        return one

    def _count_quiet(
        self, rank: Ints, columns: Mapping[str, Column], audits: Ragged | None, seen: Sequence[OpenNumeric]
    ) -> None:
        """Count an observation of each verdict not found again, if one of its ranks, or any if gone, has a value."""
        for one in self._open:
            if one in seen:
                continue
            asked = np.isin(rank, one.ranks)
            # Without this, a verdict on ranks that are gone, or on nobody, would stay open for good.
            asked = asked if asked.any() else ~asked
            one.quiet += any(bool((asked & _tells(sensor, rank, columns, audits)).any()) for sensor in one.sensors)

    def _event_of(self, one: OpenNumeric, topology: Topology) -> str | None:
        if not one.revision:
            return "opened"
        if one.said[:2] != (one.kind, one.ranks):
            return "changed"
        if one.said[2] != one.severity:
            return "raised"
        return "continued" if one.seen >= JOB.twice * one.said_seen else None

    def _is_over(self, one: OpenNumeric) -> bool:
        if "checksum" in one.sensors:
            return one.quiet >= 2 * NUMERIC.memory
        return one.quiet >= (JOB.repeated if one.sensors == ("audit",) else IRREGULAR.min_iterations)

    def _revise(self, one: OpenNumeric, event: str, topology: Topology, close_reason: str | None = None) -> Verdict:
        one.said = (one.kind, one.ranks, one.severity)
        # All ranks got the same: it came wrong into their sum, on the way between them.
        is_in_sum = one.kind == "corruption" and one.sensors[0] == "grad_norm" and not one.ranks + one.among
        probability = _SURE.get(one.sensors[0], _ELSE) / max(len(one.ranks), 1)
        times = "" if one.seen == 1 else f", in {one.seen} iterations since {one.first}"
        return self._revision(
            one, event, topology, close_reason,
            kind=one.kind,
            delta=math.nan,
            lost_s=0.0,
            suspects=tuple(suspect_of(Device(GPU, (rank,)), probability, topology) for rank in one.ranks),
            evidence=f"{one.text}{times}; first in iteration {one.first}" if not times else f"{one.text}{times}",
            time_ns=one.time_ns or None,  # 0 where the source has none
            layer="network" if is_in_sum else layer_of(one.kind),
        )  # fmt: skip

    def state(self) -> NumericsState | None:
        """Everything that a new object needs to go on; None: no number has come."""
        # A copy, since the judge goes on to change its own in place.
        return deepcopy(NumericsState(self._findings.state, self._ordinals, self._open)) if self._findings else None


def _tells(sensor: str, rank: Ints, columns: Mapping[str, Column], audits: Ragged | None) -> Flags:
    """Mark the ranks that have a value for a sensor in this iteration."""
    if sensor == "audit":
        return np.zeros(len(rank), dtype=np.bool_) if audits is None else np.isin(rank, audits.of_entries(rank))
    # The sensor ``loss of the job`` has a value where ``loss`` has one.
    values = columns.get(_SENSORS.get(sensor, sensor.split()[0]), np.full(len(rank), np.nan))
    return values != UNKNOWN if values.dtype.kind == "i" else ~np.isnan(values)


def _joined(found: Sequence[Finding], topology: Topology) -> list[Finding]:
    """Join findings on ranks that work on one batch: the error of one reaches the others."""
    joined: list[Finding] = []
    for one in found:
        for at, other in enumerate(joined):
            is_same = one.sensor == other.sensor in OWN and bool(one.ranks)
            if is_same and any(topology.share_batch(one.ranks[0], rank) for rank in other.ranks):
                text = f"{other.text}; {name_ranks(one.ranks)} too, of the same batch"
                joined[at] = replace(other, ranks=(*other.ranks, *one.ranks), text=text)
                break
        else:
            joined.append(one)
    return joined


def _severity(finding: Finding) -> str:
    if finding.is_grave:
        return "page"
    return "ticket" if finding.ranks else "note"
