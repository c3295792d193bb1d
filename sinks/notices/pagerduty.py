"""PagerDuty, over its Events API v2.

An event with a `dedup_key` that is open there wakes nobody again, however urgent it is. So a page has another key
than a ticket: where a page follows a ticket, the incident of the page is triggered, and then that of the ticket
resolved.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from irregulars.sinks.notices.http_post import HttpChannel, HttpOptions, HttpPost, Secret
from irregulars.sinks.notices.incidents import device_of, host_of
from irregulars.sinks.notices.notice import Notice, summary_of, written
from irregulars.words import iso_time

URL: Final = "https://events.pagerduty.com/v2/enqueue"
LONGEST_KEY: Final = 255
LONGEST_SUMMARY: Final = 1024
SEVERITIES: Final = {"page": "critical", "ticket": "warning", "note": "info"}
_LONGEST: Final = 2000


class PagerDutyChannel(HttpChannel):
    """Triggers and resolves. An update triggers the same `dedup_key` again, which wakes nobody anew."""

    def __init__(self, name: str, routing_key: Secret, url: str = URL, settings: HttpOptions | None = None) -> None:
        self.name: Final = name
        self._routing_key: Final = routing_key
        self._http = HttpPost(lambda: url, settings, [routing_key])

    def deliver(self, notice: Notice) -> str | None:
        """Send one event, or two; the reference is the key of the incident open there."""
        for event in written(events_of, notice):
            body = {"routing_key": self._routing_key(), **event}
            self._http.post(json.dumps(body).encode(), {"Content-Type": "application/json"})
        return dedup_key(notice.incident, notice.severity)


def events_of(notice: Notice) -> list[dict[str, Any]]:
    """Return the events in their order, without the routing key.

    Events that may be open there end: with the incident, or once a page has taken the ticket's place. An end that
    nothing waits for changes nothing there, so that it is sent wherever the channel may not know of the last notice.
    """
    now, keys = dedup_key(notice.incident, notice.severity), {dedup_key(notice.incident, one) for one in SEVERITIES}
    if notice.event == "resolved":
        ending = sorted(keys if notice.reference is None else {now, notice.reference})
        return [_event("resolve", key, notice) for key in ending]
    before = dedup_key(notice.incident, "ticket") if notice.is_doubtful else notice.reference
    others = [] if before in (None, now) else [before]
    return [_event("trigger", now, notice), *(_event("resolve", str(key), notice) for key in others)]


def _event(action: str, key: str, notice: Notice) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event_action": action, "dedup_key": key, "client": "irregulars", "payload": _payload(notice),
    }  # fmt: skip
    if notice.link is not None:
        event["client_url"] = notice.link
    named = {"The incident, live": notice.link, "Runbook": notice.runbook}
    links = [{"href": url, "text": text} for text, url in named.items() if url is not None]
    if action == "trigger" and links:
        event["links"] = links
    return event


def dedup_key(incident: str, severity: str = "page") -> str:
    """Return the incident's id, with ``/ticket`` where it is no page; of an id that is too long, with a digest of it.

    >>> dedup_key("llama:1:25:0"), dedup_key("llama:1:25:0", "ticket"), len(dedup_key("x" * 300))
    ('llama:1:25:0', 'llama:1:25:0/ticket', 255)
    """
    named = incident if severity == "page" else f"{incident}/ticket"
    if len(named) <= LONGEST_KEY:
        return named
    digest = hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{named[: LONGEST_KEY - 33]}-{digest}"


def _payload(notice: Notice) -> dict[str, Any]:
    alert = notice.alert
    names = ("verdict_id", "revision", "attempt", "iterations", "delta", "lost_s", "gpu_hours_lost", "world_size",
             "communicator", "recovers_ratio", "close_reason")  # fmt: skip
    payload = {
        "summary": summary_of(notice, LONGEST_SUMMARY),
        "source": host_of(alert) or str(alert["job"]),
        "severity": SEVERITIES[notice.severity],
        "timestamp": _timestamp(alert.get("time_ns")),
        "component": device_of(alert),
        "group": str(alert["job"]),
        "class": str(alert["kind"]),
        "custom_details": {
            **{name: alert.get(name) for name in names},
            "evidence": str(alert["evidence"])[:_LONGEST],
            "next_step": str(alert["next_step"])[:_LONGEST],
            "earlier_verdicts": list(notice.earlier),
            "muted": notice.muted,
        },
    }
    return {name: value for name, value in payload.items() if value is not None}


def _timestamp(time_ns: int | None) -> str | None:
    try:
        return None if time_ns is None else iso_time(time_ns)
    # A time beyond the calendar: the field is left out, which PagerDuty allows.
    except ValueError:
        return None
