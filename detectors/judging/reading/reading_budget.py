"""How much of a large job's log may be read back to judge iterations that took longer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

READ_SHARE: Final = 0.004
FREE_OPERATORS: Final = 500_000
"""At most so much of the log is read for suspect iterations, whichever is more. Irregular ones that no verdict
explains are read whatever was read before, and what they cost does not count here: noise must not use up what the
small delay of a real fault needs."""

READ_AT_LEAST: Final = 6
"""So many suspect iterations are read in each window, whatever that costs."""

KEEP_UP: Final = 10
"""While a verdict is open and nothing changes, one suspect iteration in so many is read."""


class ReadingBudget:
    """Say which iterations may be read, and remember which were.

    Parameters
    ----------
    window
        In so many judged iterations `READ_AT_LEAST` are read.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._read_at: deque[int] = deque(maxlen=READ_AT_LEAST)  # suspect iterations that were read, as judged
        self._newest: int | None = None  # the last one that was read at all
        self._spent = 0  # operators that were read for suspect iterations

    def may_read(self, judged: int, flowed: int, *, is_explained: bool, is_irregular: bool) -> bool:
        """Whether a suspect iteration may be read.

        Parameters
        ----------
        judged
            How many iterations were judged before it.
        flowed
            Operators that the job ran so far.
        is_explained
            Whether an open verdict says all there is to say about it.
        """
        if is_explained and self._newest is not None and judged - self._newest < KEEP_UP:
            return False
        if _is_free(is_explained=is_explained, is_irregular=is_irregular):
            return True
        is_scarce = len(self._read_at) < READ_AT_LEAST or judged - self._read_at[0] > self._window
        return is_scarce or self._spent < max(READ_SHARE * flowed, FREE_OPERATORS)

    def note(self, judged: int, operators: int, *, is_explained: bool, is_irregular: bool) -> None:
        """Remember that an iteration was read, and what it cost."""
        self._newest = judged
        if not _is_free(is_explained=is_explained, is_irregular=is_irregular):
            self._read_at.append(judged)
            self._spent += operators

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {"read_at": list(self._read_at), "newest": self._newest, "spent": self._spent}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], window: int) -> ReadingBudget:
        """Restore."""
        budget = cls(window)
        budget._read_at.extend(state["read_at"])
        budget._newest, budget._spent = state["newest"], state["spent"]
        return budget


def _is_free(*, is_explained: bool, is_irregular: bool) -> bool:
    return is_irregular and not is_explained
