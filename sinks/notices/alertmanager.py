"""Prometheus's Alertmanager, over its API v2.

An alert there is its labels: with others it is another alert, and the old one never ends. So the labels are made when
an incident is first told, and kept as they were in the reference that comes back with each later notice. Facts
that a revision changes (another suspect, another kind, all numbers) are annotations. The severity is a label, since
people route by it; where a page follows a ticket, the alert of the ticket ends and one of a page begins.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from irregulars.errors import InputError
from irregulars.sinks.notices.http_post import HttpChannel, HttpOptions, HttpPost, Secret
from irregulars.sinks.notices.incidents import device_of, host_of
from irregulars.sinks.notices.notice import Notice, summary_of, written
from irregulars.words import iso_time

ALERT_NAME: Final = "TrainingSlowed"
PATH: Final = "/api/v2/alerts"
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN: Final = ("alertname", "verdict", "job", "kind", "device", "host", "severity")
_LONGEST: Final = 2000


class AlertmanagerChannel(HttpChannel):
    """Posts alerts, again before they expire, and their end.

    A page after a ticket is another alert there, with the label ``severity="page"``: the one of the ticket ends with
    the same request. So routes by severity work, and nothing changes its labels. `labels`: of each alert, beside our
    own; `expires_s`: seconds after which an alert that is not told again ends by itself. Raises `InputError` if a
    label has no name that Prometheus knows, or one of ours.
    """

    def __init__(
        self, name: str, url: str, settings: HttpOptions | None = None, token: Secret | None = None,
        labels: Mapping[str, str] | None = None, expires_s: float = 600.0, *, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.name: Final = name
        # So that two repetitions in a row may fail before the alert ends by itself.
        self.repeat_s: Final = expires_s / 3
        self._expires_s, self._token, self._now = expires_s, token, now
        self._labels: Final = dict(labels or {})
        for label in self._labels:
            if not _LABEL.fullmatch(label) or label in _OWN:
                rule = f"letters, digits and _, and none of {', '.join(_OWN)}"
                raise InputError(f"label must be {rule}; got {label!r}")
        self._http = HttpPost(lambda: url.rstrip("/"), settings, [] if token is None else [token])

    def deliver(self, notice: Notice) -> str | None:
        """Post it; see `Channel.deliver`."""
        alerts, reference = written(self.alerts, notice)
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token()}"
        self._http.post(json.dumps(alerts).encode(), headers, PATH)
        return reference

    def alerts(self, notice: Notice) -> tuple[list[dict[str, Any]], str]:
        """Return the body of the request, and the reference that holds labels and start."""
        known: dict[str, Any] = json.loads(notice.reference) if notice.reference else {}
        now_s = self._now()
        start_s = float(known.get("start_s", now_s))
        labels: dict[str, str] = known.get("labels") or {}
        if not labels:
            facts = {
                "alertname": ALERT_NAME, "verdict": notice.incident, "job": notice.alert["job"],
                "kind": notice.alert["kind"], "device": device_of(notice.alert), "host": host_of(notice.alert),
                "severity": notice.severity,
            }  # fmt: skip
            labels = self._labels | {name: str(value) for name, value in facts.items() if value}
        alerts = []
        if labels["severity"] != notice.severity:
            alerts.append(self._alert(labels, notice, start_s, now_s))
            labels, start_s = {**labels, "severity": notice.severity}, now_s
        end_s = now_s if notice.event == "resolved" else now_s + self._expires_s
        alerts.append(self._alert(labels, notice, start_s, end_s))
        return alerts, json.dumps({"labels": labels, "start_s": start_s}, sort_keys=True)

    def _alert(self, labels: Mapping[str, str], notice: Notice, start_s: float, end_s: float) -> dict[str, Any]:
        alert = {
            "labels": dict(labels),
            "annotations": annotations_of(notice),
            # Our clock may have been set back since the start, and Alertmanager refuses an end before it.
            "startsAt": iso_time(1e9 * min(start_s, end_s)),
            "endsAt": iso_time(1e9 * end_s),
        }
        return alert if notice.link is None else {**alert, "generatorURL": notice.link}


def annotations_of(notice: Notice) -> dict[str, str]:
    """Return the facts that may change: texts and numbers of the newest revision, as texts."""
    alert = notice.alert
    facts = {
        "summary": summary_of(notice, _LONGEST),
        "description": str(alert["evidence"])[:_LONGEST],
        "next_step": str(alert["next_step"])[:_LONGEST],
        "kind": alert["kind"],
        "device": device_of(alert),
        "probability": notice.probability,
        "delta": alert.get("delta"),
        "lost_s": alert.get("lost_s"),
        "gpu_hours_lost": alert.get("gpu_hours_lost"),
        "revision": notice.revision,
        "earlier_verdicts": ", ".join(notice.earlier) if notice.is_repeat_offender else None,
        "muted": notice.muted,
        "link": notice.link,
        "runbook_url": notice.runbook,  # the name that Prometheus's own rules use
    }
    return {name: str(value) for name, value in facts.items() if value is not None}
