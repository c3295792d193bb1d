"""The reasons of a verdict, in structure: the judge writes them once, and every text and page renders them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from irregulars.errors import RecordError
from irregulars.validation import Count, Integer, Name, Number, Rank, checked

STEPS: Final = ("work", "transfer", "absence")
"""Kinds of steps: a rank worked and others waited; bytes moved, all partners being there; a rank never came."""

ALTERNATIVES: Final = ("own_work", "one_link", "whole_nic", "its_transfers", "everybody")
"""Alternatives to the first suspect: the work of its ranks; a single one of its ways, or all that its NIC carries;
transfers of a rank that works long; work that takes all ranks longer by the same factor."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the way from the symptom to the cause.

    `rank`, `peer`: who worked, or in whose row the time passed; the other end of a send or recv.
    """

    what: Name  # one of `STEPS`
    rank: Rank
    # operator, communicator: In which the time passed, or before which the rank worked
    operator: Name
    communicator: str | None
    # elapsed_ns, usual_ns: How long it took, and its usual time; None: not known
    elapsed_ns: Number | None
    usual_ns: Number | None
    is_accused: bool  # whether it is on the device that the verdict accuses
    peer: Rank | None = None
    # waiting, waited_rank, waited_ns: How many ranks waited for its end; the one of them that waited longest, and how
    # long
    waiting: Count = 0
    waited_rank: Rank | None = None
    waited_ns: Number | None = None

    @property
    def has_rank(self) -> bool:
        """Whether it is of one rank or pair: in a collective the time passed in everybody's row."""
        return self.what != "transfer" or self.peer is not None


@dataclass(frozen=True, slots=True)
class Considered:
    """One alternative to the first suspect, and the numbers that rule it out or do not."""

    what: Name  # one of `ALTERNATIVES`
    is_ruled_out: bool | None  # none: the operators that were read can't tell
    rank: Rank | None = None  # whose work or transfers were held against their usual; None: all ranks'
    # excess_ns, usual_ns: By how much longer than usual they took in the typical iteration; None: not known
    excess_ns: Number | None = None
    usual_ns: Number | None = None
    # slow, known: How many lanes were slow, and how many were compared
    slow: Count | None = None
    known: Count | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """One event that the first suspect's device or host reported."""

    time_ns: Integer  # ns since the epoch
    rank: Rank
    kind: Name  # one of `records.EVENT_KINDS`
    device: Name | None  # None: the host
    code: Integer | None = None
    detail: Name | None = None
    times: Count = 1  # how often it was reported


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a verdict is as it is; `Verdict.explanation`."""

    # The iteration that is shown: of those in which the cause was seen the one whose time is the median
    iteration: Integer
    # elapsed_ns, usual_ns: How long it took, and the usual time; None: it did not end, or not known
    elapsed_ns: Number | None
    usual_ns: Number | None
    against: Name  # origin of the usual time: the job's own ``past``, or ``peers`` in the same iterations
    delta: Number | None = None  # the δ in force
    path: tuple[Step, ...] = ()  # from the symptom to the cause, at most `MOST_STEPS`; empty: no operators were read
    considered: tuple[Considered, ...] = ()  # alternatives to the first suspect
    reported: tuple[Reported, ...] = ()  # events that its device reported, the weightiest first

    @property
    def ranks(self) -> set[int]:
        """All ranks that are named."""
        steps = (rank for one in self.path for rank in (one.rank, one.peer, one.waited_rank))
        return {rank for rank in (*steps, *(one.rank for one in self.considered)) if rank is not None}


MOST_STEPS: Final = 5
"""Steps that are kept: a person follows no longer chain, and with them an explanation stays far below 8 KB."""


def encode_reasons(reasons: Reasons | None) -> str | None:
    """Write reasons as JSON, for a column of a table."""
    return None if reasons is None else json.dumps(asdict(reasons), separators=(",", ":"), allow_nan=False)


def decode_reasons(text: str | None) -> Reasons | None:
    """Read JSON that `encode_reasons` wrote; raises `RecordError` where it is none."""
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise RecordError(f"explanation must be JSON; got {text[:80]!r}") from error
    found: Reasons = checked(values, Reasons, "explanation", error=RecordError)
    return found
