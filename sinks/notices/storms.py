"""Incidents that open too fast for a channel, in one notice: how many, and which device, host or kind they share.

A dead switch or file system fails a thousand jobs at once. A thousand notices hide the cause, and hold up the one
that is about something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from irregulars.messages.judgements import SEVERITIES, urgency_of
from irregulars.messages.records import VERSION
from irregulars.printing import counted
from irregulars.sinks.notices.incidents import Incident, device_of, host_of
from irregulars.words import name_kind

_NS: Final = 10**9

# Incidents with notices of their own within `MINUTE_NS`; those after them share one. A fleet opens a few an hour.
# Each incident has up to three notices (opened, raised to a page, resolved), and a storm ends within twenty.
OPENINGS: Final = 5

MINUTE_NS: Final = 60 * _NS
# From the first incident of a storm to its first notice: an incident alone by then gets a notice of its own
GATHER_NS: Final = 2 * _NS

# Between two notices of a storm: an incident that joins it is in one within this time, beside the channel's own
UPDATE_NS: Final = 6 * _NS

_NAMED: Final = 5
_LINE: Final = 160
_ID_CHARACTERS: Final = 200_000  # of all ids together: with them a notice still fits into a message of Kafka


@dataclass(frozen=True, slots=True)
class Storm:
    """Incidents that share the notices of one channel.

    `storm_id`: Names it where an incident has the id of its verdict; `members`: Ids of the incidents, in the order in
    which they came, as keys.
    """

    storm_id: str
    channel: str
    begun_ns: int
    members: dict[str, None] = field(default_factory=dict)


def storm_alert(
    storm: Storm, known: Sequence[Incident], severity: str, *, is_over: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the notice of a storm in the form of an alert, and the ids that it names.

    `known`: Those of its incidents of which alerts are known; `severity`: the worst of them.
    """
    alerts = [one.alert for one in known]
    jobs, kinds = ({str(one[name]) for one in alerts} for name in ("job", "kind"))
    hours = [one["gpu_hours_lost"] for one in alerts if one["gpu_hours_lost"] is not None]
    lost = [f"{sum(hours):,.3g} GPU-hours lost{'' if is_over else ' so far'}"] if hours else []
    switch, host = _most("switch", map(_switch_of, alerts)), _most("host", map(host_of, alerts))
    place = switch[1] or host[1] or "what all of these jobs use (storage, fabric)"
    shared = [_most("kind", (name_kind(str(one["kind"])) for one in alerts))[0], switch[0], host[0]]
    times = [one.first_ns for one in known]
    within = [f"opened within {(max(times) - min(times)) / _NS:.0f} s"] if times else []
    facts = "; ".join([*(one for one in shared if one), *within, *lost])
    about = f"{counted(len(storm.members), 'incident')} in {counted(len(jobs), 'job')} ({severity})"
    return {
        "summary": f"{about}: {facts}. Next: look at {place} first.",
        "schema": "alerts", "version": VERSION, "verdict_id": storm.storm_id, "revision": len(storm.members),
        "state": "closed" if is_over else "open", "job": _only(jobs, "several jobs"),
        "kind": _only(kinds, "several kinds"), "iterations": [0, 0], "delta": None, "lost_s": None,
        "communicator": None, "suspects": [], "evidence": _named(alerts), "attempt": 0, "world_size": 0,
        "time_ns": max((one.get("time_ns") or 0 for one in alerts), default=None), "close_reason": None,
        "event": "closed" if is_over else "opened", "severity": severity, "recovers_ratio": None,
        "gpu_hours_lost": sum(hours) if hours else None,
        "next_step": f"Look at {place} first. All of them: irregulars alerts --from-start --end",
    }, _ids(storm)  # fmt: skip


def _ids(storm: Storm) -> tuple[str, ...]:
    """Return the ids of its incidents, the newest first, as many as fit into a message."""
    found, left = [], _ID_CHARACTERS
    for one in reversed(storm.members):
        left -= len(one) + 3
        if left < 0:
            break
        found.append(one)
    return tuple(found)


def _most(name: str, found: Iterable[str | None]) -> tuple[str | None, str | None]:
    """Return the words for one fact of all incidents, and the value that most of them share; None: not known."""
    values = list(found)
    counts = Counter(one for one in values if one is not None)
    if not counts:
        return None, None
    value, count = counts.most_common(1)[0]
    value = value if name == "kind" else f"{name} {value}"
    if count == len(values):
        return f"all {value}", value
    return (f"{count:,} {value}", value) if 2 * count > len(values) else (counted(len(counts), name), None)


def _only(found: set[str], otherwise: str) -> str:
    return found.copy().pop() if len(found) == 1 else otherwise


def _switch_of(alert: Mapping[str, Any]) -> str | None:
    return alert["suspects"][0].get("switch") if alert["suspects"] else None


def _named(alerts: Sequence[Mapping[str, Any]]) -> str:
    """Name the newest, and those that are most urgent, of the largest jobs."""

    def weight(alert: Mapping[str, Any]) -> tuple[int, int]:
        return SEVERITIES.index(urgency_of(alert.get("severity"))), alert.get("world_size") or 0

    largest = sorted(alerts, key=weight, reverse=True)
    groups = (("Newest", list(reversed(alerts))), ("Most urgent and largest", largest))
    return " ".join(f"{title}: {'; '.join(map(_line, found[:_NAMED]))}." for title, found in groups)


def _line(alert: Mapping[str, Any]) -> str:
    about = f"{alert['verdict_id']} ({name_kind(str(alert['kind']))}, {device_of(alert) or 'no device named'})"
    return about if len(about) <= _LINE else f"{about[: _LINE - 1]}…"
