"""Whether a job that ended or fell silent hangs in an operator, and whether that was said before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from irregulars.detectors.hang.find_hang import Hang, find_hang, lost_shares
from irregulars.detectors.judging.reading.iteration_rows import IterationRows, join_rows
from irregulars.detectors.judging.reading.operator_reader import OperatorReader
from irregulars.detectors.judging.reading.spans import ReadBack
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.dtypes import Column


class HangWatch:
    """Keeps the newest iterations of a job, and looks in them for operators that never ended.

    Attributes
    ----------
    newest
        The newest iterations of each rank, oldest first. Ranks may be some iterations apart: who stops holds up its
        pipeline at once, and the others where gradients are summed next.
    hung
        The last iteration when a hang was found; None while a hang of the newest iterations would be news.
    told
        That iteration and the accused ranks, of the last hang that was published.
    """

    def __init__(self) -> None:
        self.newest: deque[IterationRows] = deque()
        self.hung: int | None = None
        self.told: tuple[int | None, tuple[int, ...]] = (None, ())

    def add(self, rows: IterationRows) -> None:
        """Take in the next iteration."""
        self.newest.append(rows)
        while len(self.newest) > JUDGING.most_apart or self._is_past():
            self.newest.popleft()

    def _is_past(self) -> bool:
        """Whether each rank of the oldest iteration has enough newer ones."""
        oldest, *newer = (one.columns["rank"] for one in self.newest)
        if len(newer) < JUDGING.newest_iterations:
            return False
        if all(np.array_equal(oldest, ranks) for ranks in newer[-JUDGING.newest_iterations :]):
            return True  # nearly always, and quickly told
        ranks, iterations = np.unique(np.concatenate(newer), return_counts=True)
        return bool(np.isin(oldest, ranks[iterations >= JUDGING.newest_iterations]).all())

    def add_late(self, rows: IterationRows) -> None:
        """Take in the rows of ranks that came after their iteration was judged.

        If these ranks stand in an operator too, they are not those for which the others wait, although a published
        hang may have said so: then it is to be looked for again.
        """
        for at, known in enumerate(self.newest):
            if known.number == rows.number and rows.columns["unended"].any():
                self.newest[at], self.hung = join_rows([known, rows]), None

    @property
    def has_unended(self) -> bool:
        """Whether iterations that came after the last hang that was found hold operators that never ended."""
        newest = (rows for rows in self.newest if self.hung is None or rows.number > self.hung)
        return any(rows.columns["unended"].any() for rows in newest)

    def look(self, reader: OperatorReader, read_back: ReadBack) -> tuple[Hang, dict[str, Column]] | None:
        """Return the hang that the newest iterations show, and the operators in which it was found.

        None if there is none, or the same one was published.
        """
        if not self.has_unended:
            return None
        columns = reader.read(self.newest, read_back)
        lost = _lost_share_of_ranks(reader, lost_shares(columns))
        trusted = {rank for rank, share in lost.items() if share <= JUDGING.most_lost_share}
        hang = find_hang(columns, reader.topology, trusted, {rank for rank in trusted if lost[rank] > 0})
        if hang is None:
            return None
        self.hung, before = self.newest[-1].number, self.told
        self.told = self.hung, hang.ranks
        return None if self.told == before else (hang, columns)


def _lost_share_of_ranks(reader: OperatorReader, in_newest: Mapping[int, float]) -> dict[int, float]:
    """Return the share of its rows that each rank that logs has lost; where it is small, no single row is missing.

    Parameters
    ----------
    in_newest
        Shares by the holes in the newest rows. They count for ranks whose source does not say how many were lost.
    """
    announced = reader.announcements
    operators_per_rank = max(reader.traffic.flowed / max(len(announced), 1), 1.0)
    return {
        rank: in_newest.get(rank, 1.0) if one.lost_rows is None else one.lost_rows / operators_per_rank
        for rank, one in announced.items()
        if one.is_logged
    }
