"""Whether a job that ended or fell silent hangs in an operator, and when a verdict on a hang closes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.judging.iteration_rows import IterationRows, ReadBack, join_rows
from irregulars.detectors.judging.operator_reader import OperatorReader
from irregulars.detectors.path.find_hang import Hang, find_hang, lost_shares
from irregulars.dtypes import Column
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import RECV, ROOTED, SEND


class HangWatch:
    """Keeps the newest iterations of a job, and looks in them for operators that never ended.

    `newest`: the newest iterations of each rank, oldest first. Ranks may be some iterations apart: one that stops
    holds up its pipeline at once, and the others where gradients are summed next. `hung`: the last iteration when a
    hang was found; None while a hang of the newest iterations would be news. `told`: that iteration and the accused
    ranks, of the last hang that was published.
    """

    def __init__(self) -> None:
        self.newest: deque[IterationRows] = deque()
        self.hung: int | None = None
        self.told: tuple[int | None, tuple[int, ...]] = (None, ())

    def add(self, rows: IterationRows) -> None:
        """Take in the next iteration."""
        self.newest.append(rows)
        # A rank that left the job never gets newer iterations: then the bound alone drops the oldest.
        while len(self.newest) > IRREGULAR.level_iterations or self._is_past():
            self.newest.popleft()

    def _is_past(self) -> bool:
        """Whether each rank of the oldest iteration has enough newer ones."""
        oldest, *newer = (one.columns["rank"] for one in self.newest)
        if len(newer) < JOB.another:
            return False
        if all(np.array_equal(oldest, ranks) for ranks in newer[-JOB.another :]):
            return True  # nearly always so, and quickly checked
        ranks, iterations = np.unique(np.concatenate(newer), return_counts=True)
        return bool(np.isin(oldest, ranks[iterations >= JOB.another]).all())

    def add_late(self, rows: IterationRows) -> None:
        """Take in the rows of ranks that came after their iteration was judged.

        If these ranks hang in an operator too, they are not those for which the others wait, although a published
        hang may have accused them: then it is to be looked for again.
        """
        for at, known in enumerate(self.newest):
            if known.number == rows.number and rows.columns["unended"].any():
                self.newest[at], self.hung = join_rows([known, rows]), None

    @property
    def has_unended(self) -> bool:
        """Whether iterations that came after the last hang that was found hold operators that never ended."""
        newest = (rows for rows in self.newest if self.hung is None or rows.number > self.hung)
        return any(rows.columns["unended"].any() for rows in newest)

    def look(
        self, reader: OperatorReader, read_back: ReadBack, stood_since_ns: float
    ) -> tuple[Hang, dict[str, Column]] | None:
        """Return the hang that the newest iterations show, and the operators in which it was found.

        None if there is none, or the same one was published.

        `stood_since_ns`: a hang of which neither rank nor operator is known counts if it began before, ns since the
        epoch: for a moment, a job that was killed at its work looks the same.
        """
        if not self.has_unended:
            return None
        columns = reader.read(self.newest, read_back)
        # The share of its rows that each rank that logs has lost; where it is small, no single row is missing
        in_newest, newly = lost_shares(columns), _newly_lost_shares(self.newest)
        announced = reader.announcements
        operators_per_rank = max(reader.traffic.flowed / max(len(announced), 1), 1.0)
        # A rank without any row in the newest iterations (1.0) may have lost all of them. If it took part in a
        # collective of one that is over, it has, whatever its source counted: a source that dies counts no more.
        # Of the iteration that hangs, a rank that stopped outside of operators has sent nothing yet.
        over = [rows.number for rows in self.newest if not rows.columns["unended"].any()]
        unseen = _ranks_of_ended(columns, reader.topology.members, over) - in_newest.keys()
        lost = {
            rank: max(
                newly.get(rank, 0.0),
                in_newest.get(rank, 1.0)
                if one.lost_rows is None or rank in unseen
                else one.lost_rows / operators_per_rank,
            )
            for rank, one in announced.items()
            if one.is_logged
        }
        trusted = {rank for rank, share in lost.items() if share <= JOB.negligible}
        hang = find_hang(columns, reader.topology, trusted, {rank for rank in trusted if lost[rank] > 0})
        if hang is None:
            return None
        # A mere standstill also shows where a job is killed at its work: it must be old enough.
        is_known = hang.ranks or hang.silent or hang.is_program_error
        if not is_known and (hang.since_ns or math.inf) > stood_since_ns:
            return None
        self.hung, before = self.newest[-1].number, self.told
        self.told = self.hung, hang.ranks
        # Late rows have it looked for again; if they change nothing, the same verdict is not opened twice.
        return None if self.told == before else (hang, columns)


def _ranks_of_ended(
    columns: Mapping[str, Column], members: Mapping[int, Collection[int]], iterations: Sequence[int]
) -> set[int]:
    """Return the ranks that took part in a collective of these iterations that ended.

    Rooted ones do not count: they end for some members before all came.
    """
    is_ended = np.isfinite(columns["elapsed_ns"]) & ~np.isin(columns["operator"], (*ROOTED, SEND, RECV))
    is_ended &= np.isin(columns["iteration"], iterations)
    return set[int]().union(*(members.get(one, ()) for one in np.unique(columns["communicator"][is_ended]).tolist()))


def _newly_lost_shares(newest: Iterable[IterationRows]) -> dict[int, float]:
    """Return the share of each rank's rows that was lost since the oldest of some iterations, as far as reported."""
    rank, lost_rows, operators = (
        np.concatenate([rows.columns[name] for rows in newest]) for name in ("rank", "lost_rows", "operators")
    )
    ranks, first, place = np.unique(rank, return_index=True, return_inverse=True)
    lost = np.zeros(len(ranks))
    np.maximum.at(lost, place, lost_rows - lost_rows[first][place])  # counts of all its rows until then
    return dict(
        zip(ranks.tolist(), (lost / np.maximum(lost + np.bincount(place, operators), 1)).tolist(), strict=True)
    )


