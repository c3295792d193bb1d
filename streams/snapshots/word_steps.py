"""From which evidence on which words of people hold, in one partition.

A worker reads the topics ``thresholds`` and ``feedback`` beside its partitions, at any moment. So that whoever judges
the same evidence again judges it by the same words, the moment is put down as a place in the log: evidence from
offset 1,200 on is judged by the first 3 changes of thresholds, say. That is stored before any of it is judged.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

KEPT: Final = 64
"""Steps that are kept. Evidence is kept for a week: it would take nine words a day to need more."""


class Step(NamedTuple):
    """Evidence from `offset` on is judged by the words before the offset `revision` of their topic."""

    offset: int
    revision: int


@dataclass(frozen=True, slots=True)
class WordSteps:
    """The steps of one partition, in the order of their offsets.

    Examples
    --------
    >>> steps = WordSteps().begin(1200, 2).begin(1300, 3)
    >>> [steps.revision_at(offset) for offset in (1199, 1200, 1299, 1300)]
    [0, 2, 2, 3]
    >>> steps.newest
    3
    """

    steps: tuple[Step, ...] = ()

    @property
    def newest(self) -> int:
        """The revision that holds for evidence that is still to come."""
        return self.steps[-1].revision if self.steps else 0

    def revision_at(self, offset: int) -> int:
        """Return by which words the message at an offset of ``evidence`` is judged."""
        at = bisect_right(self.steps, offset, key=lambda one: one.offset)
        return self.steps[at - 1].revision if at else 0

    def begin(self, offset: int, revision: int) -> WordSteps:
        """Return the steps with one more; the oldest ones become one where there are too many."""
        steps = (*(one for one in self.steps if one.offset < offset), Step(offset, revision))
        if len(steps) > KEPT:
            steps = (Step(0, steps[1].revision), *steps[2:])
        return WordSteps(steps)

    def bounded(self, end: int) -> WordSteps:
        """Return the steps for a log that ends at `end`: where it was made anew, none may begin far behind it."""
        if not self.steps or self.steps[-1].offset <= end:
            return self
        return WordSteps().begin(0, self.newest)
