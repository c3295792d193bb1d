"""When a notice that a channel could not take is tried again, and when it is given up."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 1.0
"""Seconds to the second try; each later one takes twice as long as the one before."""

LONGEST_S: Final = 300.0
"""Most seconds between two tries, unless the channel itself asks for more."""

_NS: Final = 10**9


class Retries:
    """Tries that failed, of one channel. A notice rests, and the channel only where its other side wants it to.

    Parameters
    ----------
    give_up_s
        Seconds from the first failure of a notice after which it is not tried again.
    """

    def __init__(self, give_up_s: float) -> None:
        self._give_up_ns: Final = int(give_up_s * _NS)
        self._failed: Final[dict[str, tuple[int, int]]] = {}  # since when, and how often
        self._failures = 0
        self.rests_until_ns = 0
        """When the channel may be asked for anything again, ns since the epoch."""

    def failed(self, notice: str, now_ns: int, retry_after_s: float) -> int | None:
        """Note a failure; return when the notice is tried again, or None: it is given up.

        Parameters
        ----------
        notice
            Names it: the same for each try.
        retry_after_s
            Seconds for which the channel wants to be left alone; 0: it does not, and may take other notices.
        """
        since_ns, failures = self._failed.get(notice, (now_ns, 0))
        again_ns = now_ns + _pause_ns(failures)
        if retry_after_s > 0:
            self.rests_until_ns = now_ns + max(_pause_ns(self._failures), int(retry_after_s * _NS))
            self._failures += 1
            again_ns = max(again_ns, self.rests_until_ns)
        if again_ns - since_ns > self._give_up_ns:
            self._failed.pop(notice, None)
            return None
        self._failed[notice] = since_ns, failures + 1
        return again_ns

    def done(self, notice: str) -> None:
        """Note that the channel answered: it is well again."""
        self._failed.pop(notice, None)
        self._failures = 0

    @property
    def waiting(self) -> int:
        """Notices that were tried and are tried again."""
        return len(self._failed)


def _pause_ns(failures: int) -> int:
    return int(min(FIRST_S * 2 ** min(failures, 30), LONGEST_S) * _NS)
