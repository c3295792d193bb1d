"""Says loudly, and once, why no alert can come: for whoever waits for alerts in front of a quiet screen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from irregulars.infra.configuration.lenient import LenientSettings
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.doctor.checks.findings import Finding
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.diagnosis import diagnose

LOG: Final = logging.getLogger("irregulars.doctor")

BLOCKING: Final = frozenset(
    {
        "topic_missing", "partitions_differ", "no_leader", "no_worker", "partitions_unread", "behind",
        "judging_behind", "not_announced", "none_closes", "no_marks", "all_refused",
    }
)  # fmt: skip
"""Codes of findings for which no alert comes, of some job or of all. A broker that can't be used blocks by any code.
Topics that are hidden from us are none: whoever only reads alerts sees no others, and they may well be there."""

FIRST_S: Final = 60.0
EVERY_S: Final = 60.0
"""Until the first look, and between two; a look takes some tenths of a second."""

_ONLY: Final = ("kafka", "topics", "workers", "jobs")
_WITHIN_S: Final = 15.0
_STOP_S: Final = 2.0


class BlockWatch:
    """Looks now and then, in a thread of its own, while a ``with`` block runs.

    Parameters
    ----------
    look
        Returns findings.
    say
        Told a line about each that keeps alerts from coming: when it is there first, and again if it comes back.
    first_s, every_s
        Seconds until the first look, and between two.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Finding]],
        say: Callable[[str], None],
        first_s: float = FIRST_S,
        every_s: float = EVERY_S,
    ) -> None:
        self._look: Final = look
        self._say: Final = say
        self._first_s: Final = first_s
        self._every_s: Final = every_s
        self._said: set[tuple[str | None, str]] = set()
        self._failed: set[type[Exception]] = set()
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="irregulars-blocking", daemon=True)

    def look(self) -> None:
        """Look once."""
        found = {(one.code, one.subject): one for one in self._look() if is_blocking(one)}
        for place, one in found.items():
            if place not in self._said and not self._stop.is_set():
                self._say(line_of(one))
        self._said = set(found)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._stop.wait(wait_s):
            self._try_to_look()
            wait_s = self._every_s

    def _try_to_look(self) -> None:
        """Look, and go on after a fault of ours: a thread that ended would leave a quiet screen that nobody explains.

        Each kind of fault is said once: it may come back with every look.
        """
        try:
            self.look()
        except Exception as error:
            if type(error) not in self._failed:
                self._failed.add(type(error))
                LOG.exception("event=block_watch_failed")
                self._say(f"whether alerts can come is not known: looking raised {type(error).__name__}: {error}. "
                          "It is tried again; see also: irregulars doctor")  # fmt: skip


def watch(settings: Settings, group: str, say: Callable[[str], None], every_s: float = EVERY_S) -> BlockWatch:
    """Return a watch of an installation; `group` is the consumer group of its workers."""
    question = Question(group, only=_ONLY, within_s=_WITHIN_S)
    return BlockWatch(lambda: diagnose(LenientSettings(settings), question), say, every_s=every_s)


def is_blocking(one: Finding) -> bool:
    """Whether no alert comes for it, of some job or of all."""
    if (one.group, one.subject) == ("kafka", "broker"):
        return one.level == "problem"
    return one.code in BLOCKING and one.level != "unknown" and (one.level == "problem" or one.code == "none_closes")


def line_of(one: Finding) -> str:
    """Return what is said.

    >>> from irregulars.infra.doctor.checks.findings import finding
    >>> line_of(finding("problem", "topics", "topics", "1 topic missing: a.jobs", "topic_missing"))
    'NO ALERT CAN COME: topics: 1 topic missing: a.jobs. What to do: irregulars topics create'
    """
    return f"NO ALERT CAN COME: {one.subject}: {one.text}. What to do: {one.to_do}"
