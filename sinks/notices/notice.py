"""A notice: one message about one incident, its words, and the protocol of the channels that carry it.

An incident is one verdict with its whole life. Each channel is notified that it opened, of its changes, and of its
end: the verdict's id names it on every channel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.messages.judgements import decode_verdict
from irregulars.messages.records import VERSION
from irregulars.printing import printable
from irregulars.sinks.alerts import summarise
from irregulars.sinks.notices.incidents import REPEATS, device_of
from irregulars.sinks.notices.mutes import TrackRecord

NoticeEvent = Literal["opened", "updated", "resolved"]
_Body = TypeVar("_Body")
_SHOWN: Final = 500
_ORDINALS: Final = {3: "third", 4: "fourth", 5: "fifth"}

# Least seconds for which a channel is left alone whose other side does not answer, or takes nothing now
AWAY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Notice:
    """One message about one incident."""

    event: NoticeEvent  # ``opened`` is delivered once for each incident, ``resolved`` is its end
    # The message of the topic ``alerts`` that it rests on, decoded: its ``verdict_id`` names the incident
    alert: Mapping[str, Any]
    severity: str  # ``ticket`` or ``page``; it may be less than the verdict's own while a page is held back
    # Ids of verdicts on the same device within the week before, oldest first: a repeat offender has two or more
    earlier: tuple[str, ...] = ()
    # Returned by the channel for this incident's notice before, where the channel updates a message; else None
    reference: str | None = None
    # Of an incident that was muted while it was open: end, author and reason of the mute; else None
    muted: str | None = None
    # How often people here called verdicts of its kind right; None: no verdict was judged by people
    record: TrackRecord | None = None
    link: str | None = None  # its page in the console; None: `console_url` is not set
    runbook: str | None = None  # URL of the steps for a verdict of its kind; None: `runbook_url` is not set
    # Of one that opens, or is muted: whether an earlier try to deliver one may have arrived, unbeknown to us
    is_doubtful: bool = False
    incidents: tuple[str, ...] = ()  # of a storm: ids of its verdicts, the newest first; the alert is made of theirs
    is_muted: bool = False  # whether a mute holds back all that is new in it: it only takes proposals back

    @property
    def incident(self) -> str:
        """Id of the incident: the verdict's."""
        return str(self.alert["verdict_id"])

    @property
    def probability(self) -> float | None:
        """Probability of the first suspect, 0 to 1, corrected by people's words on such verdicts; None: unknown."""
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

    @property
    def is_repeat_offender(self) -> bool:
        """Whether it is the third verdict on its device within a week, or a later one."""
        return len(self.earlier) + 1 >= REPEATS


def incident_link(console_url: str | None, verdict_id: str) -> str | None:
    """Return the address of an incident's page; None where the console's address is not set.

    >>> incident_link("https://console/", "a/b:1:25:0")
    'https://console/incidents/a%2Fb:1:25:0'
    """
    if console_url is None:
        return None
    named = quote(verdict_id, safe=":", errors="surrogatepass")
    return f"{console_url.rstrip('/')}/incidents/{named}"


def written(write: Callable[[Notice], _Body], notice: Notice) -> _Body:
    """Return a notice as `write` puts it; raises `SinkRejected` where it can't be put so.

    A channel does this before it sends anything: a notice that can't be written now never can, and no other notice
    is to wait behind its tries.
    """
    try:
        return write(notice)
    except Exception as error:
        reason = f"notice must be one that can be written; got {type(error).__name__}: {error}"[:_SHOWN]
        raise SinkRejected(reason, (notice,)) from error


class NotArrived(SinkBusy):
    """The channel can't take a notice now, and surely did not take it: a notice that never arrived needs no end.

    After a plain `SinkBusy` (no answer in time, for example) it may have: then its end is delivered anyway.
    """


class Channel(Protocol):
    """Where notices go. No base class is needed; a stranger's channel is found by dotted path."""

    @property
    def name(self) -> str:
        """Short name: in settings, metrics, and in records of deliveries."""

    def deliver(self, notice: Notice) -> str | None:
        """Deliver; the same notice twice must change nothing.

        Return a reference that the incident's next notice shall carry (a message's id); None: none is needed. Raises
        `SinkBusy` (not now: the same notice comes again later. With a ``retry_after_s`` above 0 nothing else comes
        before that either: the other side is away, or wants to be left alone. With 0 only this notice waits. Or
        `NotArrived`, where that is known). Raises `SinkRejected` (Never: the notice goes to the dead-letter topic
        with the reason, and the incident's next one is tried).
        """

    def close(self) -> None:
        """Let go of all resources. Closing twice is fine."""


def summary_of(notice: Notice, most: int | None = None) -> str:
    """Return one line for a person, cut to `most` characters: event, place, cost, and the next step."""
    if notice.incidents:
        text = printable(f"{notice.event.upper()} {notice.alert['summary']}")
    else:
        own = str(notice.alert.get("event"))  # the verdict's own word where it says more
        event = own if notice.event == "updated" and own in ("changed", "raised") else notice.event
        verdict = decode_verdict(json.dumps(dict(notice.alert)).encode(), "alerts")
        remarks = [summarise(replace(verdict, event=event, severity=notice.severity))]
        if notice.is_repeat_offender:
            count = len(notice.earlier) + 1
            ordinal = _ORDINALS.get(count, f"{count}th")
            remarks.append(f"This is the {ordinal} verdict on this device within 7 days.")
        if notice.record is not None:
            judged, kind = notice.record.right + notice.record.wrong, str(notice.alert["kind"]).replace("_", " ")
            told = f"Of {judged} such verdicts ({kind}) that people here judged, {notice.record.right} were right"
            sure = "" if notice.probability is None else f": {min(notice.probability, 0.99):.0%} sure by that"
            remarks.append(f"{told}{sure}.")
        if notice.muted:
            remarks.append(f"It was {notice.muted}.")
        text = " ".join(remarks)
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def notice_json(notice: Notice) -> dict[str, Any]:
    """Return the object of ``sinks/notices/notice.json``: the body for channels that are machines."""
    return {
        "schema": "notice", "version": VERSION, "event": notice.event, "incident": notice.incident,
        "revision": notice.revision, "severity": notice.severity, "summary": summary_of(notice),
        "device": device_of(notice.alert), "earlier": list(notice.earlier),
        "is_repeat_offender": notice.is_repeat_offender,
        "probability": None if notice.probability is None else round(notice.probability, 4),
        "judged_right": 0 if notice.record is None else notice.record.right,
        "judged_wrong": 0 if notice.record is None else notice.record.wrong, "muted": notice.muted,
        "link": notice.link, "runbook": notice.runbook, "alert": dict(notice.alert),
        **({"incidents": list(notice.incidents)} if notice.incidents else {}),
    }  # fmt: skip


def encode_notice(notice: Notice) -> bytes:
    """Return `notice_json` as bytes; the same notice gives the same."""
    return json.dumps(notice_json(notice), separators=(",", ":"), allow_nan=False).encode()
