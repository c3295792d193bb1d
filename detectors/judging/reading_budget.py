"""How much of a large job's log may be read back to judge suspect iterations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.judging.thresholds import JUDGING


class Need(Enum):
    """Why the operators of a suspect iteration are wanted."""

    EXPLAIN = auto()
    PURSUE = auto()
    CONFIRM = auto()


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The state of a `ReadingBudget`."""

    read_at: tuple[int, ...]
    newest: int | None
    spent: int


class ReadingBudget:
    """Decides which suspect iterations of a large job may be read, and remembers which were.

    =======  =======================================================  ==========================================
    need     the iteration                                            is read
    =======  =======================================================  ==========================================
    EXPLAIN  is irregular or part of a shift, and nothing explains    always, and outside the budget
             it
    PURSUE   is suspect only, and nothing explains it                 within the budget
    CONFIRM  is explained by an open verdict                          one in `IRREGULAR.min_iterations`, within the
                                                                      budget
    =======  =======================================================  ==========================================

    The budget is `IRREGULAR.recent` iterations in each window, and beyond these a share of the log. Operators
    read to explain do not count: noise must not use up the budget that the small delay of a real fault needs.

    `window`: judged iterations in which `IRREGULAR.recent` may be read.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._read_at: deque[int] = deque(maxlen=IRREGULAR.recent)  # iterations within the budget, as judged
        self._newest: int | None = None  # the last one that was read at all
        self._spent = 0  # operators that were read within the budget

    def may_read(self, judged: int, flowed: int, need: Need) -> bool:
        """Whether an iteration may be read.

        `judged`: iterations that were judged before it. `flowed`: operators that the job has run so far.
        """
        if need is Need.EXPLAIN:
            return True
        if need is Need.CONFIRM and self._newest is not None and judged - self._newest < IRREGULAR.min_iterations:
            return False
        # The deque holds the last `recent` readings: the oldest of them shows whether the window has room.
        is_scarce = len(self._read_at) < IRREGULAR.recent or judged - self._read_at[0] > self._window
        return is_scarce or self._spent < max(JUDGING.read_share * flowed, JUDGING.free_operators)

    def note(self, judged: int, operators: int, need: Need) -> None:
        """Remember that an iteration was read, and the number of operators that this took."""
        self._newest = judged
        if need is not Need.EXPLAIN:
            self._read_at.append(judged)
            self._spent += operators

    def state(self) -> BudgetState:
        """Everything that `from_state` needs."""
        return BudgetState(tuple(self._read_at), self._newest, self._spent)

    @classmethod
    def from_state(cls, state: BudgetState, window: int) -> ReadingBudget:
        """Restore."""
        budget = cls(window)
        budget._read_at.extend(state.read_at)
        budget._newest, budget._spent = state.newest, state.spent
        return budget
