"""Results of a JobMonitor: judged iterations, the operators of irregular ones, and the revisions of verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement
from irregulars.messages.kinds import CAUSES, LAYERS, STANDSTILLS, VERDICT_KINDS, DeviceKind, device_kind
from irregulars.messages.reasons import Reasons, Step
from irregulars.messages.records import decode_json, encode_json
from irregulars.validation import (
    MAX_JOB_CHARACTERS,
    MAX_RANK,
    Count,
    Integer,
    JobName,
    Name,
    NotNegative,
    Number,
    Rank,
    Share,
    about,
    checked,
)

SEVERITIES: Final = ("note", "ticket", "page")
"""How urgent a verdict is, least first: to be stored, to be examined in working hours, to wake a person."""

VerdictId = Annotated[str, Meta(min_length=1, max_length=MAX_JOB_CHARACTERS + 100)]
"""A job's name and three numbers; it is a key on topics."""


def urgency_of(severity: str | None) -> str:
    """Return how urgent a severity is, as one of `SEVERITIES`; None, not known, is a ticket.

    A word that we don't know comes from a newer worker: better a person is woken in vain than not at all.

    >>> urgency_of("note"), urgency_of(None), urgency_of("critical")
    ('note', 'ticket', 'page')
    """
    if severity is None:
        return "ticket"
    return severity if severity in SEVERITIES else "page"


# fmt: off
@dataclass(frozen=True, slots=True)
class Suspect:
    """One device that may be to blame; suspects of a verdict are alternatives."""

    device: Name = field(metadata=about(
        "Kind of device, of those in irregulars/messages/kinds.py (gpu: a rank's own work), or a newer worker's own "
        "word"
    ))
    rank: Rank = field(metadata=about("The first of its ranks; a link: the sender"))
    ranks: Annotated[tuple[Rank, ...], Meta(min_length=1)] = field(metadata=about("Its ranks; a link: both ends"))
    probability: Share = field(metadata=about(
        "Chance that this one is a true cause; what is missing to 1 over all suspects: none of these"
    ))
    peer: Rank | None = field(default=None, metadata=about("Receiving rank of a link; null: no link"))
    peer_host: Name | None = field(default=None, metadata=about("Host of that rank; null: not known, or no link"))
    host: Name | None = field(default=None, metadata=about("Host of the first rank; null: not known"))
    gpu: Count | None = field(default=None, metadata=about(
        "GPU of the first rank, its index on its host; null: not known, or the device is a host"
    ))
    nic: Name | None = field(default=None, metadata=about(
        "NIC of the first rank; null: not known, or the device is a host"
    ))
    switch: Name | None = field(default=None, metadata=about("Switch of the first rank; null: not known"))

    @property
    def traits(self) -> DeviceKind:
        """Facts that all devices of its kind share."""
        return device_kind(self.device)


