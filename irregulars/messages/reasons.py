"""The reasons of a verdict, in structure: the judge writes them once, and every text and page renders them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final

from irregulars.errors import RecordError
from irregulars.validation import Count, Integer, Name, Number, Rank, about, checked

STEPS: Final = ("work", "transfer", "absence")
"""Kinds of steps: a rank worked and others waited; bytes moved, all partners being there; a rank never came."""

ALTERNATIVES: Final = ("own_work", "one_link", "whole_nic", "its_transfers", "everybody")
"""Alternatives to the first suspect: the work of its ranks; a single one of its ways, or all that its NIC carries;
transfers of a rank that works long; work that takes all ranks longer by the same factor."""


# fmt: off
@dataclass(frozen=True, slots=True)
class Step:
    """One part of the way from the symptom to the cause."""

    what: Name = field(metadata=about(
        "A rank worked and others waited; bytes moved, all partners being there; or a rank never came", words=STEPS
    ))
    rank: Rank = field(metadata=about(
        "Who worked or did not come; of a transfer the sender, or the rank in whose row the time passed"
    ))
    operator: Name = field(metadata=about("In which the time passed, or before which the rank worked"))
    communicator: str | None = field(metadata=about("Of the operator; null: not announced"))
    elapsed_ns: Number | None = field(metadata=about("How long it took; null: it did not end"))
    usual_ns: Number | None = field(metadata=about("What is usual; null: not known"))
    is_accused: bool = field(metadata=about("Whether it is on what the verdict accuses"))
    peer: Rank | None = field(default=None, metadata=about("The receiver, of a message"))
    waiting: Count = field(default=0, metadata=about("How many ranks waited for its end"))
    waited_rank: Rank | None = field(default=None, metadata=about("Which of them waited longest"))
    waited_ns: Number | None = field(default=None, metadata=about("How long that waited"))

    @property
    def has_rank(self) -> bool:
        """Whether it is of one rank or pair: in a collective the time passed in everybody's row."""
        return self.what != "transfer" or self.peer is not None


@dataclass(frozen=True, slots=True)
class Considered:
    """One alternative to the first suspect, and the numbers that rule it out or do not."""

    what: Name = field(metadata=about(
        "The work of its ranks; a single one of its ways, or all that its NIC carries; transfers of a rank that "
        "works long; work that takes all ranks longer",
        words=ALTERNATIVES,
    ))
    is_ruled_out: bool | None = field(metadata=about("null: what was read can't tell"))
    rank: Rank | None = field(default=None, metadata=about(
        "Whose work or transfers were compared; null: those of all"
    ))
    excess_ns: Number | None = field(default=None, metadata=about(
        "By how much longer than usual that took in the typical iteration"
    ))
    usual_ns: Number | None = field(default=None, metadata=about("What is usual"))
    slow: Count | None = field(default=None, metadata=about("How many ways were slow"))
    known: Count | None = field(default=None, metadata=about("Of how many"))


@dataclass(frozen=True, slots=True)
class Reported:
    """One event that the first suspect's device or host reported."""

    time_ns: Integer = field(metadata=about("When, ns since the epoch, its host's clock"))
    rank: Rank = field(metadata=about("A rank that uses the device, or is on the host"))
    # One of `records.EVENT_KINDS`
    kind: Name = field(metadata=about(
        "What it is: an error of a GPU, memory errors, clocks held down, a link down, up or with new errors, PCIe, "
        "out of memory, a process that ended, another state of the node"
    ))
    device: Name | None = field(metadata=about("Its name on its host; null: the host itself"))
    code: Integer | None = field(default=None, metadata=about(
        "Number of an XID, growth of a counter, exit status; null: none"
    ))
    detail: Name | None = field(default=None, metadata=about("What more is known; null: nothing"))
    times: Count = field(default=1, metadata=about("How often it was reported"))


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a verdict is as it is; `Verdict.explanation`."""

    iteration: Integer = field(metadata=about(
        "The iteration that is shown: its time is the median of those with the cause"
    ))
    elapsed_ns: Number | None = field(metadata=about("How long it took; null: it did not end"))
    usual_ns: Number | None = field(metadata=about("What is usual; null: not known"))
    against: Name = field(metadata=about(
        "What says what is usual: the job's own past, or peers in the same iterations", words=("past", "peers")
    ))
    delta: Number | None = field(default=None, metadata=about("The δ in force"))
    # At most `MOST_STEPS`; empty: no operators were read
    path: tuple[Step, ...] = field(default=(), metadata=about("From the symptom to the cause"))
    considered: tuple[Considered, ...] = field(default=(), metadata=about("Alternatives to the first suspect"))
    reported: tuple[Reported, ...] = field(default=(), metadata=about(
        "What the first suspect's device or host reported, the weightiest first"
    ))
    # fmt: on

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
