"""A stop that ends: whatever hangs while a worker stops, its process is gone when the time is over."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

CUT_OFF_STATUS: Final = 1
"""Exit status of a process that had to be cut off: its supervisor may start it again."""


class StopDeadline:
    """Ends the process some seconds after `arm`, unless it has ended by itself.

    It is never disarmed: what may hang includes the end of the interpreter, which waits for threads that wait for
    a database. Nothing is lost by it, since whatever is not stored is read again.

    Parameters
    ----------
    within_s
        Seconds from `arm` to the end.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s: Final = within_s
        self._lock: Final = threading.Lock()
        self._began_s: float | None = None
        self._ended_with: int | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left; all of them before `arm`."""
        if self._began_s is None:
            return self._within_s
        return max(self._within_s - (time.monotonic() - self._began_s), 0.0)

    def arm(self) -> None:
        """Begin to count; later calls change nothing."""
        with self._lock:
            if self._began_s is not None:
                return
            self._began_s = time.monotonic()
        threading.Thread(target=self._cut_off, name="irregulars-stop", daemon=True).start()

    def leave_with(self, status: int) -> None:
        """End with this status: all work has ended in order, and the threads that are left are not waited for."""
        self._ended_with = status

    def _cut_off(self) -> None:
        time.sleep(self._within_s)
        if self._ended_with is not None:
            os._exit(self._ended_with)
        # Neither `logging` nor `print`: a thread that hangs may hold their locks.
        os.write(2, f"irregulars worker: stopping must end within {self._within_s:g} s; it did not\n".encode())
        os._exit(CUT_OFF_STATUS)