_LostSeconds = Annotated[float, Meta(ge=0, le=1e18)]
"""Times the ranks of a job this is still a finite number of GPU-seconds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One revision of one decision; its words (state, kind, reason, event, severity) may be a newer worker's."""

    verdict_id: VerdictId = field(metadata=about("Name of the verdict, the same in all of its revisions"))
    revision: Count = field(metadata=about("Counts up within a verdict"))
    state: Name = field(metadata=about("open, or closed", words=("open", "closed")))
    job: JobName = field(metadata=about("Training job"))
    kind: Name = field(metadata=about("What is wrong", words=tuple(VERDICT_KINDS)))
    iterations: tuple[Integer, Integer] = field(metadata=about(
        "Half-open range [first, past the last) in which the cause was seen so far"
    ))
    # Not the setting δ.
    delta: float = field(metadata=about(
        "Iteration time with the cause over the usual one, a ratio; null: not known", known=Number
    ))
    lost_s: float = field(metadata=about(
        "Iteration seconds lost so far, s; null, or 0 of a hang: not known", known=_LostSeconds
    ))
    communicator: str | None = field(metadata=about(
        "Communicator in which it was seen; null: in none, as with a rank's own work"
    ))
    suspects: tuple[Suspect, ...] = field(metadata=about("Alternatives, best first; empty: nobody is accused"))
    evidence: str = field(metadata=about("What it rests on, in words"))
    attempt: Integer = field(default=0, metadata=about("Start number of the job: a restart is a new attempt"))
    # `lost_s` times this are the GPU seconds lost.
    world_size: Annotated[int, Meta(ge=0, le=MAX_RANK)] = field(default=0, metadata=about(
        "Ranks of the job, one GPU each; 0: not known"
    ))
    time_ns: Integer | None = field(default=None, metadata=about(
        "When the cause was last seen: start of that iteration by the clock of the job, ns since the epoch"
    ))
    # ``stopped``: who sent for its ranks was ended before they were.
    close_reason: Name | None = field(default=None, metadata=about(
        "Why it closed; merged: another verdict, which goes on, tells of it; null: open",
        words=("recovered", "finished", "restarted", "silent", "stopped", "merged"),
    ))
    event: Name = field(default="opened", metadata=about(
        "What this revision is; changed: another kind, first suspect or cause; raised: more urgent than was said; "
        "continued: more of the same",
        words=("opened", "changed", "raised", "continued", "closed"),
    ))
    # By the time that is lost (`detectors.verdicts.severity`)
    severity: Name | None = field(default=None, metadata=about(
        "How urgent it is; it never falls. note: no alert, unless the settings want one; ticket: look at it in "
        "working hours; page: wake somebody; null: nobody said",
        words=SEVERITIES,
    ))
    recovers_ratio: Share | None = field(default=None, metadata=about(
        "Share of what an iteration took longer that would come back with the first suspect as usual, by replay; "
        "the median of some iterations; null: not known"
    ))
    detector: Name | None = field(default=None, metadata=about(
        "Name of the detector that opened it, or device_events; only where kind is custom", is_left_out=True
    ))
    thresholds: Mapping[str, Number] | None = field(default=None, metadata=about(
        "Thresholds in force that people had changed while workers ran, by the names of settings; only where there "
        "were any",
        is_left_out=True,
    ))
    lasted_s: NotNegative | None = field(default=None, metadata=about(
        "Seconds that judged iterations took, from the first to the newest in which the cause was seen; only where "
        "it is known, and of no hang",
        is_left_out=True,
    ))
    explanation: Reasons | None = field(default=None, metadata=about(
        "The reasons, in structure, at most 8 KB; only where the judge looked into an iteration", is_left_out=True
    ))
    layer: Name = field(default="unknown", metadata=about(
        "Where the cause lies: what to do follows from it. unknown: test the device before anything is drained",
        words=LAYERS,
    ))
    cause: Name | None = field(default=None, metadata=about(
        "What the time went to; null: nothing that is known covers 0.8 of it", words=tuple(CAUSES)
    ))
    cause_share: Share | None = field(default=None, metadata=about(
        "Share of what took longer that the cause covers; null: no cause is named"
    ))
    # fmt: on

    @property
    def has_healthy_past(self) -> bool:
        """Whether the cause was held against the time before it, and not against peers while it was there."""
        return self.explanation is None or self.explanation.against == "past"

    def to_json(self) -> dict[str, Any]:
        """As an object of ``infra/docs/verdict-json.md``."""
        values = asdict(self)
        values["iterations"] = list(self.iterations)
        values |= {name: None for name in _MAY_BE_UNKNOWN if not math.isfinite(values[name])}
        values["suspects"] = [{**asdict(s), "ranks": list(s.ranks)} for s in self.suspects]
        if self.explanation is not None:
            values["explanation"] |= {
                name: list(values["explanation"][name]) for name in ("path", "considered", "reported")
            }
        for name in _LEFT_OUT:
            if values[name] is None:
                del values[name]
        return values


