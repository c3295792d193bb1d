"""Evidence rows of one iteration, gathered from many ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.path.ranks_to_read import Summaries
from irregulars.streams.messages.evidence import COLUMNS, Evidence, code_table, join_coded
from irregulars.streams.messages.records import PHASE_UNKNOWN, PHASES, UNKNOWN

Array = np.ndarray


_MOST: Final = 0.5


class IterationSpan(NamedTuple):
    """Times of an iteration on one rank, ns: from start to past its end, and the end of its last operator."""

    start_ns: int
    past_ns: int
    last_end_ns: int


@dataclass(frozen=True, slots=True)
class IterationRows:
    """Evidence rows of some ranks in one iteration.

    ``columns`` are the flat ones of the evidence; ``offsets`` of ``commops`` batches of all rows stand one after the
    other, ``offset_counts`` says how many belong to each. Likewise ``classes`` and ``patterns``, whose communicators
    are indices into ``names``.
    """

    columns: Mapping[str, Array]
    offsets: Array
    offset_counts: Array
    names: tuple[str, ...] = ()
    classes: Mapping[str, Array] = field(default_factory=dict)
    class_counts: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    patterns: Mapping[str, Array] = field(default_factory=dict)
    pattern_counts: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.columns["rank"])

    @property
    def number(self) -> int:
        """The iteration."""
        return int(self.columns["iteration"][0])

    @property
    def work_ns(self) -> dict[int, float]:
        """Sum of the gaps between each rank's operators."""
        return dict(zip(self.columns["rank"].tolist(), self.columns["work_ns"].tolist(), strict=True))

    @property
    def is_untimed(self) -> bool:
        """Whether most ranks' operators do not say when they began."""
        return bool(np.mean(self.columns["last_end_ns"] == UNKNOWN) > _MOST)

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
    def period_ns(self) -> float:
        """Time from when its ranks were free to begin until it ended; at least `elapsed_ns`.

        Where no source marks iterations, one begins with its first operator, and what a rank works before that is in
        neither iteration's time: in data-parallel jobs most of it.
        """
        free_ns, start_ns = self.columns["entry_ns"], self.columns["start_ns"]
        is_known = (free_ns != UNKNOWN) & (start_ns != UNKNOWN)
        before_ns = np.where(is_known, np.maximum(start_ns - free_ns, 0), 0)
        return max(float(np.median(self.columns["elapsed_ns"] + before_ns)), float(self.elapsed_ns))

    @property
    def start_ns(self) -> int:
        """Earliest start over the ranks; `UNKNOWN` if no rank has one."""
        starts = self.columns["start_ns"]
        known = starts[starts != UNKNOWN]
        return int(known.min()) if len(known) else UNKNOWN

    def only(self, ranks: Collection[int]) -> IterationRows:
        """Rows of some ranks."""
        return _taken(self, np.flatnonzero(np.isin(self.columns["rank"], list(ranks))))

    def summaries(self, codes: Mapping[str, int]) -> Summaries:
        """Class summaries, with the job's codes of communicators."""
        table = np.array([codes[name] for name in self.names] or [0], dtype=np.int64)
        names = ("operator", "peer", "count", "shortest_ns")
        rank = np.repeat(self.columns["rank"], self.class_counts)
        return Summaries(rank, table[self.classes["communicator"]], *(self.classes[name] for name in names))

    def behaviour(self, codes: Mapping[str, int]) -> Patterns:
        """Behaviour patterns, with the job's codes of communicators; those on communicators without one left out."""
        table = np.array([*(codes.get(name, UNKNOWN) for name in self.names), -1], dtype=np.int64)
        columns = dict(self.patterns) | {"communicator": table[self.patterns["communicator"]]}
        columns["rank"] = np.repeat(self.columns["rank"], self.pattern_counts)
        is_known = columns["communicator"] != UNKNOWN
        return Patterns(**{name: column[is_known] for name, column in columns.items()})

    def rank_offsets(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield rank, partition and offsets of each row."""
        ends = np.cumsum(self.offset_counts).tolist()
        begins = [0, *ends][:-1]
        offsets = self.offsets.tolist()
        ranks, partitions = self.columns["rank"].tolist(), self.columns["partition"].tolist()
        for rank, partition, begin, end in zip(ranks, partitions, begins, ends, strict=True):
            yield rank, partition, tuple(offsets[begin:end])

    def spans(self) -> Iterator[tuple[tuple[int, int], IterationSpan]]:
        """Yield, for each row, rank and iteration with the iteration's times on that rank."""
        names = ("rank", "iteration", "start_ns", "elapsed_ns", "last_end_ns", "unended")
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        for rank, iteration, start_ns, elapsed_ns, last_end_ns, unended in rows:
            past_ns = start_ns + elapsed_ns
            if unended:  # as far as is known it ends where its last operator begins, and that one is of it
                past_ns = max(past_ns, last_end_ns + 1)
            yield (rank, iteration), IterationSpan(start_ns, past_ns, last_end_ns)

    def entries(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield, for each row, rank and iteration with the time at which the rank was free to begin, ns."""
        names = ("rank", "iteration", "entry_ns", "start_ns")
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        for rank, iteration, entry_ns, start_ns in rows:
            yield (rank, iteration), start_ns if entry_ns == UNKNOWN else entry_ns

    def state(self) -> dict[str, Any]:
        """As JSON values and numpy arrays."""
        return {
            "columns": dict(self.columns),
            "offsets": self.offsets,
            "offset_counts": self.offset_counts,
            "names": list(self.names),
            "classes": dict(self.classes),
            "class_counts": self.class_counts,
            "patterns": dict(self.patterns),
            "pattern_counts": self.pattern_counts,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> IterationRows:
        """Restore."""
        return cls(**{**state, "names": tuple(state["names"])})


def split_by_iteration(evidence: Evidence, is_kept: Array) -> Iterator[IterationRows]:
    """Yield the kept rows of each iteration, in ascending order."""
    whole = IterationRows(
        evidence.columns,
        evidence.offsets,
        evidence.offset_counts,
        evidence.names,
        evidence.classes,
        evidence.class_counts,
        evidence.patterns,
        evidence.pattern_counts,
    )
    kept = np.flatnonzero(is_kept)
    order = kept[np.argsort(evidence.columns["iteration"][kept], kind="stable")]
    if len(order):
        begins = np.flatnonzero(np.diff(evidence.columns["iteration"][order])) + 1
        for rows in np.split(order, begins):
            yield _taken(whole, rows)


def join_rows(parts: Sequence[IterationRows]) -> IterationRows:
    """Join rows of one iteration, sorted by rank: so their order of arrival changes nothing."""
    whole = parts[0] if len(parts) == 1 else _concatenated(parts)
    rank = whole.columns["rank"]
    return whole if np.all(rank[1:] >= rank[:-1]) else _taken(whole, np.argsort(rank, kind="stable"))


def _concatenated(parts: Sequence[IterationRows]) -> IterationRows:
    codes = {name: code for code, name in enumerate(dict.fromkeys(name for part in parts for name in part.names))}
    tables = [code_table(part.names, codes) for part in parts]
    return IterationRows(
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in COLUMNS},
        offsets=np.concatenate([part.offsets for part in parts]),
        offset_counts=np.concatenate([part.offset_counts for part in parts]),
        names=tuple(codes),
        classes=join_coded([part.classes for part in parts], tables),
        class_counts=np.concatenate([part.class_counts for part in parts]),
        patterns=join_coded([part.patterns for part in parts], tables),
        pattern_counts=np.concatenate([part.pattern_counts for part in parts]),
    )


def _taken(rows: IterationRows, at: Array) -> IterationRows:
    """Take rows by their places, in that order."""
    offsets, classes = _spread(rows.offset_counts, at), _spread(rows.class_counts, at)
    patterns = _spread(rows.pattern_counts, at)
    return IterationRows(
        columns={name: column[at] for name, column in rows.columns.items()},
        offsets=rows.offsets[offsets],
        offset_counts=rows.offset_counts[at],
        names=rows.names,
        classes={name: column[classes] for name, column in rows.classes.items()},
        class_counts=rows.class_counts[at],
        patterns={name: column[patterns] for name, column in rows.patterns.items()},
        pattern_counts=rows.pattern_counts[at],
    )


def _spread(counts: Array, at: Array) -> Array:
    """Places of the values of some rows, where row n has `counts[n]` values that stand after those of row n - 1."""
    ends = np.cumsum(counts)
    own = counts[at]
    before = np.cumsum(own) - own
    return np.repeat(ends[at] - own - before, own) + np.arange(int(own.sum()))
