"""Monitors that raise: one message, or one monitor, must not take the worker with it.

A message that makes a monitor raise is buried, and all goes on. A monitor that raises again and again without a
message to blame is *broken*: its messages are buried, nothing of it is stored, and a restart tries the last state
that was stored. If all monitors raise, the fault is ours: the worker ends, and its operator sees it.

A monitor whose work does not end (`streams.health.watchdog`) begins anew behind the message that it was at. One of
which that happens again and again is broken until its job's next start, also in other workers.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Final, NamedTuple, Protocol

from irregulars.streams.health.watchdog import WorkGivenUp

LOG: Final = logging.getLogger("irregulars.worker")
MOST_FAULTS: Final = 3
"""Rounds in a row that a monitor may fail before it is broken: a round is a second, and one may be bad luck. As often
it may be given up: each time costs the others their share of a minute."""

MOST_MONITORS: Final = 20
"""Monitors that may raise in a row, with none that works between them, before the fault is taken as our own."""

BROKEN: Final = "monitor must work; again and again it raised, or its work did not end: its next start begins anew"
"""Why a message of a broken monitor is buried."""

_LOG_FIRST: Final = 5
_LOG_EVERY: Final = 1000


class GivenUp(NamedTuple):
    """How often a monitor's work was given up, and in which start last: a number, as of `code_of_start`."""

    times: int = 0
    start: int = 0


NOT_GIVEN_UP: Final = GivenUp()


class Watched(Protocol):
    """`streams.stages.partition_state.Tracked`, as it is used here."""

    key: bytes
    faults: int
    given_up: GivenUp


class MonitorFaults:
    """Counts errors that monitors raise."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail: Final = fail
        self._in_a_row: set[bytes] = set()
        self.count = 0

    def works(self, tracked: Watched) -> None:
        """Note that a monitor worked."""
        tracked.faults = 0
        self._in_a_row.clear()

    def raised(self, hop: str, key: bytes, error: Exception) -> str:
        """Note an error that a monitor raised at a message, and return the reason to bury the message with."""
        self.count += 1
        self._in_a_row.add(key)
        if self.count <= _LOG_FIRST or self.count % _LOG_EVERY == 0:  # never one line a message
            LOG.error(
                "event=monitor_raised count=%d hop=%s key=%r error=%s reason=%r at=%s",
                self.count, hop, key, type(error).__name__, str(error), _place(error),
            )  # fmt: skip
        if len(self._in_a_row) >= MOST_MONITORS:
            self._fail(error)
        return f"{hop} monitor must take the message in; it raised {type(error).__name__}: {error} ({_place(error)})"

    def failed(self, hop: str, tracked: Watched, error: Exception) -> str:
        """Note that a monitor failed in a round without a message to blame, as `raised` does otherwise."""
        tracked.faults += 1
        if tracked.faults == MOST_FAULTS:
            LOG.error("event=monitor_broken hop=%s key=%r", hop, tracked.key)
        return self.raised(hop, tracked.key, error)

    def gave_up(self, hop: str, tracked: Watched, why: WorkGivenUp, messages: int) -> str:
        """Note that a monitor's work did not end, and return the reason to bury its message with."""
        # Work that has ended whole workers is not tried again.
        times = MOST_FAULTS if why.is_fatal else tracked.given_up.times + 1
        tracked.given_up, tracked.faults = tracked.given_up._replace(times=times), 0
        LOG.error(
            "event=judgement_given_up hop=%s job=%r seconds=%.0f messages=%d times=%d reason=%r do=%r",
            hop, tracked.key.decode(), why.seconds, messages, times, str(why),
            "none until its next start" if is_broken(tracked) else "it begins anew behind them",
        )  # fmt: skip
        return f"{hop} monitor's work must end: {why}"


def is_broken(tracked: Watched) -> bool:
    """Whether nothing is given to the monitor any more."""
    return max(tracked.faults, tracked.given_up.times) >= MOST_FAULTS


def hear_start(tracked: Watched, start: int) -> None:
    """Let a monitor that was given up work again in another start than that in which it was."""
    if tracked.given_up.times and start != tracked.given_up.start:
        tracked.given_up = NOT_GIVEN_UP


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