_LEFT_OUT: Final = tuple(one.name for one in fields(Verdict) if one.metadata["is_left_out"])
_MAY_BE_UNKNOWN: Final[Mapping[str, Any]] = {
    one.name: one.metadata["known"] for one in fields(Verdict) if one.metadata["known"]
}
"""Numbers that are null in JSON where they are not known, and their rules else.

Here they are NaN then, which no bound of msgspec lets through: a state with such a verdict could not be restored.
"""

MAX_RANKS_NAMED: Final = 80_000
"""Ranks of all suspects together that a verdict names: at up to ten bytes each they fit into a message.
A hang may keep more waiting."""


def bounded(verdict: Verdict) -> Verdict:
    """Return a verdict that fits into a message: of suspects with very many ranks, the first of them are named.

    >>> verdict = Verdict("v", 1, "open", "j", "hang", (0, 5), 1.0, 0.0, None, (), "")
    >>> suspects = (Suspect("gpu", 0, tuple(range(79_999)), 0.5), Suspect("gpu", 5, (5, 6), 0.2))
    >>> [len(one.ranks) for one in bounded(replace(verdict, suspects=suspects)).suspects]
    [79999, 1]
    """
    left, suspects = MAX_RANKS_NAMED, []
    for one in verdict.suspects:
        # One rank each at least: decoding refuses a suspect without any.
        suspects.append(one if len(one.ranks) <= left else replace(one, ranks=one.ranks[: max(left, 1)]))
        left -= len(suspects[-1].ranks)
    return verdict if tuple(suspects) == verdict.suspects else replace(verdict, suspects=tuple(suspects))


def encode_verdict(verdict: Verdict) -> bytes:
    """Encode for the topic ``verdicts``."""
    return encode_json("verdicts", verdict.to_json())


def decode_verdict(value: bytes | None, schema: str = "verdicts") -> Verdict:
    """Decode a message of the topics ``verdicts`` or ``alerts``; raises `RecordError`."""
    values = decode_json(value, schema)
    unknown: dict[str, Any] = {name: math.nan for name in _MAY_BE_UNKNOWN if values.get(name, 0) is None}
    # Null on the wire and NaN in the process: a 0 stands in while rules are checked, which let neither through.
    found: Verdict = checked(values | dict.fromkeys(unknown, 0), Verdict, "", error=RecordError)
    for name, kind in _MAY_BE_UNKNOWN.items():
        checked(getattr(found, name), kind, name, error=RecordError)
    return replace(found, **unknown) if unknown else found


@dataclass(frozen=True, slots=True)
class JudgedIteration:
    """One iteration of a job, and whether it was irregular."""

    job: str
    attempt: int
    iteration: int
    start_ns: int  # earliest start over the ranks, ns since the epoch
    elapsed_ns: int  # time of the iteration: the largest of its ranks'
    # Mean of the window before it; NaN while there is none. While a verdict is open, of the window before that
    # opened: the cost of a fault is held against this.
    reference_ns: float
    phase: str  # ``train``, ``eval`` or ``checkpoint``
    is_irregular: bool | None  # none where the iteration was not judged (warm-up, evaluation, checkpoint)
    ranks_reported: int  # how many ranks sent evidence of it
    verdict_ids: tuple[str, ...] = ()  # verdicts whose cause was seen in it
    # Of an irregular one: the part of its critical path that took most beyond its usual time; None: it was not looked
    # into, all ranks worked longer, or one that logs nothing may have been late
    part: Step | None = None
    # The rank that worked longest beyond the others of its stage, and how much longer, ns; None: not known
    last_rank: int | None = None
    last_ns: float | None = None


