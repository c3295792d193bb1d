"""A partition that is assigned and never read again: a known fault of Faust (its issue 629).

After a rebalance, or for no visible reason, nothing is fetched any more from one partition, or its messages are
fetched and never handed over, while all others go on; no error is raised. It shows in our position, which stays
behind the end of the partition. A worker that is busy, or waits for its database, looks the same; so does one that
has fetched a hundred thousand small messages of other topics, and hands them over first. So only time counts in which
the consumer had handed over all that it fetched and no stage had anything to do. A consumer that asks for nothing,
since its flow was stopped and never resumed, waits as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar


class WaitedTime:
    """Adds up the seconds from each `begin` to the next `end`, the last ones until now; each may be called twice.

    >>> times = iter([0.0, 2.0, 10.0, 11.0])
    >>> waited = WaitedTime(lambda: next(times))
    >>> waited.begin(), waited.end(), waited.begin(), waited.seconds
    (None, None, None, 3.0)
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._before_s = 0.0
        self._since_s: float | None = None

    @property
    def seconds(self) -> float:
        """All of it, until now."""
        return self._before_s + (0.0 if self._since_s is None else self._now_s() - self._since_s)

    def begin(self) -> None:
        """Count from now on."""
        if self._since_s is None:
            self._since_s = self._now_s()

    def end(self) -> None:
        """Count no more."""
        self._before_s, self._since_s = self.seconds, None


Place = TypeVar("Place")

LEAVE_AFTER: Final = 2.0  # times ``stall_s``: if seeking has not healed a partition by then, only a new process will
_MOST_BETWEEN_LOOKS: Final = 0.5
"""Times ``stall_s``: a process that could not even look for longer could not read either."""


@dataclass(slots=True)
class _Stall:
    position: int
    since_s: float = 0.0  # idle time without a message, though there are some
    is_sought: bool = False


class ReadingWatch(Generic[Place]):
    """Follows how far partitions have been read, and how far they could be.

    `stall_s`: idle seconds without progress after which a partition counts as stalled.

    >>> watch = ReadingWatch(4.0)
    >>> for position, waited_s in ((5, 0.0), (5, 2.0), (5, 4.0), (6, 6.0)):
    ...     print(watch.look({"commops/3": position}, {"commops/3": 9}, waited_s, is_idle=True))
    []
    []
    ['commops/3']
    []
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s: Final = stall_s
        self._waited_s: float | None = None
        self._stalls: dict[Place, _Stall] = {}

    def look(
        self, positions: Mapping[Place, int], ends: Mapping[Place, int], waited_s: float, *, is_idle: bool
    ) -> list[Place]:
        """Note where reading is and could be; return the partitions that have just become stalled."""
        passed_s = waited_s - self._waited_s if self._waited_s is not None and is_idle else 0.0
        passed_s = min(passed_s, _MOST_BETWEEN_LOOKS * self._stall_s)
        self._waited_s = waited_s
        before, self._stalls = self._stalls, {}
        for place, at in positions.items():
            if ends.get(place, 0) > at:
                known = before.get(place)
                self._stalls[place] = _Stall(at)
                if known is not None and known.position == at:
                    self._stalls[place] = _Stall(at, known.since_s + passed_s, known.is_sought)
        new = [place for place, one in self._stalls.items() if one.since_s >= self._stall_s and not one.is_sought]
        for place in new:
            self._stalls[place].is_sought, self._stalls[place].since_s = True, self._stall_s  # seeking gets as long
        return new

    def lost(self) -> list[Place]:
        """Return the partitions that stay stalled although they were sought."""
        return [place for place, one in self._stalls.items() if one.since_s >= LEAVE_AFTER * self._stall_s]

    def forget(self) -> None:
        """Begin anew with another assignment."""
        self._stalls, self._waited_s = {}, None
