"""A notice: one message about one incident, and the protocol of the channels that carry it.

An incident is one verdict with its whole life. Everybody hears of it once, sees it change, and hears of its end: the
verdict's id names it on every channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.sinks.notices.opinions import TrackRecord

NoticeEvent = Literal["opened", "updated", "resolved"]
_Body = TypeVar("_Body")
_SHOWN: Final = 500

AWAY_S: Final = 1.0
"""Least seconds for which a channel is left alone whose other side does not answer, or takes nothing now."""


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
    record
        How often people here called verdicts of its kind right; None: nobody judged one.
    muted
        Of an incident that was muted while it was open already: until when, by whom and why; else None.
    link
        Its page in the console; None: nobody said where the console is.
    runbook
        URL of what to do about a verdict of its kind; None: nobody said where that is.
    is_doubtful
        Of one that opens: whether an earlier try to tell that may have arrived, unbeknown to us.
    incidents
        Of a storm: ids of the verdicts that it stands for, the newest first; the alert is made of theirs.
    """

    event: NoticeEvent
    alert: Mapping[str, Any]
    severity: str
    earlier: tuple[str, ...] = ()
    reference: str | None = None
    muted: str | None = None
    record: TrackRecord | None = None
    link: str | None = None
    runbook: str | None = None
    is_doubtful: bool = False
    incidents: tuple[str, ...] = ()

    @property
    def incident(self) -> str:
        """Id of the incident: the verdict's."""
        return str(self.alert["verdict_id"])

    @property
    def probability(self) -> float | None:
        """How sure we are here of the first suspect, 0 to 1, by what people said of such verdicts; None: not."""
        suspects = self.alert.get("suspects") or ()
        told = suspects[0].get("probability") if suspects else None
        return told if told is None or self.record is None else self.record.probability(told)

    @property
    def revision(self) -> int:
        """Revision of the verdict that it rests on."""
        return int(self.alert["revision"])

    @property
    def idempotency_key(self) -> str:
        """32 hexadecimal digits, the same for the same notice, however often it is delivered."""
        named = f"{self.incident}\n{self.revision}\n{self.event}\n{self.severity}"
        return sha256(named.encode(errors="surrogatepass")).hexdigest()[:32]


def incident_link(console_url: str | None, verdict_id: str) -> str | None:
    """Return the address of an incident's page; None where nobody said where the console is.

    >>> incident_link("https://console/", "a/b:1:25:0")
    'https://console/incidents/a%2Fb:1:25:0'
    """
    if console_url is None:
        return None
    named = quote(verdict_id, safe=":", errors="surrogatepass")
    return f"{console_url.rstrip('/')}/incidents/{named}"


def written(write: Callable[[Notice], _Body], notice: Notice) -> _Body:
    """Return a notice as `write` puts it; raises `SinkRejected` where it can't be put so.

    A channel does this before it sends anything: what can't be written now never can, and no other notice is to wait
    behind its tries.
    """
    try:
        return write(notice)
    except Exception as error:
        reason = f"notice must be one that can be written; got {type(error).__name__}: {error}"[:_SHOWN]
        raise SinkRejected(reason, (notice,)) from error


class NotArrived(SinkBusy):
    """The channel can't take a notice now, and surely did not take it: what never arrived needs no end.

    After a plain `SinkBusy` (no answer in time, for example) it may have: then the incident's end is told anyway.
    """


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
            Not now: the same notice comes again later. With a ``retry_after_s`` above 0 nothing else comes before
            that either: the other side is away, or wants to be left alone. With 0 only this notice waits. Or
            `NotArrived`, where that is known.
        SinkRejected
            Never: the notice goes to the dead-letter topic with the reason, and the incident's next one is tried.
        """

    def close(self) -> None:
        """Let go of all resources. Closing twice is fine."""
