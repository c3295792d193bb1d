"""The base of the hooks in Python: the ring, the switches, and how they learn that an operator has ended."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable
from functools import partial, wraps
from threading import get_ident
from typing import Any

from irregulars.messages.records import UNKNOWN
from irregulars.producers.torch_hook.hooks.device_events import DeviceEvents
from irregulars.producers.torch_hook.hooks.ring import UNSEEN, PythonRing
from irregulars.producers.torch_hook.loaded_modules import put_back

_now_ns = time.monotonic_ns


class RecordingHook:
    """Base of the hooks in Python; each adds how it sees operators."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.ring = PythonRing()
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
        """Set the iteration of the operators that follow."""
        self._iteration = iteration

    def errors(self) -> tuple[int, str]:
        """Return no errors: `on_error` got each as it came."""
        return 0, ""

    def ask_devices(self) -> None:
        """Finish the rows of operators that have ended on a device since the last call."""
        self._devices.settle()

    def _watcher(self) -> Callable[[int, Any], None]:
        """Return a function, for one group, that finishes a row when its asynchronous work ends."""
        finish = self.ring.finish
        kept: set[int] = set()  # threads of this group's backend, which live as long as it does

        def finish_row(ordinal: int, done: Any) -> None:
            ended_ns = _now_ns()
            try:
                done.value()
            except RuntimeError:  # it failed, because a rank is gone or time is out, and so never ended
                return
            finish(ordinal, ended_ns)
            if get_ident() not in kept:
                kept.add(get_ident())
                # Torch makes this thread's state in Python for the callback and throws it away behind it: memory is
                # mapped and unmapped, which takes longer than the callback itself. A reference that is never given
                # back keeps the state; it costs some 20 KiB a thread, and gloo has two threads a group.
                ctypes.pythonapi.PyGILState_Ensure()

        def watch(ordinal: int, work: Any) -> None:
            try:
                future = work.get_future()
            except RuntimeError:  # its backend has none: an asynchronous reduce_scatter of gloo
                finish(ordinal, UNSEEN)
            else:
                future.add_done_callback(partial(finish_row, ordinal))

        return watch


def wait_for_operator(work: Any) -> bool:
    """Wait for an operator, as the caller does next; False if it failed, because a rank is gone or time is out."""
    try:
        work.wait()
    except RuntimeError:
        return False
    return True


class PointToPoint:
    """Finishes the rows of gloo's sends and recvs.

    Gloo reports their ends only to the caller that waits for them, so `Work.wait` is replaced, from the first of them
    on.
    """

    def __init__(self, finish: Callable[[int, int], None]) -> None:
        from torch._C._distributed_c10d import ProcessGroup, Work

        self.newest: int | None = None
        """Row of the send or recv that is being issued; of one thread, as torch wants it."""
        self._finish = finish
        self._watched: dict[int, tuple[int, Any]] = {}
        names = ("send", "recv", "recv_anysource")
        self._functions = [(ProcessGroup, name) for name in names]
        self._work: Any = Work
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # where, our function, and the one that it calls
        self._is_on = self._is_waited_for = False

    def enable(self, is_on: bool) -> None:
        """Replace torch's functions, or put them back."""
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if is_on:
            for owner, name in self._functions:
                self._replace(owner, name, self._issuing)
            return
        self._is_waited_for = False
        while self._replaced:
            put_back(*self._replaced.pop())

    def _replace(self, owner: Any, name: str, ours: Callable[[Callable[..., Any]], Any]) -> None:
        # Read now: another tool may have replaced it since the recording began.
        original = vars(owner)[name]
        made = wraps(original)(ours(original))
        setattr(owner, name, made)
        self._replaced.append((owner, name, made, original))

    def _issuing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def issue(*args: Any, **kwargs: Any) -> Any:
            self.newest = None
            work = original(*args, **kwargs)
            ordinal = self.newest
            if ordinal is not None:
                self._watch(work, ordinal)
            return work

        return issue

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        watched, finish = self._watched, self._finish

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(work, *args, **kwargs)
            finally:
                entry = watched.pop(id(work), None)
                if entry is not None:
                    finish(entry[0], _now_ns())

        return wait

    def _watch(self, work: Any, ordinal: int) -> None:
        key = id(work)
        if not self._is_waited_for:  # jobs without sends and recvs don't pay for it
            self._is_waited_for = True
            self._replace(self._work, "wait", self._waiting)

        def forget(_: Any) -> None:
            if self._watched.pop(key, None) is not None:
                self._finish(ordinal, UNSEEN)  # its caller never waited for it

        # An id is given again once its object is gone, so the entry must go with the object.
        self._watched[key] = (ordinal, weakref.ref(work, forget))
