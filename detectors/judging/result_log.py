"""What was judged and has not been drained yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from irregulars.detectors.judging.result_columns import concatenate_columns
from irregulars.streams.messages.announcements import Announcement
from irregulars.streams.messages.judgements import JudgedIteration, Judgements, Verdict

Columns = dict[str, np.ndarray]


class JudgementLog:
    """Gathers the results of one job, oldest first, until they are drained.

    Parameters
    ----------
    job
        Whose.

    Attributes
    ----------
    iterations, verdicts
        One object each.
    ranks, operators, patterns
        Columns for the sinks (`detectors.judging.result_columns`), one piece for each iteration that has any.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self.iterations: list[JudgedIteration] = []
        self.ranks: list[Columns] = []
        self.operators: list[Columns] = []
        self.patterns: list[Columns] = []
        self.verdicts: list[Verdict] = []

    def drain(self, announced: Sequence[Announcement]) -> Judgements:
        """Return all there is, with the announcements that are new, and forget it."""
        judgements = Judgements(
            job=self._job,
            announcements=announced,
            iterations=self.iterations,
            rank_iterations=concatenate_columns(self.ranks),
            operators=concatenate_columns(self.operators),
            patterns=concatenate_columns(self.patterns),
            verdicts=self.verdicts,
        )
        self.iterations, self.verdicts = [], []
        self.ranks, self.operators, self.patterns = [], [], []
        return judgements
