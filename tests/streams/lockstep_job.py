"""A tiny training job whose times can be worked out by hand: ranks work, meet in collectives and send to each other.

Nobody leaves a collective before its last member came and its bytes went over; a recv ends when its bytes are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.records import (
    NUMERICS,
    OPERATOR_CODES,
    PHASE_UNKNOWN,
    PHASES,
    SCHEMAS,
    UNKNOWN,
    Batch,
    Header,
    iteration_columns,
)
from irregulars.producers.trace.directory import Trace

START_NS = 1_800_000_000_000_000_000
US = 1_000
MS = 1_000_000
Body = Callable[["LockstepJob", int], None]
"""What happens in one iteration of a job, by its number."""

Groups = Mapping[str, tuple[str, Sequence[int]]]
"""For each communicator its kind and its ranks."""

WORLD_OF_4: Groups = {"world": ("world", (0, 1, 2, 3))}
TWO_BY_TWO: Groups = {
    "world": ("world", (0, 1, 2, 3)), "tp0": ("tp", (0, 1)), "tp1": ("tp", (2, 3)), "pp0": ("pp", (0, 2)),
    "pp1": ("pp", (1, 3)),
}  # fmt: skip


@dataclass
class LockstepJob:
    """Builds the rows of a job, operator by operator; each rank has its own time, which only goes forward."""

    groups: Groups
    places: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    job: str = "lockstep"
    attempt: int = 1
    clock: str = "shared"
    start_ns: int = START_NS
    has_iteration_rows: bool = True

    def __post_init__(self) -> None:
        self.ranks = sorted({rank for _, ranks in self.groups.values() for rank in ranks})
        self.now_ns = dict.fromkeys(self.ranks, self.start_ns)
        self.rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ranks}
        self.iteration_rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ranks}
        self._sequences: dict[Any, int] = {}
        self._iteration = UNKNOWN
        self._began_ns: dict[int, int] = {}

    def work(self, rank: int, elapsed_ns: int) -> None:
        self.now_ns[rank] += elapsed_ns

    def collective(
        self, group: str, transfer_ns: int, operator: str = "all_reduce", size_bytes: float = 1e6,
        unlogged: Sequence[int] = (),
    ) -> None:  # fmt: skip
        members = self.groups[group][1]
        end_ns = max(self.now_ns[rank] for rank in members) + transfer_ns
        sequence = self._next(group)
        for rank in members:
            if rank not in unlogged:
                self._log(rank, group, operator, sequence, UNKNOWN, self.now_ns[rank], end_ns, size_bytes)
            self.now_ns[rank] = end_ns

    def message(self, group: str, source: int, target: int, transfer_ns: int, *, is_buffered: bool = False) -> None:
        """Send; a buffered send returns at once, another one when its bytes are taken."""
        sequence = self._next((group, source, target))
        sent_ns, posted_ns = self.now_ns[source], self.now_ns[target]
        end_ns = max(sent_ns, posted_ns) + transfer_ns
        self.now_ns[source] = sent_ns + 10 * US if is_buffered else end_ns
        self.now_ns[target] = end_ns
        self._log(source, group, "send", sequence, target, sent_ns, self.now_ns[source], 1e6)
        self._log(target, group, "recv", sequence, source, posted_ns, end_ns, 1e6)

    def iterate(self, numbers: Sequence[int], body: Body, phase: str | None = None) -> None:
        """Run `body` for each iteration, and log its time on each rank."""
        for number in numbers:
            self._iteration = number
            began_ns = dict(self.now_ns)
            body(self, number)
            for rank in self.ranks:
                row = {
                    "iteration": number,
                    "start_ns": began_ns[rank],
                    "elapsed_ns": self.now_ns[rank] - began_ns[rank],
                }
                row |= {"phase": PHASE_UNKNOWN if phase is None else PHASES.index(phase), "tokens": 4096.0}
                self.iteration_rows[rank].append(row)
        self._iteration = UNKNOWN

    def stand(self, ranks: Sequence[int], group: str, sequence: int, iteration: int) -> None:
        """Let ranks enter an operator that does not end."""
        for rank in ranks:
            row = {"communicator": group, "sequence": sequence, "iteration": iteration}
            self.rows[rank].append({**row, "start_ns": self.now_ns[rank]})

    def trace(self) -> Trace:
        return Trace(
            job=self.job, attempt=self.attempt, world_size=len(self.ranks), clock=self.clock, recorded_until_ns=None,
            announcements=tuple(self.announcement(rank) for rank in self.ranks),
            commops={rank: self._operators(rank) for rank in self.ranks if self.rows[rank]},
            iterations={rank: self._iterations(rank) for rank in self.ranks} if self.has_iteration_rows else {},
        )  # fmt: skip

    def announcement(self, rank: int, **changes: Any) -> Announcement:
        values = {
            "job": self.job, "attempt": self.attempt, "rank": rank, "world_size": len(self.ranks),
            "logged_ranks": len(self.ranks), "clock": self.clock,
            "communicators": tuple(
                Communicator(name, kind, tuple(ranks)) for name, (kind, ranks) in self.groups.items() if rank in ranks
            ),
            "sources": ("commops", "iterations") if self.has_iteration_rows else ("commops",),
            **self.places.get(rank, {}),
        }  # fmt: skip
        return Announcement(**(values | changes))

    def _next(self, key: Any) -> int:
        self._sequences[key] = self._sequences.get(key, -1) + 1
        return self._sequences[key]

    def _log(
        self, rank: int, group: str, operator: str, sequence: int, peer: int, start_ns: int, end_ns: int, size: float
    ) -> None:
        self.rows[rank].append(
            {
                "communicator": group,
                "operator": OPERATOR_CODES[operator],
                "sequence": sequence,
                "peer": peer,
                "start_ns": start_ns,
                "elapsed_ns": float(end_ns - start_ns),
                "size_bytes": size,
                "iteration": self._iteration,
            }
        )

    def _operators(self, rank: int) -> Batch:
        return operator_batch(rank, self.rows[rank], job=self.job, attempt=self.attempt)

    def _iterations(self, rank: int) -> Batch:
        return iteration_batch(rank, self.iteration_rows[rank], job=self.job, attempt=self.attempt)


def work_and_meet(work_ns: Callable[[int, int], int], transfer_ns: int = MS) -> Body:
    """An iteration in which ranks work for a time, by its number and the rank, and meet in an all_reduce of all."""

    def body(job: LockstepJob, number: int) -> None:
        for rank in job.ranks:
            job.work(rank, work_ns(number, rank))
        job.collective("world", transfer_ns)

    return body


def meeting(
    ranks: int, iterations: int, work_ns: Callable[[int, int], int], transfer_ns: int = MS, **job: Any
) -> LockstepJob:
    """A job of iterations as `work_and_meet` makes them."""
    made = LockstepJob({"world": ("world", tuple(range(ranks)))}, **job)
    made.iterate(range(iterations), work_and_meet(work_ns, transfer_ns))
    return made


def uneven_ns(number: int, rank: int, step_ns: int) -> int:
    """Work that differs from rank to rank and from iteration to iteration, by up to ten steps."""
    return (number * 3 + rank * 5) % 11 * step_ns


def operator_batch(rank: int, rows: Sequence[Mapping[str, Any]], *, sort: bool = True, **header: Any) -> Batch:
    """One batch of operators, in order of their ends; keys that a row leaves out are unknown."""
    unknown = {"peer": UNKNOWN, "start_ns": UNKNOWN, "elapsed_ns": np.nan, "size_bytes": np.nan, "iteration": UNKNOWN}
    full = [{"operator": 0, "sequence": 0, "communicator": "world", **unknown, **row} for row in rows]
    if sort:
        full.sort(key=_end_ns)
    names = tuple(sorted({row["communicator"] for row in full}))
    coded = [{**row, "communicator": names.index(row["communicator"])} for row in full]
    return _batch("commops", rank, coded, [_end_ns(row) for row in full], {"names": names, **header})


def iteration_batch(rank: int, rows: Sequence[Mapping[str, Any]], **header: Any) -> Batch:
    columns = iteration_columns(*[np.zeros(1)] * 3, np.full(1, PHASE_UNKNOWN))
    unknown = {name: column[0] for name, column in columns.items()}
    full = [{**unknown, **row} for row in rows]
    return _batch("iterations", rank, full, [int(row["start_ns"] + row["elapsed_ns"]) for row in full], header)


def _end_ns(row: Mapping[str, Any]) -> int:
    is_timed = row["start_ns"] != UNKNOWN and np.isfinite(row["elapsed_ns"])
    return row["start_ns"] + int(row["elapsed_ns"]) if is_timed else UNKNOWN


_DTYPES = {"operator": np.uint8, "communicator": np.uint16, "phase": np.uint8}
_FLOATS = frozenset({"elapsed_ns", "size_bytes", "tokens", *NUMERICS[:-1]})


def _batch(
    schema: str, rank: int, rows: Sequence[Mapping[str, Any]], ends_ns: Sequence[int], header: Mapping[str, Any]
) -> Batch:
    dtypes = {name: _DTYPES.get(name, np.float64 if name in _FLOATS else np.int64) for name in SCHEMAS[schema].names}
    columns = {name: np.array([row[name] for row in rows], dtype=dtype) for name, dtype in dtypes.items()}
    values = {"job": "lockstep", "attempt": 1, "watermark_ns": max(ends_ns, default=None), **header}
    if values["watermark_ns"] == UNKNOWN:
        values["watermark_ns"] = None
    return Batch(Header(schema=schema, rank=rank, **values), columns)
