"""Evidence rows of one iteration, gathered from many ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streams.evidence import COLUMNS, Evidence
from streams.records import PHASE_UNKNOWN, PHASES, UNKNOWN

Array = np.ndarray


class IterationSpan(NamedTuple):
    """Times of an iteration on one rank, ns: from start to past its end, and the end of its last operator."""

    start_ns: int
    past_ns: int
    last_end_ns: int


@dataclass(frozen=True, slots=True)
class IterationRows:
    """Evidence rows of some ranks in one iteration.

    ``columns`` are the flat ones of the evidence; ``offsets`` of ``commops`` batches of all rows stand one after the
    other, ``offset_counts`` says how many belong to each.
    """

    columns: Mapping[str, Array]
    offsets: Array
    offset_counts: Array

    def __len__(self) -> int:
        return len(self.columns["rank"])

    @property
    def number(self) -> int:
        """The iteration."""
        return int(self.columns["iteration"][0])

    @property
    def phase(self) -> str:
        """What the job did: the phase that any rank gave, else ``train``."""
        phases = self.columns["phase"]
        known = phases[(phases != PHASE_UNKNOWN) & (phases != 0)]
        return PHASES[int(known[0])] if len(known) else PHASES[0]

    @property
    def elapsed_ns(self) -> int:
        """Time of the job's iteration: the largest of its ranks'."""
        return int(self.columns["elapsed_ns"].max())

    @property
    def start_ns(self) -> int:
        """Earliest start over the ranks; `UNKNOWN` if no rank has one."""
        starts = self.columns["start_ns"]
        known = starts[starts != UNKNOWN]
        return int(known.min()) if len(known) else UNKNOWN

    def rank_offsets(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield rank, partition and offsets of each row."""
        ends = np.cumsum(self.offset_counts).tolist()
        begins = [0, *ends[:-1]]
        offsets = self.offsets.tolist()
        ranks, partitions = self.columns["rank"].tolist(), self.columns["partition"].tolist()
        for rank, partition, begin, end in zip(ranks, partitions, begins, ends, strict=True):
            yield rank, partition, tuple(offsets[begin:end])

    def spans(self) -> Iterator[tuple[tuple[int, int], IterationSpan]]:
        """Yield, for each row, rank and iteration with the iteration's times on that rank."""
        names = ("rank", "iteration", "start_ns", "elapsed_ns", "last_end_ns")
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        for rank, iteration, start_ns, elapsed_ns, last_end_ns in rows:
            yield (rank, iteration), IterationSpan(start_ns, start_ns + elapsed_ns, last_end_ns)

    def entries(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield, for each row, rank and iteration with the time at which the rank was free to begin, ns."""
        names = ("rank", "iteration", "entry_ns", "start_ns")
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        for rank, iteration, entry_ns, start_ns in rows:
            yield (rank, iteration), start_ns if entry_ns == UNKNOWN else entry_ns

    def state(self) -> dict[str, Any]:
        """As JSON values and numpy arrays."""
        return {"columns": dict(self.columns), "offsets": self.offsets, "offset_counts": self.offset_counts}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> IterationRows:
        """Restore."""
        return cls(state["columns"], state["offsets"], state["offset_counts"])


def split_by_iteration(evidence: Evidence, is_kept: Array) -> Iterator[IterationRows]:
    """Yield the kept rows of each iteration, in ascending order."""
    numbers = evidence.columns["iteration"]
    owner = np.repeat(np.arange(len(evidence)), evidence.offset_counts)
    for number in np.unique(numbers[is_kept]).tolist():
        chosen = is_kept & (numbers == number)
        yield IterationRows(
            columns={name: evidence.columns[name][chosen] for name in COLUMNS},
            offsets=evidence.offsets[chosen[owner]],
            offset_counts=evidence.offset_counts[chosen],
        )


def join_rows(parts: Sequence[IterationRows]) -> IterationRows:
    """Join rows of one iteration, sorted by rank: so their order of arrival changes nothing."""
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in COLUMNS}
    counts = np.concatenate([part.offset_counts for part in parts])
    offsets = np.split(np.concatenate([part.offsets for part in parts]), np.cumsum(counts)[:-1])
    order = np.argsort(columns["rank"], kind="stable")
    return IterationRows(
        columns={name: column[order] for name, column in columns.items()},
        offsets=np.concatenate([offsets[at] for at in order]),
        offset_counts=counts[order],
    )
