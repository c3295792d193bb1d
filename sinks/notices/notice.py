"""A notice: one message about one incident, and the protocol of the channels that carry it.

An incident is one verdict with its whole life. Everybody hears of it once, sees it change, and hears of its end: the
verdict's id names it on every channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

NoticeEvent = Literal["opened", "updated", "resolved"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One message about one incident.

    Parameters
    ----------
    event
        ``opened`` is told once for each incident, ``resolved`` is its end.
    alert
        The message of the topic ``alerts`` that it rests on, decoded: its ``verdict_id`` names the incident.
    severity
        ``ticket`` or ``page``: what is told, which may be less than the verdict's own while a page is held back.
    earlier
        Ids of verdicts on the same device within the week before, oldest first: a repeat offender has two or more.
    reference
        What the channel returned for this incident's notice before, for channels that update a message; else None.
    """

    event: NoticeEvent
    alert: Mapping[str, Any]
    severity: str
    earlier: tuple[str, ...] = ()
    reference: str | None = None

    @property
    def incident(self) -> str:
        """Id of the incident: the verdict's."""
        return str(self.alert["verdict_id"])


class Channel(Protocol):
    """Somewhere to tell. No base class is needed; a stranger's channel is found by dotted path."""

    @property
    def name(self) -> str:
        """Short name: in settings, metrics, and in the log of what was delivered."""

    def deliver(self, notice: Notice) -> str | None:
        """Deliver; the same notice twice must change nothing.

        Returns
        -------
        str
            A reference that the incident's next notice shall carry (a message's id); None: none is needed.

        Raises
        ------
        SinkBusy
            Not now: the same notice comes again after ``retry_after_s``.
        SinkRejected
            Never: the notice goes to the dead-letter topic with the reason, and the incident's next one is tried.
        """

    def close(self) -> None:
        """Let go of all resources. Closing twice is fine."""
