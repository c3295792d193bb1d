"""How long a monitor waits for messages that may never come."""

from __future__ import annotations


class WaitingTimer:
    """Says when a wait has lasted too long without a break.

    Parameters
    ----------
    most_s
        How long it may last, s.

    >>> timer = WaitingTimer(30.0)
    >>> [timer.is_over(True, now_s, now_s) for now_s in (0.0, 29.0, 30.0)]
    [False, False, True]
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._since_s: float | None = None

    def is_over(self, is_waiting: bool, now_s: float, until_s: float) -> bool:
        """Say whether the wait has lasted too long; once it has, the next wait begins.

        Parameters
        ----------
        now_s, until_s
            The present, and until when everything that was sent has been read: a wait begins in the present, since
            what came last may have been sent just now, and lasts as long as nothing else was sent.
        """
        if not is_waiting:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif until_s - self._since_s >= self.most_s:
            self._since_s = None
            return True
        return False

    def restart(self) -> None:
        """Begin anew: a message has come."""
        self._since_s = None