@dataclass(frozen=True, slots=True)
class OpenHang:
    """The open verdict on a hang.

    `since_ns`: since when the job has hung, ns since the epoch; None: not known. `stood_s`: for how long it had not
    moved when last seen to stand.
    """

    verdict: Verdict
    since_ns: int | None
    stood_s: float = 0.0


class OpenHangs:
    """The open verdicts on hangs of one attempt of a job.

    Such a verdict opens when the job has fallen silent, and closes when the job goes on (``recovered``), ends, is
    started again (``restarted``), or is forgotten (``silent``).

    `open`: at most one: the next hang closes the one before it.
    """

    def __init__(self, open_: Sequence[OpenHang] = ()) -> None:
        self.open = tuple(open_)

    def add(self, verdict: Verdict, since_ns: int | None, begun_ns: int) -> list[Verdict]:
        """Add the verdict on a new hang, and return the revisions that close those before it.

        A job hangs in one place at a time: either it has moved on to where it hangs now, or the new hang corrects
        who was accused of the old one. The verdict on a job that has ended is closed already.

        `begun_ns`: when the iteration in which it hangs now began: the earlier hangs lasted up to there.
        """
        over = self.close("recovered", begun_ns)
        if verdict.state == "open":
            self.open = (OpenHang(verdict, since_ns),)
        return over

    def stand(self, still_s: float) -> None:
        """Take in for how long the job has not moved; a new start after it takes nothing back."""
        self.open = tuple(replace(one, stood_s=max(one.stood_s, still_s)) for one in self.open)

    def go_on(self, rows: IterationRows) -> list[Verdict]:
        """Close the hangs if an iteration shows that the job goes on, a later one that ended; return the revisions.

        The loss counts up to that iteration: when the verdict opened it was not known how long the hang would last.
        """
        # Without an open hang the default lets no iteration be a later one.
        last = max((one.verdict.iterations[1] - 1 for one in self.open), default=rows.number)
        if rows.number <= last or rows.columns["unended"].any():
            return []
        return self.close("recovered", rows.start_ns)

    def close(self, reason: str, until_ns: int | None = None) -> list[Verdict]:
        """Return the revisions that close all of them; `until_ns`: when the hang ended, if that is known."""
        hangs, self.open = self.open, ()
        closed = []
        for one in hangs:
            # No row tells when a job that is started again, or ends, was given up.
            lasted_s = one.stood_s if until_ns is None or one.since_ns is None else (until_ns - one.since_ns) / 1e9
            lost_s, revision = max(one.verdict.lost_s, round(lasted_s, 6)), one.verdict.revision + 1
            closed.append(replace(one.verdict, revision=revision, state="closed", event="closed", close_reason=reason,
                                  lost_s=lost_s))  # fmt: skip
        return closed
