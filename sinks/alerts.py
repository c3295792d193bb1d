"""Alerts: the revisions of a verdict that give one, and its summary."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from irregulars.errors import RecordError
from irregulars.messages.judgements import SEVERITIES, Verdict, decode_verdict, urgency_of
from irregulars.messages.kinds import STANDSTILLS
from irregulars.messages.records import VERSION, decode_json
from irregulars.printing import one_line
from irregulars.sinks.advice import (
    OF_NUMBERS,
    advise,
    gpu_hours_lost,
    gpu_hours_per_hour,
    least_text,
    name_cause,
    name_device,
    unended_text,
    usual_of,
    where_to_look,
)
from irregulars.validation import NotNegative, Text, checked
from irregulars.words import amount, moment, percent

# Events that give an alert. ``continued`` is left out: it only says that the same goes on.
ALERTING_EVENTS: Final = ("opened", "changed", "raised", "closed")

# Least severity that gives an alert. Notes are only stored: too little was lost to disturb anybody.
LEAST_SEVERITY: Final = "ticket"

_WORTH_NAMING: Final = 0.1


def gives_alert(event: str | None, severity: str | None, least_severity: str = LEAST_SEVERITY) -> bool:
    """Return whether a revision of a verdict gives an alert."""
    is_urgent = severity is None or SEVERITIES.index(urgency_of(severity)) >= SEVERITIES.index(least_severity)
    return event in ALERTING_EVENTS and is_urgent


def alert_of(verdict: Verdict, least_severity: str = LEAST_SEVERITY) -> bytes | None:
    """Make the message of the topic ``alerts``, or None where the policy lets nothing through.

    JSON of ``irregulars/messages/schemas/alerts.json``, with the verdict id as key: first ``summary``, one line for a
    person; then the verdict as on the topic ``verdicts``; then ``gpu_hours_lost`` (null where the number of GPUs is
    not known) and ``next_step``. The same revision gives the same bytes, in every run: the only time in it is event
    time. `least_severity`: less urgent verdicts give no alert. A severity never falls, so each alerted verdict also
    gets its closing alert. A verdict without a severity passes.
    """
    if not gives_alert(verdict.event, verdict.severity, least_severity):
        return None
    step = advise(verdict)
    message = {
        "summary": summarise(verdict),
        "schema": "alerts",
        "version": VERSION,
        **{  # JSON has no NaN
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in verdict.to_json().items()
        },
        "gpu_hours_lost": gpu_hours_lost(verdict),
        "next_step": one_line(f"{step[:1].upper()}{step[1:]}. {where_to_look(verdict)}"),
    }
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True, slots=True)
class _Words:
    """Fields of an alert beside its verdict."""

    summary: Text
    next_step: str
    gpu_hours_lost: NotNegative | None


def decode_alert(value: bytes | None) -> dict[str, Any]:
    """Decode a message of the topic ``alerts``, checked; raises `RecordError` if it does not follow its schema.

    Words that a newer worker knows (of a kind, a device, a severity, a state) are taken as they are.
    """
    values = decode_json(value, "alerts")
    # For its checks alone: the alert is given back as it came, with fields and words of newer workers.
    decode_verdict(value, "alerts")
    checked(values, _Words, "", error=RecordError)
    return values


def summarise(verdict: Verdict) -> str:
    """Return one line: the event, its urgency, the suspect, the slow-down, the cost and the next step."""
    title = f"{verdict.event.upper()} {name_cause(verdict)} in {verdict.job}"
    # A note gives no alert by default: then what raised it is the first
    urgency = f"now a {verdict.severity}" if verdict.event == "raised" and verdict.severity else verdict.severity
    remarks = [one for one in (urgency, verdict.close_reason) if one]
    title += f" ({', '.join(remarks)})" if remarks else ""
    facts = "; ".join(fact for fact in (_who(verdict), _how_slow(verdict), _cost(verdict)) if fact)
    return one_line(f"{title}: {facts}. Next: {advise(verdict)}.")


def seen_ns(alert: Mapping[str, Any]) -> int | None:
    """Return until when the cause of an alert was seen: a standstill has that of its beginning."""
    stood_s = (alert.get("lost_s") or 0.0) if alert["kind"] in STANDSTILLS else 0.0
    # No later than such times can be: an alert that is made up must not break the pages of others
    return None if alert["time_ns"] is None else min(int(alert["time_ns"]) + round(stood_s * 1e9), 2**63 - 1)


def alert_line(message: bytes | Mapping[str, Any]) -> str:
    """Return a message of the topic ``alerts``, raw or decoded, as one line for people.

    It ends with the command that shows more. Raises `RecordError` if the message does not follow its schema.
    """
    values = decode_alert(message) if isinstance(message, bytes) else message
    try:
        seen, summary, verdict_id = seen_ns(values), str(values["summary"]), str(values["verdict_id"])
        at = "time not known" if seen is None else moment(seen)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise RecordError(f"alert must follow its schema; got {type(error).__name__}: {error}") from error
    return one_line(f"{at}  {summary} See: irregulars show {shlex.quote(verdict_id)}")


def _who(verdict: Verdict) -> str:
    where = f"communicator {verdict.communicator}" if verdict.communicator else ""
    if not verdict.suspects:
        reasons = {
            "imbalance": "who is late changes from iteration to iteration, no device is at fault",
            "hang": f"{where or 'the job'} stands still, no rank stands out",
            "mismatch": f"the program's calls differ{f', {where}' if where else ''}",
            "loss_spike": "no rank stands out, data or optimizer",
            "slow_communicator": f"{where or 'a group of ranks'} is slow as a whole, no member stands out",
        }
        return reasons.get(verdict.kind, f"no device is named{f', {where}' if where else ''}")
    first, *others = verdict.suspects
    text = f"{name_device(first)}, {percent(first.probability)} sure"
    if others and others[0].probability >= _WORTH_NAMING:
        text += f" (or {name_device(others[0])}, {percent(others[0].probability)})"
    return text


def _how_slow(verdict: Verdict) -> str:
    first, past_last = verdict.iterations
    is_closed = verdict.state == "closed"
    if verdict.kind in STANDSTILLS:
        return unended_text(verdict)
    seen = f"iteration {first}" if past_last - first == 1 else f"iterations {first} to {past_last - 1}"
    when = f"in {seen}" if is_closed else f"since iteration {first}"
    if not math.isfinite(verdict.delta):
        return f"seen {when}"
    usual, when = usual_of(verdict), when if verdict.has_healthy_past else f"(seen {when})"
    what = "checkpoints" if verdict.kind == "slow_checkpoint" else "iterations"
    return f"{what} {'took' if is_closed else 'take'} {verdict.delta:.3g}x {usual} {when}"


def _cost(verdict: Verdict) -> str:
    is_closed = verdict.state == "closed"
    if verdict.kind in (*STANDSTILLS, "custom") and not verdict.lost_s:  # nobody counts what a hang loses
        gpus = f"all {verdict.world_size:,} GPUs wait{'ed' if is_closed else ''}"
        return gpus if verdict.kind in STANDSTILLS and verdict.world_size else ""
    if verdict.kind in OF_NUMBERS and not verdict.lost_s:
        return f"it cost{'' if is_closed else 's'} no time, and may have spoiled the model"
    so_far = "" if is_closed else " so far"
    least = least_text(verdict.kind, is_closed=is_closed)
    hours, hourly = gpu_hours_lost(verdict), None if is_closed else gpu_hours_per_hour(verdict)
    if hours is None:
        lost = f"{least}{amount(verdict.lost_s)} s lost{so_far}{_recovers(verdict)}"
        return lost if math.isfinite(verdict.lost_s) else ""
    on = f"on {verdict.world_size:,} GPUs"
    if hourly is None:
        return f"{amount(hours)} GPU-hours lost{so_far} {on}{_recovers(verdict)}"
    # An opening comes within seconds, when little was lost: how much it costs is the loss of an hour.
    return f"{amount(hourly)} GPU-hours an hour lost {on}, {least}{amount(hours)}{so_far}{_recovers(verdict)}"


def _recovers(verdict: Verdict) -> str:
    """Return which share of the loss a healthy device would bring back, where that is known."""
    if verdict.recovers_ratio is None or not verdict.suspects:
        return ""
    return f", {verdict.recovers_ratio:.0%} of it through that device"
