"""What becomes of a monitor that raises: one message, or one monitor, must not take the worker with it.

A message that a monitor can't take in is buried, and all goes on. A monitor that raises again and again without a
message to blame is *broken*: what is sent to it is buried, nothing of it is stored, and a restart tries the last
state that was. If all monitors raise, the fault is ours: the worker ends, and whoever runs it sees it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Final, Protocol

LOG: Final = logging.getLogger("irregulars.worker")
MOST_FAULTS: Final = 3
"""Rounds in a row that a monitor may fail before it is broken: a round is a second, and one may be bad luck."""

MOST_MONITORS: Final = 20
"""Monitors that may raise in a row, with none that works between them, before the fault is taken as our own."""

BROKEN: Final = "monitor must work; it raised again and again, and a restart tries its last stored state"
"""Why a message of a broken monitor is buried."""

_LOG_FIRST: Final = 5
_LOG_EVERY: Final = 1000


class Watched(Protocol):
    """`streams.stages.partition_state.Tracked`, as it is used here."""

    key: bytes
    faults: int


class MonitorFaults:
    """Counts what monitors raise.

    Parameters
    ----------
    fail
        Ends the worker.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail: Final = fail
        self._in_a_row: set[bytes] = set()
        self.count = 0

    def works(self, tracked: Watched) -> None:
        """Note that a monitor did what it should."""
        tracked.faults = 0
        self._in_a_row.clear()

    def raised(self, hop: str, key: bytes, error: Exception) -> str:
        """Note what a monitor raised while it took in a message, and return the reason to bury it with."""
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


def is_broken(tracked: Watched) -> bool:
    """Whether the monitor is given up."""
    return tracked.faults >= MOST_FAULTS


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
