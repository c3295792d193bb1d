"""Waiting for services that are away when a worker starts: for a bounded time, each logged once, until a signal."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from irregulars.errors import ServiceUnavailable

LOG: Final = logging.getLogger("irregulars.worker")
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0


@dataclass(frozen=True)
class Need:
    """A service that a start waits for.

    Attributes
    ----------
    service
        Its name in the log: ``event=broker_away``, later ``event=broker_back``.
    ask
        Asks once, within a few seconds; raises `ServiceUnavailable` while it is away. It runs in a thread of its own:
        what nothing can interrupt, like the look-up of a host's name, must not hold up a signal.
    most_s
        How long the service may be away, seconds.
    """

    service: str
    ask: Callable[[], object]
    most_s: float


def wait_for(
    needs: Sequence[Need],
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when each of them has answered once.

    All are asked before any is waited for: a refusal by one shows at once though another is away.

    Raises
    ------
    ServiceUnavailable
        When the time of one is over, with its last error.
    """
    began_s, pause_s = now_s(), _FIRST_PAUSE_S
    away: set[str] = set()
    missing = list(needs)
    while missing := [need for need in missing if not _answers(need, now_s() - began_s, away)]:
        left_s = began_s + min(need.most_s for need in missing) - now_s()
        sleep(max(0.0, min(pause_s, left_s)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _answers(need: Need, waited_s: float, away: set[str]) -> bool:
    """Ask once; log when the service is away, and when it is back."""
    try:
        ask_in_thread(need.ask)
    except ServiceUnavailable as error:
        if waited_s >= need.most_s:
            said = str(error)
            sentence = said if said.endswith((".", "?")) else f"{said}."
            raise ServiceUnavailable(f"{sentence} A start waits {need.most_s:g} s for it") from error
        if need.service not in away:
            LOG.warning("event=%s_away waits_s=%g reason=%r", need.service, need.most_s, str(error))
            away.add(need.service)
        return False
    if need.service in away:
        LOG.warning("event=%s_back away_s=%.1f", need.service, waited_s)
    return True


def ask_in_thread(ask: Callable[[], object]) -> None:
    """Ask in a thread of its own, so that a signal is handled meanwhile; raise its error."""
    answer: Future[None] = Future()

    def run() -> None:
        try:
            ask()
            answer.set_result(None)
        except BaseException as error:  # raised again by `result`, in the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name="irregulars-start", daemon=True).start()
    answer.result()
