"""Calls of small made-up jobs: written as their ranks issue them, so that the truth is known by construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from irregulars.messages.records import OPERATOR_CODES, UNKNOWN

Array = np.ndarray
MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """One operator of one rank; ``work_ms`` lies before it."""

    communicator: int
    operator: str
    size_bytes: int = 1 << 20
    peer: int | None = None
    work_ms: float = 1.0


def columns_of(iterations: Sequence[Sequence[Sequence[Call]]], first: int = 0) -> dict[str, Array]:
    """Columns of a job: for each iteration, for each rank its calls; iterations before `first` are set-up."""
    rows: list[tuple[int, ...]] = []
    sequences: Counter[tuple[int, ...]] = Counter()
    now_ns: Counter[int] = Counter()
    for number, ranks in enumerate(iterations):
        for rank, calls in enumerate(ranks):
            for call in calls:
                peer = UNKNOWN if call.peer is None else call.peer
                series = (rank, call.communicator, peer, 1 if call.operator == "recv" else 0)
                if call.peer is None:
                    series = (rank, call.communicator)
                sequences[series] += 1
                now_ns[rank] += round(call.work_ms * MS)
                truth = number - first if number >= first else UNKNOWN
                code = OPERATOR_CODES[call.operator]
                started = peer, 10**18 + now_ns[rank], call.size_bytes, truth
                rows.append((rank, call.communicator, code, sequences[series], *started))
                now_ns[rank] += MS // 10
    names = ("rank", "communicator", "operator", "sequence", "peer", "start_ns", "size_bytes", "iteration")
    columns = dict(zip(names, np.array(rows, dtype=np.int64).T, strict=True))
    columns["size_bytes"] = columns["size_bytes"].astype(np.float64)
    columns["elapsed_ns"] = np.full(len(rows), MS / 10)
    return columns


def taken(columns: dict[str, Array], chosen: Array) -> dict[str, Array]:
    return {name: column[chosen] for name, column in columns.items()}


def border_errors(columns: dict[str, Array], found: Array) -> Array:
    """By how many operators of its rank each first and last operator of an iteration was missed, at most.

    Numbers may begin elsewhere: they are compared from the shift that most operators agree on.
    """
    truth = columns["iteration"]
    values, truth_at = np.unique(truth[truth != UNKNOWN], return_inverse=True)
    at = np.full(len(truth), -1)
    at[truth != UNKNOWN] = truth_at
    both = (at >= 0) & (found != UNKNOWN)
    shifts, counts = np.unique(found[both] - at[both], return_counts=True)
    moved = np.where(found == UNKNOWN, -1, found - shifts[counts.argmax()])
    errors = []
    for rank in np.unique(columns["rank"]):
        rows = np.flatnonzero(columns["rank"] == rank)
        rows = rows[np.lexsort((columns["sequence"][rows], columns["start_ns"][rows]))]
        for number in range(len(values)):
            true, own = np.flatnonzero(at[rows] == number), np.flatnonzero(moved[rows] == number)
            if len(true) and len(own):
                errors += [abs(int(true[0] - own[0])), abs(int(true[-1] - own[-1]))]
            elif len(true):
                errors.append(len(rows))
    return np.array(errors)