def with_first_names(iterations: Iterable[JudgedIteration], revisions: Iterable[Verdict]) -> list[JudgedIteration]:
    """Name verdicts in irregular iterations that they opened from, and in their first: judged when they had no name.

    Their first revisions span them; a detector's verdict, or one that peers show, opens from regular ones as well, a
    hang from one that is not judged. In the database, the view `judged_iterations` does the same.
    """
    any_of = ("custom", *STANDSTILLS)
    first = [
        (one.verdict_id, range(*one.iterations), one.kind in any_of or not one.has_healthy_past)
        for one in revisions if one.revision == 1
    ]  # fmt: skip

    def names(one: JudgedIteration) -> Iterator[str]:
        at = one.iteration
        return (name for name, own, is_any in first if at in own and (one.is_irregular or is_any or at == own.start))

    return [replace(one, verdict_ids=tuple(dict.fromkeys([*one.verdict_ids, *names(one)]))) for one in iterations]


Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """One start of a job is over, by the word of its ranks.

    `reason`: ``finished``, ``restarted`` or ``stopped``. A job that only fell silent has no end.
    """

    job: str
    attempt: int
    reason: str
    time_ns: int | None  # start of its newest iteration; None: it had none


@dataclass(frozen=True, slots=True)
class Judgements:
    """All that one call of ``JobMonitor.advance`` decided, oldest first. The sinks store it."""

    job: str
    announcements: Sequence[Announcement] = ()  # ranks announced since the last call
    iterations: Sequence[JudgedIteration] = ()  # judged iterations
    # Columns, one row per rank and iteration: ``attempt, iteration, rank`` (int64), ``start_ns`` (int64),
    # ``elapsed_ns, work_ns`` (float64; work: the rank's gaps summed), ``operators, late_rows, lost_rows`` (int64),
    # ``score`` (float64, NaN = no opinion: the largest of the detectors' scores), and `evidence.NUMERIC_COLUMNS`
    # (float64, NaN; ``parameters_checksum`` int64, `UNKNOWN`)
    rank_iterations: Columns = field(default_factory=dict)
    # Columns, one row per audit and rank that computed it: ``attempt, iteration, rank`` (int64; who computed),
    # ``start_ns`` (int64, `UNKNOWN`: of the iteration), ``of_rank`` (int64; whose micro-batch), ``checksum`` (int64)
    audits: Columns = field(default_factory=dict)
    # Columns, one row per pause of a rank: ``attempt, iteration, rank`` (int64), ``cause`` (object: str),
    # ``start_ns`` (int64), ``elapsed_ns`` (float64)
    pauses: Columns = field(default_factory=dict)
    # Columns, one row per detector, rank and iteration of which it is worth to know: ``attempt, iteration, rank``
    # (int64), ``start_ns`` (int64, `UNKNOWN`), ``detector`` (object: str), ``score`` (float64; 1: strange begins)
    detector_scores: Columns = field(default_factory=dict)
    # Columns, one row per operator of irregular iterations: ``attempt, iteration, rank`` (int64), ``communicator``
    # (object: str), ``operator`` (object: str), ``sequence, peer`` (int64, `UNKNOWN`), ``start_ns`` (int64,
    # `UNKNOWN`), ``elapsed_ns, size_bytes, gap_ns, wait_ns, transfer_ns, abnormal_ratio`` (float64, NaN; the last:
    # elapsed over the time that it would have taken without the slow part)
    operators: Columns = field(default_factory=dict)
    # Columns, one row per behaviour pattern of iterations that were looked into: ``attempt, iteration, rank``
    # (int64), ``communicator, operator`` (object: str; both empty: the iteration as a whole), ``start_ns`` (int64,
    # `UNKNOWN`: of the iteration), ``share, tx_mean, tx_deviation, rx_mean, rx_deviation`` (float64, NaN),
    # ``differential, unexpected`` (float64, NaN: nobody knows), ``is_abnormal`` (bool), as
    # `detectors.nics.pattern_distances` says
    patterns: Columns = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()  # revisions of verdicts
    ends: Sequence[AttemptEnd] = ()
