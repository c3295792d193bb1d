"""Ends of gloo's sends and recvs, which gloo reports only to the caller that waits for them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from irregulars.producers.torch_hook.hooks.ring import UNSEEN

_now_ns = time.monotonic_ns


class PointToPoint:
    """Notes when sends and recvs of gloo end. So `Work.wait` is replaced, from the first of them on.

    Parameters
    ----------
    finish
        Takes a row's ordinal and its end, ns of the monotonic clock.
    """

    def __init__(self, finish: Callable[[int, int], None]) -> None:
        from torch._C._distributed_c10d import ProcessGroup, Work

        self.newest: int | None = None
        """Row of the send or recv that is being issued; of one thread, as torch wants it."""
        self._finish = finish
        self._watched: dict[int, tuple[int, Any]] = {}
        self._places = [(ProcessGroup, "send"), (ProcessGroup, "recv"), (ProcessGroup, "recv_anysource")]
        self._originals = [(owner, name, owner.__dict__[name]) for owner, name in self._places]
        self._work: Any = Work
        self._wait: Callable[..., Any] = Work.__dict__["wait"]
        self._is_on = self._is_waited_for = False

    def enable(self, is_on: bool) -> None:
        """Replace torch's functions, or put them back."""
        if is_on == self._is_on:
            return
        self._is_on = is_on
        for owner, name, original in self._originals:
            setattr(owner, name, self._issuing(original) if is_on else original)
        if not is_on and self._is_waited_for:
            self._is_waited_for, self._work.wait = False, self._wait

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
            self._is_waited_for, self._work.wait = True, self._waiting(self._wait)

        def forget(_: Any) -> None:
            if self._watched.pop(key, None) is not None:
                self._finish(ordinal, UNSEEN)  # nobody ever waited for it

        self._watched[key] = (ordinal, weakref.ref(work, forget))
