"""How long to wait, by the wall clock, for what may never come."""

from __future__ import annotations


class Patience:
    """Says when something has been waited for without a break for longer than the grace.

    Parameters
    ----------
    grace_s
        By the wall clock, s.

    >>> patience = Patience(30.0)
    >>> [patience.is_over(True, now_s) for now_s in (0.0, 29.0, 30.0)]
    [False, False, True]
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since_s: float | None = None

    def is_over(self, is_waiting: bool, now_s: float) -> bool:
        """Say whether the wait has lasted too long by now; once it has, the next wait begins."""
        if not is_waiting:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= self._grace_s:
            self._since_s = None
            return True
        return False

    def renew(self) -> None:
        """Begin anew: what was waited for has come."""
        self._since_s = None
