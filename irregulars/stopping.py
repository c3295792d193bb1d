"""SIGTERM, Ctrl-C (SIGINT) and SIGHUP end a command: one handler for all commands, from their first line on.

`on_stop` sets the one thing that a process does when it is asked to stop. `raises` is for a command that can be cut
off anywhere. `held` is for one that makes things which must be undone: it goes on to its next `pause`, or to the
`on_stop` of its work. Only the first signal counts: a terminal and a supervisor may both send one.

It imports next to nothing, because before `listen` a signal meets Python's own handlers.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # the first one is our own
_AGAIN_S: Final = 0.02

_asked_by = 0  # number of the signal; 0: none came
_is_raising = False  # whether `StopAsked` was raised for it, or is to be
_stop: Callable[[], object] = bool


class StopAsked(BaseException):
    """A signal asks to stop; no `Exception`, so that no handler takes it for a failure of the work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __del__(self) -> None:
        # Nothing holds it any more, and its block goes on: a finalizer or a C library has swallowed it.
        if _is_raising and _stop is _raise:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def listen() -> None:
    """Handle the signals from now on: until `on_stop` they are kept."""
    _handle()
    sys.unraisablehook = _print_other


def ignore() -> None:
    """Ignore the signals: all is done, and Python, which takes our handlers away while it ends, would be killed."""
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)


@contextmanager
def on_stop(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` in the main thread when a signal asks to; at once if one has asked before.

    `stop` must take no lock that the main thread may hold. An exception of it ends the block.
    """
    global _stop, _asked_by, _is_raising
    before, outer = _handle(), _stop
    _stop = stop
    try:
        if _asked_by:
            stop()
        yield
    finally:
        _stop = outer
        for number, handler in before.items():
            signal.signal(number, handler)
        if before.get(signal.SIGTERM) is not _note:  # no block outside listens
            _asked_by, _is_raising = 0, False


@contextmanager
def raises() -> Iterator[None]:
    """Raise `StopAsked` in the main thread when a signal asks to stop."""
    with on_stop(_raise):
        try:
            yield
        finally:
            # An alarm of `_raise` that is still to come must not hit the code behind the block.
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            if _is_raising:  # a C library makes another error of it, and what catches all errors nothing at all
                raise StopAsked(_asked_by) from None


@contextmanager
def held() -> Iterator[None]:
    """Keep a signal for the next `pause`, or for an `on_stop` inside."""
    with on_stop(bool):
        yield


def pause(seconds: float) -> None:
    """Sleep; raise `StopAsked` if a signal has asked to stop."""
    time.sleep(seconds)
    if _asked_by:
        raise StopAsked(_asked_by)


def _handle() -> dict[int, Any]:
    """Install our handlers, and return those that were there.

    A signal that is ignored stays so, as nohup and a script's ``&`` want it; SIGTERM is never meant to be.
    """
    before: dict[int, Any] = {one: signal.getsignal(one) for one in _SIGNALS}
    before = {one: was for one, was in before.items() if was is not signal.SIG_IGN or one == signal.SIGTERM}
    for one in before:
        signal.signal(one, _note)
    return before


def _note(number: int, _frame: object) -> None:
    global _asked_by
    if number == signal.SIGALRM:
        _stop()
    elif not _asked_by:
        _asked_by = number
        _stop()


def _raise() -> None:
    global _is_raising
    _is_raising = True
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Not within an import: its callbacks swallow errors, and it would stay half done. The alarm tries again.
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        frame = frame.f_back
    raise StopAsked(_asked_by)


def _print_other(unraisable: sys.UnraisableHookArgs) -> None:
    """Print an error that a finalizer raised, but no `StopAsked`, which comes again."""
    if not isinstance(unraisable.exc_value, StopAsked):
        sys.__unraisablehook__(unraisable)
