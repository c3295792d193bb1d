"""Whether a job is silent, stands still, or has kept an iteration or an attempt waiting for too long."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Final

FORGET_S: Final = 86_400.0
"""A job of which nothing came for so long after the silence is over, s: its state goes, and what comes later is
ignored. A day: an evaluation between two steps may take hours, and nothing comes of it; a job that hung in the
evening may be started again in the morning, and its verdict then closes as ``restarted``."""


class Presence(Enum):
    """Whether a message of a job came lately."""

    HEARD = auto()
    SILENT = auto()  # since the last tick; the verdicts of the job are to be closed
    TOLD = auto()  # silent, and its verdicts are closed; messages may come again
    FORGOTTEN = auto()  # silent for too long; it is to be ended


class Lasting:
    """Measures how long a value has stayed the same.

    >>> lasting = Lasting()
    >>> [lasting.is_over("a", now_s, now_s, 30.0) for now_s in (0.0, 29.0, 30.0)]
    [False, False, True]
    >>> lasting.is_over("b", 90.0, 90.0, 30.0)
    False

    It counts only as far as everything that was sent has been read:

    >>> lasting.is_over("b", 200.0, 100.0, 30.0)
    False
    """

    def __init__(self) -> None:
        self._seen: tuple[Hashable, float] | None = None

    def update(self, value: Hashable, now_s: float, until_s: float) -> float | None:
        """Return for how long the value has been the same, s; None when it is new."""
        if self._seen is None or self._seen[0] != value:
            self._seen = value, now_s
            return None
        return until_s - self._seen[1]

    def is_over(self, value: Hashable, now_s: float, until_s: float, wait_s: float) -> bool:
        """Whether the value has been the same for as long as `wait_s`."""
        lasted_s = self.update(value, now_s, until_s)
        return lasted_s is not None and lasted_s >= wait_s


class JobClock:
    """The clock of one job; its `JobMonitor` calls it for each message and tick, and once a silence was handled.

    The job's presence changes with ticks, and when its silence was handled:

    ==========  ====================================  ==========  ==============================================
    from        when                                  to          the monitor then
    ==========  ====================================  ==========  ==============================================
    any         a message came since the last tick    HEARD
    HEARD       no message for the silence            SILENT      closes verdicts, and asks whether the job hangs
    HEARD       no message for a grace, and the job   SILENT      the same
                has stood still for the silence
    SILENT      that was handled                      TOLD        waits
    any         no message for a day more than the    FORGOTTEN   ends: the state may go
                silence
    ==========  ====================================  ==========  ==============================================

    A job stands still while its messages only report operators that do not end. These come when the first hop falls
    silent itself, and so has waited for the silence before: a grace is enough then. A message that only reports
    events of devices counts as none.

    `silence_s` may change at any time. `is_rank_overdue`, `is_attempt_overdue`: whether the oldest iteration that
    waits for ranks, or the next attempt that waits for this one to end, has waited for a grace.
    """

    def __init__(self, silence_s: float, grace_s: float) -> None:
        self.silence_s = silence_s
        self._grace_s = grace_s
        self._messages = 0
        self._has_moved = False  # since the last tick
        self._heard = Lasting()
        self._oldest = Lasting()
        self._later = Lasting()
        self._moved_s: float | None = None
        self._ticked_s: float | None = None
        self._restored_still_s: float | None = None
        self.presence = Presence.HEARD
        self.is_rank_overdue = False
        self.is_attempt_overdue = False

    @property
    def still_s(self) -> float | None:
        """For how long the job has not moved, s; None before the first message.

        It survives a restart, the other times begin anew: a duration, as the next worker's clock may be of another
        host.
        """
        if self._moved_s is None or self._ticked_s is None:
            return self._restored_still_s
        return self._ticked_s - self._moved_s

    @still_s.setter
    def still_s(self, value: float | None) -> None:
        self._restored_still_s = value

    def begin(self) -> None:
        """Begin the next attempt: forget the silence and the overdue end of the one before."""
        self.presence = Presence.HEARD
        self.is_rank_overdue = self.is_attempt_overdue = False
        self._oldest, self._later = Lasting(), Lasting()  # the next attempt may wait at the same iteration

    def hear(self, *, is_moving: bool) -> None:
        """Take in that a message came; not `is_moving`: it reports operators that do not end."""
        self._messages += 1
        self._has_moved = self._has_moved or is_moving

    def tell(self) -> None:
        """Take in that the silence was handled."""
        if self.presence is Presence.SILENT:
            self.presence = Presence.TOLD

    def tick(
        self, now_s: float, until_s: float, *, oldest: int | None, is_stuck: Callable[[], bool], has_later: bool
    ) -> None:
        """Take in the time.

        `now_s`, `until_s`: the present, and until when everything that ranks sent has been read. A new value begins
        in the present, since it may have been sent just now; it has lasted only as far as was read.
        `is_stuck`: whether the newest evidence reports operators that never ended; asked only if it matters, as the
        answer goes through all evidence that waits.
        """
        self._ticked_s = now_s
        if self._restored_still_s is not None:
            self._moved_s, self._restored_still_s = now_s - self._restored_still_s, None
        # `is_over` comes first in both: it must see each value, also that nothing waits.
        self.is_rank_overdue = self._oldest.is_over(oldest, now_s, until_s, self._grace_s) and oldest is not None
        if self._later.is_over(has_later, now_s, until_s, self._grace_s) and has_later:
            self.is_attempt_overdue = True
        silent_s = self._heard.update(self._messages, now_s, until_s)
        if silent_s is None:
            # An operator that is open for long is no standstill while others end. Within half a silence of a movement
            # any message counts as one: the first hop did not send it because it had waited for the silence.
            if self._has_moved or not self._has_stood_for(self.silence_s / 2, now_s):
                self._moved_s = now_s
            self._has_moved = False
            self.presence = Presence.HEARD
            return
        if silent_s >= self.silence_s + FORGET_S:
            self.presence = Presence.FORGOTTEN
        elif self.presence is not Presence.TOLD:
            is_standing = self._has_stood_for(self.silence_s, until_s) and is_stuck()
            wait_s = self._grace_s if is_standing else self.silence_s
            self.presence = Presence.SILENT if silent_s >= wait_s else Presence.HEARD

    def _has_stood_for(self, seconds: float, now_s: float) -> bool:
        return self._moved_s is not None and now_s - self._moved_s >= seconds
