"""Waiting for services that are away when a worker starts: each is told once, for a bounded time, until a signal."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeVar

from irregulars.errors import ServiceUnavailable

LOG: Final = logging.getLogger("irregulars.worker")
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0

Result = TypeVar("Result")


class StopAsked(BaseException):
    """A signal asks to stop; no `Exception`, so that nobody takes it for a failure of what was going on."""


@contextmanager
def stop_raises() -> Iterator[None]:
    """Let SIGTERM and SIGINT raise `StopAsked` in the main thread meanwhile.

    Without a handler SIGTERM is ignored by a process that is the first of its container.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise StopAsked

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def wait_for(
    service: str,
    ask: Callable[[], Result],
    most_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call `ask` until it raises no `ServiceUnavailable`, and return what it returns.

    Parameters
    ----------
    service
        What is waited for, as it stands in the log: ``event=database_away``, later ``event=database_back``.
    ask
        Asks once, within a few seconds. It runs in a thread of its own: what nothing can interrupt, like the look-up
        of a host's name, must not hold up a signal.
    most_s
        How long the service may be away, seconds.

    Raises
    ------
    ServiceUnavailable
        When the time is over, with what `ask` said last.
    """
    began_s, pause_s, is_told = now_s(), _FIRST_PAUSE_S, False
    while True:
        try:
            answer = _in_thread(ask)
        except ServiceUnavailable as error:
            left_s = began_s + most_s - now_s()
            if left_s <= 0:
                raise ServiceUnavailable(f"{error} A start waits {most_s:g} s for it") from error
            if not is_told:
                LOG.warning("event=%s_away waits_s=%g reason=%r", service, most_s, str(error))
        else:
            if is_told:
                LOG.warning("event=%s_back away_s=%.1f", service, now_s() - began_s)
            return answer
        is_told = True
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _in_thread(ask: Callable[[], Result]) -> Result:
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # raised again by `result`, in the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name="irregulars-start", daemon=True).start()
    return answer.result()
