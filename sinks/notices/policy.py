"""What a channel is told of an incident, and when: a pure function of what is known, what was told, and the time.

A decision compares what the incident is with what the channel was told of it. So replays, duplicates and other orders
of alerts change nothing: what was told already is not told again, and what is older than that never is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from irregulars.messages.judgements import SEVERITIES, urgency_of
from irregulars.sinks.notices.incidents import Incident
from irregulars.sinks.notices.mutes import Mute, mute_of, past_mute_of
from irregulars.sinks.notices.notice import Notice, NoticeEvent
from irregulars.sinks.notices.told import Told


@dataclass(frozen=True, slots=True)
class Rules:
    """What one channel wants to hear.

    Parameters
    ----------
    hold_s
        Seconds for which a page is told as a ticket at most: an incident that ends meanwhile pages nobody.
    least_severity
        Less urgent incidents are not told.
    least_gpu_hours
        Nor are those that have cost less; one whose cost is not known is told.
    jobs
        Shell patterns: jobs that match none of them are not told.
    repeat_s
        Seconds after which the channel is told again what it was told last, while the incident is open; None: never.
    console_url
        Where people reach the console; None: notices have no link.
    runbook_url
        Where the runbook is, to which notices link; None: to none.
    gathers
        Whether incidents that open too fast are told as one (`sinks.notices.storms`).
    """

    hold_s: float = 60.0
    least_severity: str = "ticket"
    least_gpu_hours: float = 0.0
    jobs: tuple[str, ...] = ("*",)
    repeat_s: float | None = None
    console_url: str | None = None
    runbook_url: str | None = None
    gathers: bool = True


@dataclass(frozen=True, slots=True)
class Tell:
    """Deliver this now. `is_repeat`: the channel was told the same before."""

    notice: Notice
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing before `until_ns`; `reason` is ``held``, ``muted`` or ``repeat``."""

    until_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing, until an alert or a mute comes that changes it; `reason` says why, for people."""

    reason: str


Decision = Tell | Wait | Settled
_NS: Final = 10**9


def decide(
    incident: Incident,
    told: Told | None,
    rules: Rules,
    mutes: Collection[Mute],
    now_ns: int,
    earlier: tuple[str, ...] = (),
) -> Decision:
    """Decide what a channel is to be told of an incident.

    Parameters
    ----------
    told
        What it was told last; None: nothing.
    mutes
        All that are known, those that are over too.
    now_ns
        The time, ns since the epoch.
    earlier
        Verdicts on the same device within the week before.
    """
    if told is not None and told.state == "closed":
        return Settled("its end was told")
    if not incident.is_open:
        return _end(incident, told, earlier)
    refusal = _unwanted(incident.alert, rules)
    if refusal is not None:
        return Settled(refusal)
    mute = mute_of(incident.alert, mutes, now_ns)
    if mute is not None:
        return _muted(incident, told, rules, mute.until_ns, now_ns, earlier)
    severity, held_until_ns = severity_now(incident, rules, now_ns)
    if _is_less(severity, rules.least_severity):
        return Settled("less urgent than the channel wants") if held_until_ns is None else Wait(held_until_ns, "held")
    if told is not None and told.state == "open":
        return _update(incident, told, rules, severity, held_until_ns, now_ns, earlier)
    if _is_known(told, incident) and told is not None and not _is_less(told.severity, severity):
        return _wait_or("given up, until there is news", held_until_ns)
    muted = past_mute_of(incident.alert, mutes, incident.first_ns, now_ns)
    reference = None if told is None else told.reference
    words = None if muted is None else muted.describe()
    is_doubtful = told is not None and told.state in ("trying", "doubtful")
    return Tell(Notice("opened", incident.alert, severity, earlier, reference, words, is_doubtful=is_doubtful))


def _is_known(told: Told | None, incident: Incident) -> bool:
    """Whether a channel that did not hear of the opening had its tries at this revision."""
    return told is not None and told.state != "trying" and told.revision >= incident.revision


def _end(incident: Incident, told: Told | None, earlier: tuple[str, ...]) -> Decision:
    if told is None or told.state == "refused":
        return Settled("it ended before anybody was told")
    return Tell(Notice("resolved", incident.alert, told.severity, earlier, told.reference))


def _unwanted(alert: Mapping[str, Any], rules: Rules) -> str | None:
    if not any(fnmatchcase(str(alert["job"]), pattern) for pattern in rules.jobs):
        return "its job is not one of those that are told"
    hours = alert.get("gpu_hours_lost")
    loses_more = alert["kind"] == "hang" and alert["state"] != "closed"  # its loss is counted when it closes
    if hours is not None and hours < rules.least_gpu_hours and not loses_more:
        return "too little was lost"
    return None


def severity_now(incident: Incident, rules: Rules, now_ns: int) -> tuple[str, int | None]:
    """Return how urgent it is to be told, and until when a page is held back; None: it is not."""
    severity = urgency_of(incident.alert.get("severity"))
    if severity != "page":
        return severity, None
    begin_ns = incident.first_ns if incident.paged_ns is None else incident.paged_ns
    until_ns = begin_ns + int(rules.hold_s * _NS)
    return ("ticket", until_ns) if now_ns < until_ns else ("page", None)


def _update(
    incident: Incident,
    told: Told,
    rules: Rules,
    severity: str,
    held_until_ns: int | None,
    now_ns: int,
    earlier: tuple[str, ...],
) -> Decision:
    if incident.revision > told.revision or _is_less(told.severity, severity):
        event: NoticeEvent = "updated"
        return Tell(Notice(event, incident.alert, _worse(severity, told.severity), earlier, told.reference))
    again_ns = _again_ns(told, rules)
    if again_ns is None:
        return _wait_or("the channel knows all of it", held_until_ns)
    if now_ns >= again_ns:
        return _repeat(incident, told, earlier)
    if held_until_ns is not None and held_until_ns < again_ns:
        return Wait(held_until_ns, "held")
    return Wait(again_ns, "repeat")


def _muted(
    incident: Incident, told: Told | None, rules: Rules, until_ns: int, now_ns: int, earlier: tuple[str, ...]
) -> Decision:
    """Tell nothing new; but what would end by itself unless it is told again must not seem to be over."""
    again_ns = None if told is None or told.state != "open" else _again_ns(told, rules)
    if told is None or again_ns is None:
        return Wait(until_ns, "muted")
    return _repeat(incident, told, earlier) if now_ns >= again_ns else Wait(min(until_ns, again_ns), "muted")


def _again_ns(told: Told, rules: Rules) -> int | None:
    return None if rules.repeat_s is None else told.told_ns + int(rules.repeat_s * _NS)


def _repeat(incident: Incident, told: Told, earlier: tuple[str, ...]) -> Tell:
    return Tell(Notice("updated", incident.alert, told.severity, earlier, told.reference), is_repeat=True)


def _wait_or(reason: str, held_until_ns: int | None) -> Decision:
    return Settled(reason) if held_until_ns is None else Wait(held_until_ns, "held")


def _worse(one: str, other: str) -> str:
    return max(one, other, key=SEVERITIES.index)


def _is_less(severity: str, than: str) -> bool:
    return SEVERITIES.index(severity) < SEVERITIES.index(than)
