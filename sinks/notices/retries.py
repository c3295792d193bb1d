"""When a notice that a channel could not take is tried again, and when it is given up."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 1.0
"""Seconds to the second try; each later one takes twice as long as the one before."""

LONGEST_S: Final = 300.0
"""Most seconds between two tries, unless the channel itself asks for more."""

_NS: Final = 10**9


class Retries:
    """Tries that failed, of one channel.

    Parameters
    ----------
    give_up_s
        Seconds from the first failure of a notice after which it is not tried again.
    """

    def __init__(self, give_up_s: float) -> None:
        self._give_up_ns: Final = int(give_up_s * _NS)
        self._since_ns: Final[dict[str, int]] = {}
        self._failures = 0

    def failed(self, notice: str, now_ns: int, retry_after_s: float) -> int | None:
        """Note a failure; return when the channel may be asked again, or None: this notice is given up.

        Parameters
        ----------
        notice
            Names it: the same for each try.
        retry_after_s
            Seconds for which the channel asks to be left alone; 0: it does not.
        """
        since_ns = self._since_ns.setdefault(notice, now_ns)
        pause_s = min(FIRST_S * 2 ** min(self._failures, 30), LONGEST_S)
        self._failures += 1
        until_ns = now_ns + int(max(pause_s, retry_after_s) * _NS)
        if until_ns - since_ns <= self._give_up_ns:
            return until_ns
        del self._since_ns[notice]
        return None

    def done(self, notice: str) -> None:
        """Note that the channel answered: it is well again."""
        self._since_ns.pop(notice, None)
        self._failures = 0

    @property
    def waiting(self) -> int:
        """Notices that were tried and are tried again."""
        return len(self._since_ns)
