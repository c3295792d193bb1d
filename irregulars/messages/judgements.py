"""Results of a JobMonitor: judged iterations, the operators of irregular ones, and the revisions of verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement
from irregulars.messages.kinds import DEVICE_KINDS
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
    checked,
)

DEVICES: Final = tuple(DEVICE_KINDS)
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


@dataclass(frozen=True, slots=True)
class Suspect:
    """One device that may be to blame; suspects of a verdict are alternatives."""

    device: Name  # one of `DEVICES`, or a newer worker's own word
    # rank, ranks: The first of the ranks that the device carries, and all of them (a link: the sender first)
    rank: Rank
    ranks: Annotated[tuple[Rank, ...], Meta(min_length=1)]
    probability: Share  # the chance that this one is a true cause, 0 to 1
    peer: Rank | None = None  # the receiving rank of a link
    host: Name | None = None
    gpu: Count | None = None
    nic: Name | None = None
    switch: Name | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One revision of one decision; the fields are those of ``infra/docs/verdict-json.md``.

    Its words (state, kind, device, reason, event, severity) may be those of a newer worker.
    """

    verdict_id: VerdictId
    revision: Count
    state: Name
    job: JobName
    kind: Name
    # Range ``(first, past the last)`` of the iterations in which the cause was seen so far
    iterations: tuple[Integer, Integer]
    # Iteration time with the cause over the usual one: a ratio, and not the setting δ; NaN, in JSON null: not known
    delta: float
    lost_s: float  # iteration seconds lost so far
    communicator: str | None
    suspects: tuple[Suspect, ...]
    evidence: str
    attempt: Integer = 0  # start number of the job
    # Ranks of the job, one GPU each: `lost_s` times this are the GPU seconds lost
    world_size: Annotated[int, Meta(ge=0, le=MAX_RANK)] = 0
    time_ns: Integer | None = None  # when the cause was last seen: start of that iteration, ns since the epoch
    # Why it closed: ``recovered``, ``finished``, ``restarted``, ``silent``, ``stopped`` (who sent for its ranks was
    # ended before they were); `None` while open
    close_reason: Name | None = None
    # The event of this revision: ``opened``, ``changed`` (another kind or first suspect), ``raised`` (more urgent
    # than published before), ``continued`` (more of the same), ``closed``
    event: Name = "opened"
    # One of `SEVERITIES`, by the time that is lost (`detectors.verdicts.severity`); the worst so far. None: not
    # known.
    severity: Name | None = None
    # Share of the lost time that would come back if the first suspect were as usual, 0 to 1, by replay. None: not
    # known.
    recovers_ratio: Share | None = None
    # Name of the detector that opened it, of kind ``custom``; None, and not in the JSON, for all other kinds
    detector: Name | None = None
    # By which thresholds it was judged, as far as people changed them while workers ran; None, and not in the JSON,
    # where they changed none
    thresholds: Mapping[str, Number] | None = None
    # Seconds of the job's time from the first to the newest iteration in which the cause was seen, lost ones
    # included; None, and not in the JSON, for hangs, and of older workers
    lasted_s: NotNegative | None = None
    # The reasons, in structure; None, and not in the JSON, where the judge looked into no iteration
    explanation: Reasons | None = None
    layer: Name = "unknown"  # where the cause lies, one of `kinds.LAYERS`
    # The cause of the lost time, one of `kinds.CAUSES`, and the share of the excess that it covers; None: no cause
    # that is known covers enough
    cause: Name | None = None
    cause_share: Share | None = None

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
        for name in ("detector", "thresholds", "lasted_s", "explanation"):
            if values[name] is None:
                del values[name]
        return values


_LostSeconds = Annotated[float, Meta(ge=0, le=1e18)]
"""Times the ranks of a job this is still a finite number of GPU-seconds."""

_MAY_BE_UNKNOWN: Final[Mapping[str, Any]] = {"delta": Number, "lost_s": _LostSeconds}
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
