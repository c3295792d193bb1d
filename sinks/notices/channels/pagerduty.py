"""PagerDuty, over its Events API v2: one incident there for one of ours."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Final

from irregulars.sinks.notices.channels.http_post import HttpPost, HttpSettings, Secret
from irregulars.sinks.notices.devices import device_of, host_of
from irregulars.sinks.notices.notice import Notice
from irregulars.sinks.notices.text import summary_of

URL: Final = "https://events.pagerduty.com/v2/enqueue"
LONGEST_KEY: Final = 255
LONGEST_SUMMARY: Final = 1024
SEVERITIES: Final = {"page": "critical", "ticket": "warning", "note": "info"}
_LONGEST: Final = 2000


class PagerDutyChannel:
    """Triggers and resolves. An update triggers the same `dedup_key` again, which pages nobody anew.

    Parameters
    ----------
    name
        Of the channel.
    routing_key
        Gives the integration key of a service.
    url
        Where events go.
    settings
        How to reach it.
    """

    def __init__(self, name: str, routing_key: Secret, url: str = URL, settings: HttpSettings | None = None) -> None:
        self.name: Final = name
        self._routing_key: Final = routing_key
        self._http: Final = HttpPost(lambda: url, settings, [routing_key])

    def deliver(self, notice: Notice) -> str | None:
        """Send an event; see `Channel.deliver`."""
        body = {"routing_key": self._routing_key(), **event_of(notice)}
        self._http.post(json.dumps(body).encode(), {"Content-Type": "application/json"})
        return None

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()


def event_of(notice: Notice) -> dict[str, Any]:
    """Return the event without the routing key."""
    event: dict[str, Any] = {
        "event_action": "resolve" if notice.event == "resolved" else "trigger",
        "dedup_key": dedup_key(notice.incident),
        "client": "irregulars",
        "payload": _payload(notice),
    }
    return event


def dedup_key(incident: str) -> str:
    """Return the incident's id, or, where that is too long for PagerDuty, its beginning and a digest of it.

    >>> dedup_key("llama:1:25:0"), len(dedup_key("x" * 300))
    ('llama:1:25:0', 255)
    """
    if len(incident) <= LONGEST_KEY:
        return incident
    digest = hashlib.sha256(incident.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{incident[: LONGEST_KEY - 33]}-{digest}"


def _payload(notice: Notice) -> dict[str, Any]:
    alert = notice.alert
    payload = {
        "summary": summary_of(notice, LONGEST_SUMMARY),
        "source": host_of(alert) or str(alert["job"]),
        "severity": SEVERITIES[notice.severity],
        "timestamp": _timestamp(alert.get("time_ns")),
        "component": device_of(alert),
        "group": str(alert["job"]),
        "class": str(alert["kind"]),
        "custom_details": _details(notice),
    }
    return {name: value for name, value in payload.items() if value is not None}


def _details(notice: Notice) -> dict[str, Any]:
    alert = notice.alert
    names = ("verdict_id", "revision", "attempt", "iterations", "delta", "lost_s", "gpu_hours_lost", "world_size",
             "communicator", "recovers_ratio", "close_reason")  # fmt: skip
    return {
        **{name: alert.get(name) for name in names},
        "evidence": str(alert["evidence"])[:_LONGEST],
        "next_step": str(alert["next_step"])[:_LONGEST],
        "earlier_verdicts": list(notice.earlier),
        "muted": notice.muted,
    }


def _timestamp(time_ns: int | None) -> str | None:
    try:
        return (
            None if time_ns is None else datetime.fromtimestamp(time_ns / 10**9, UTC).isoformat("T", "milliseconds")
        )
    except (OverflowError, ValueError, OSError):
        return None
