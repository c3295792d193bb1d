"""A notice in words: one line for people, and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.messages.records import VERSION
from irregulars.printing import printable
from irregulars.sinks.alerts import summarise
from irregulars.sinks.notices.devices import device_of
from irregulars.sinks.notices.incidents import REPEATS
from irregulars.sinks.notices.notice import Notice

_ORDINALS: Final = {3: "third", 4: "fourth", 5: "fifth"}


def summary_of(notice: Notice, most: int | None = None) -> str:
    """Return one line for a person: what happened, where, what it costs, what to do next.

    Parameters
    ----------
    most
        Characters at most; what is cut ends with an ellipsis. None: all.
    """
    if notice.incidents:
        text = printable(f"{notice.event.upper()} {notice.alert['summary']}")
    else:
        told = replace(verdict_of(notice.alert), event=_event(notice), severity=notice.severity)
        remarks = [_repeats(notice), _record(notice), _muted(notice)]
        text = " ".join([summarise(told), *(one for one in remarks if one)])
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def notice_json(notice: Notice) -> dict[str, Any]:
    """Return the object of ``sinks/notices/notice.json``: what channels for machines are sent."""
    return {
        "schema": "notice",
        "version": VERSION,
        "event": notice.event,
        "incident": notice.incident,
        "revision": notice.revision,
        "severity": notice.severity,
        "summary": summary_of(notice),
        "device": device_of(notice.alert),
        "earlier": list(notice.earlier),
        "is_repeat_offender": is_repeat_offender(notice),
        "probability": None if notice.probability is None else round(notice.probability, 4),
        "judged_right": 0 if notice.record is None else notice.record.right,
        "judged_wrong": 0 if notice.record is None else notice.record.wrong,
        "muted": notice.muted,
        "link": notice.link,
        "runbook": notice.runbook,
        "alert": dict(notice.alert),
        **({"incidents": list(notice.incidents)} if notice.incidents else {}),
    }


def encode_notice(notice: Notice) -> bytes:
    """Return `notice_json` as bytes; the same notice gives the same."""
    return json.dumps(notice_json(notice), separators=(",", ":"), allow_nan=False).encode()


def is_repeat_offender(notice: Notice) -> bool:
    """Whether it is the third verdict on its device within a week, or a later one."""
    return len(notice.earlier) + 1 >= REPEATS


def verdict_of(alert: Mapping[str, Any]) -> Verdict:
    """Return the verdict that a decoded alert holds; raises `RecordError` where it breaks its schema."""
    return decode_verdict(json.dumps(dict(alert)).encode(), "alerts")


def _event(notice: Notice) -> str:
    """Return which word begins the line: of an update the verdict's own, where it says more."""
    own = str(notice.alert.get("event"))
    return own if notice.event == "updated" and own in ("changed", "raised") else notice.event


def _repeats(notice: Notice) -> str:
    if not is_repeat_offender(notice):
        return ""
    count = len(notice.earlier) + 1
    return f"This is the {_ORDINALS.get(count, f'{count}th')} verdict on this device within 7 days."


def _record(notice: Notice) -> str:
    if notice.record is None:
        return ""
    judged, kind = notice.record.right + notice.record.wrong, str(notice.alert["kind"]).replace("_", " ")
    text = f"Of {judged} such verdicts ({kind}) that people here judged, {notice.record.right} were right"
    return f"{text}." if notice.probability is None else f"{text}: {min(notice.probability, 0.99):.0%} sure by that."


def _muted(notice: Notice) -> str:
    return f"It was {notice.muted}." if notice.muted else ""
