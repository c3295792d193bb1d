"""What the hooks in Python share: the ring, the switches, and how they learn that an operator has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from irregulars.messages.records import UNKNOWN
from irregulars.producers.torch_hook.hooks.device_events import DeviceEvents
from irregulars.producers.torch_hook.hooks.foreign_threads import keep_thread_state
from irregulars.producers.torch_hook.hooks.point_to_point import PointToPoint
from irregulars.producers.torch_hook.hooks.ring import CAPACITY, UNSEEN, PythonRing

_now_ns = time.monotonic_ns


class RecordingHook:
    """Base of the hooks in Python; each adds how it sees operators.

    Parameters
    ----------
    on_error
        Told of what goes wrong in a hook; nothing ever reaches the collective.
    capacity
        Rows of the ring.
    """

    def __init__(self, on_error: Callable[[Exception], None], capacity: int = CAPACITY) -> None:
        self.ring = PythonRing(capacity)
        self._on_error = on_error
        self._is_on = False
        self._iteration = UNKNOWN
        self._devices = DeviceEvents(self.ring.finish)
        self._point_to_point = PointToPoint(self.ring.finish)

    def enable(self, is_on: bool) -> None:
        """Switch recording on or off."""
        self._is_on = is_on
        self._point_to_point.enable(is_on)

    def set_iteration(self, iteration: int) -> None:
        """Say which iteration operators belong to from now on."""
        self._iteration = iteration

    def errors(self) -> tuple[int, str]:
        """Nothing: errors were told as they came."""
        return 0, ""

    def ask_devices(self) -> None:
        """Finish the rows of what has ended on a device since."""
        self._devices.settle()

    def _watcher(self) -> Callable[[int, Any], None]:
        """Make, for one group, what takes a row's ordinal and its asynchronous work, and notes when that ends."""
        finish = self.ring.finish
        kept: set[int] = set()  # threads of this group's backend, which live as long as it does

        def note_end(ordinal: int, done: Any) -> None:
            ended_ns = _now_ns()
            try:
                done.value()
            except RuntimeError:  # what failed, because a rank is gone or time is out, never ended
                return
            finish(ordinal, ended_ns)
            if get_ident() not in kept:
                kept.add(get_ident())
                keep_thread_state()

        def watch(ordinal: int, work: Any) -> None:
            try:
                future = work.get_future()
            except RuntimeError:  # its backend has none: an asynchronous reduce_scatter of gloo
                finish(ordinal, UNSEEN)
            else:
                future.add_done_callback(partial(note_end, ordinal))

        return watch


def has_succeeded(work: Any) -> bool:
    """Wait, as the caller does next; what failed, because a rank is gone or time is out, never ended."""
    try:
        work.wait()
    except RuntimeError:
        return False
    return True
