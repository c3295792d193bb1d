"""Evidence rows of one iteration, gathered from many ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import find_sorted, group_rows, stable_order
from irregulars.detectors.arrays.runs import is_ascending, places_in_runs, run_starts
from irregulars.detectors.blame.observation import ExcessPause
from irregulars.detectors.blame.own_time import PauseTimes, excess_pauses, time_apart
from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.path.ranks_to_read import Summaries
from irregulars.detectors.verdicts.slow_checkpoints import Writes
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.messages.evidence import Evidence, EvidenceRows, concatenate
from irregulars.messages.records import PAUSES, PHASE_UNKNOWN, PHASES, UNKNOWN, Batch
from irregulars.state_codec import Part

_MOST: Final = 0.5
_WRITES: Final = PAUSES.index("checkpoint_write")


class IterationSpan(NamedTuple):
    """Times of an iteration on one rank, ns: from start to past its end, and the end of its last operator."""

    start_ns: int
    past_ns: int
    last_end_ns: int


@dataclass(frozen=True, slots=True)
class IterationRows(EvidenceRows):
    """Evidence rows of some ranks in one iteration, with the values that the judge derives from them."""

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
        """Whether the operators of most ranks have no start time."""
        return bool(np.mean(self.columns["last_end_ns"] == UNKNOWN) > _MOST)

    @property
    def phase(self) -> str:
        """Phase of the job: the one that any rank gave, else ``train``."""
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

        Where no source marks iterations, one begins with its first operator, and a rank's work before that is in
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

    @property
    def ends_ns(self) -> Ints:
        """End of the iteration on each rank, by its host's clock; as late as can be where it is not known."""
        start_ns = self.columns["start_ns"].astype(np.int64)
        ends_ns: Ints = np.where(start_ns == UNKNOWN, np.iinfo(np.int64).max, start_ns + self.columns["elapsed_ns"])
        return ends_ns

    @property
    def has_patterns(self) -> bool:
        """Whether any rank has a behaviour pattern: its NIC was sampled."""
        return self.patterns.has_entries

    def pause_times(self, before: IterationRows | None) -> PauseTimes:
        """Pauses of each rank from when it was free to begin until its last operator; others wait for those alone.

        `before`: the iteration before, whose pauses behind its last operator count here; None: not known.
        """
        rank, own = self.columns["rank"], self.columns
        from_ns = np.where(own["entry_ns"] != UNKNOWN, own["entry_ns"], own["start_ns"])
        past_ns = np.where(own["last_end_ns"] != UNKNOWN, own["last_end_ns"], self.ends_ns)
        parts = [(one.columns["rank"], one.pauses) for one in (before, self) if one is not None and one.pauses]
        if not parts:
            return PauseTimes(rank, rank[:0], rank[:0], np.empty(0))
        of, cause, start_ns, elapsed_ns = (
            np.concatenate(columns)
            for columns in zip(
                *((p.of_entries(r), p["cause"], p["start_ns"], p["elapsed_ns"]) for r, p in parts), strict=True
            )
        )
        # The iteration before may have had ranks that this one has no row of.
        at, is_here = find_sorted(rank, of)
        of, cause, start_ns, elapsed_ns, at = (column[is_here] for column in (of, cause, start_ns, elapsed_ns, at))
        begin_ns, end_ns = np.maximum(start_ns, from_ns[at]), np.minimum(start_ns + elapsed_ns, past_ns[at])
        # Threads that load data wait at the same time: pauses of one cause may overlap.
        inside_ns = time_apart(group_rows([at, cause])[0], begin_ns, end_ns)
        return PauseTimes(rank, of, cause, inside_ns.astype(np.float64))

    def writes(self, usual: Sequence[IterationRows], before: Sequence[IterationRows] = ()) -> Writes:
        """How long each rank was in its own time, beyond that of regular iterations: writing its checkpoint.

        A rank that is slow now, in the iterations `before`, writes no longer for that.
        Where ranks report writing among their pauses, no longer than they report.
        """
        rank: Ints = self.columns["rank"].astype(np.int64)
        usual_ns = [_median_own_ns(own, rank) for own in (usual, [one for one in before if one.phase == "train"])]
        own_ns = self._own_ns - np.maximum(*usual_ns)
        # Ranks may report other pauses alone: then none of them says how long it wrote.
        if self.pauses and (is_write := self.pauses["cause"] == _WRITES).any():
            at, _ = find_sorted(rank, self.pauses.of_entries(self.columns["rank"])[is_write])
            told_ns = np.bincount(at, self.pauses["elapsed_ns"][is_write].astype(np.float64), len(rank))
            # Own time may also hold other work; a rank that reports no writing wrote for 0 ns.
            own_ns = np.minimum(own_ns, told_ns)
        return Writes(rank, np.maximum(own_ns, 0.0))

    @property
    def _own_ns(self) -> Floats:
        """Time of each rank outside its operators, those after the last one included, ns."""
        last_ns = self.columns["last_end_ns"]
        is_known = (last_ns != UNKNOWN) & (self.columns["start_ns"] != UNKNOWN)
        tail_ns = np.where(is_known, np.maximum(self.ends_ns - last_ns, 0), 0)
        own_ns: Floats = self.columns["work_ns"] + tail_ns.astype(np.float64)
        return own_ns

    def only(self, ranks: Collection[int]) -> IterationRows:
        """Return the rows of some ranks."""
        wanted = np.unique(np.fromiter(ranks, dtype=np.int64, count=len(ranks)))
        rank = self.columns["rank"]
        if not is_ascending(rank):
            return self.take(np.isin(rank, wanted))
        # A few of many: looking these up is cheaper than asking each row.
        first, past = (np.searchsorted(rank, wanted, side=side) for side in ("left", "right"))
        return self.take(np.repeat(first, past - first) + places_in_runs(past - first))

    def summaries(self, codes: Mapping[str, int]) -> Summaries:
        """Class summaries, with the job's codes of communicators; those on communicators without one left out.

        A communicator that a job makes after its announcement has none before an operator on it is read.
        """
        table = np.array([*(codes.get(name, UNKNOWN) for name in self.names), UNKNOWN], dtype=np.int64)
        communicator = table[self.classes["communicator"]]
        names = ("operator", "peer", "count", "shortest_ns")
        rank = self.classes.of_entries(self.columns["rank"])
        found = Summaries(rank, communicator, *(self.classes[name] for name in names))
        return found.take(communicator != UNKNOWN)

    def behaviour(self, codes: Mapping[str, int]) -> Patterns:
        """Behaviour patterns, with the job's codes of communicators; those on communicators without one left out."""
        # The last entry is for patterns of the iteration as a whole, whose communicator is -1.
        table = np.array([*(codes.get(name, UNKNOWN) for name in self.names), -1], dtype=np.int64)
        columns = dict(self.patterns.columns) | {"communicator": table[self.patterns["communicator"]]}
        columns["rank"] = self.patterns.of_entries(self.columns["rank"])
        is_known = columns["communicator"] != UNKNOWN
        return Patterns(**{name: column[is_known] for name, column in columns.items()})

    def rank_offsets(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield rank, partition and offsets of each row."""
        ranks, partitions = self.columns["rank"].tolist(), self.columns["partition"].tolist()
        for rank, partition, offsets in zip(ranks, partitions, self.offsets.lists("offset"), strict=True):
            yield rank, partition, tuple(offsets)

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


def parts_of(iterations: Iterable[IterationRows]) -> tuple[Part[IterationRows], ...]:
    """Return iterations as parts of a state: nobody changes their rows."""
    return tuple(Part(rows, rows.size_bytes) for rows in iterations)


def split_by_iteration(evidence: Evidence, is_kept: Flags) -> Iterator[IterationRows]:
    """Yield the kept rows of each iteration, in ascending order."""
    own = {field.name: getattr(evidence, field.name) for field in fields(EvidenceRows)}
    whole = IterationRows(**own)
    kept = np.flatnonzero(is_kept)
    order = kept[stable_order(evidence.columns["iteration"][kept])]
    if len(order):
        for rows in np.split(order, run_starts(evidence.columns["iteration"][order])[1:]):
            yield whole.take(rows)


def _median_own_ns(usual: Sequence[IterationRows], ranks: Ints) -> Floats:
    """Return the median own time of these ranks in regular iterations, ns; the ranks' median where one is in none."""
    known = np.full((len(usual), len(ranks)), np.nan)
    for row, one in zip(known, usual, strict=True):
        at, is_here = find_sorted(one.columns["rank"], ranks)
        row[is_here] = one._own_ns[at[is_here]]
    if not len(usual) or np.isnan(known).all():
        return np.zeros(len(ranks))
    is_unknown = np.isnan(known).all(axis=0)
    known[:, is_unknown] = np.nanmedian(known)
    median_ns: Floats = np.nanmedian(known, axis=0)
    return median_ns


def pauses_beyond_usual(
    rows: Sequence[IterationRows], usual: Sequence[IterationRows]
) -> tuple[ExcessPause, ...] | None:
    """Return by how much ranks paused too long in the last of these iterations; None: no rank reports pauses.

    `rows`: the newest iterations. `usual`: regular ones, oldest first; none: peers give the usual pauses.
    """
    if not any(one.pauses for one in (*rows, *usual)):
        return None
    now, *known = (
        own[-1].pause_times(own[-2] if len(own) > 1 and own[-2].number == own[-1].number - 1 else None)
        for own in (rows, *(usual[: at + 1] for at in range(len(usual))))
    )
    return excess_pauses(now, known)


def join_rows(parts: Sequence[IterationRows]) -> IterationRows:
    """Join rows of one iteration, sorted by rank: so their order of arrival changes nothing."""
    whole = parts[0] if len(parts) == 1 else concatenate(parts)
    rank = whole.columns["rank"]
    return whole if is_ascending(rank) else whole.take(stable_order(rank))


# --------------------------------------------------------------------------------------------------------------------
# Where the operators of an iteration lie in the log, from which they are read back when they are needed.


@dataclass(frozen=True, slots=True)
class Span:
    """Where the operators of one rank in some iterations lie: offsets in one partition of ``commops``."""

    rank: int
    partition: int
    offsets: tuple[int, ...]


ReadBack = Callable[[Sequence[Span]], Sequence[Batch]]
"""Returns the batches of some spans; those that the log no longer holds are left out."""


def spans_of(iterations: Iterable[IterationRows]) -> list[Span]:
    """Return the spans of all ranks in these iterations; a batch that holds several of them is named once."""
    found: dict[tuple[int, int], set[int]] = {}
    for rows in iterations:
        for rank, partition, offsets in rows.rank_offsets():
            found.setdefault((rank, partition), set()).update(offsets)
    return [Span(rank, partition, tuple(sorted(offsets))) for (rank, partition), offsets in sorted(found.items())]
