"""Thresholds as people change them, and which are in force."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from irregulars.errors import InputError
from irregulars.messages.threshold_changes import LIVE, ThresholdChange, require_live
from irregulars.sinks.notices.mutes import this_user
from irregulars.validation import checked, shown


@dataclass(frozen=True, slots=True)
class InForce:
    """One threshold that is not as set."""

    # name, value: of the setting, and by which is judged
    name: str
    value: float
    job: str | None  # where; None: in all jobs that have no value of their own
    change: ThresholdChange  # who said so, when and why

    def describe(self) -> str:
        """Say for people who said so, when and why."""
        one = self.change
        return f"{when(one)} by {one.who}: {one.reason} [{one.change_id}]"


def when(change: ThresholdChange) -> str:
    """Say since when a change holds."""
    begin = "" if change.values.keys() <= {"silence_s"} else f", for iterations from {_utc(change.begin_ns)} on"
    return f"said {_utc(change.time_ns)}{begin}"


def parse_values(assignments: Sequence[str]) -> dict[str, float | None]:
    """Read ``NAME=VALUE`` texts.

    Raises `InputError` if one can't be read, names no threshold that may change, or one twice, or breaks its rule.

    >>> parse_values(["delta=1.3", "alert_least_seen=5"])
    {'delta': 1.3, 'alert_least_seen': 5}
    """
    values: dict[str, float | None] = {}
    for text in assignments:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not name:
            raise InputError(f"threshold must be NAME=VALUE; got {shown(text)}")
        require_live(name)
        if name in values:
            raise InputError(f"threshold must be given once; got {name} twice")
        values[name] = checked(_number(value), LIVE[name], name, "change of thresholds")
    return values


def new_change(
    values: Mapping[str, float | None],
    reason: str,
    who: str | None,
    job: str | None,
    from_ns: int | None,
    now_ns: int,
) -> ThresholdChange:
    """Return a change with an id of its own; raises `InputError` as `ThresholdChange` does."""
    now = datetime.fromtimestamp(now_ns // 10**9, UTC)
    fields = {
        "change_id": f"t-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        "values": dict(values),
        "who": who or this_user(),
        "reason": " ".join(reason.split()),
        "time_ns": now_ns,
        "job": job,
        "from_ns": from_ns,
    }
    change: ThresholdChange = checked(fields, ThresholdChange, "change")
    return change


def in_force(changes: Iterable[ThresholdChange], now_ns: int, job: str | None = None) -> list[InForce]:
    """Return the thresholds that are not as set for an iteration that starts now; by job and name.

    `job`: those by which this job is judged; None: those of all jobs, and of each that has some of its own.
    """
    newest: dict[tuple[str | None, str], ThresholdChange] = {}
    for change in changes:
        if job is None or change.job in (None, job):
            newest |= dict.fromkeys(((change.job, name) for name in change.values_at(now_ns)), change)
    found = [
        InForce(name, value, own, change)
        for (own, name), change in newest.items()
        if (value := change.values[name]) is not None
    ]
    if job is not None:  # what is said of the job beats what is said of all
        own_names = {one.name for one in found if one.job is not None}
        found = [one for one in found if one.job is not None or one.name not in own_names]
    return sorted(found, key=lambda one: (one.job is not None, one.job or "", one.name))


def planned(changes: Iterable[ThresholdChange], now_ns: int) -> list[ThresholdChange]:
    """Return the changes that are to hold later."""
    return [one for one in changes if one.values_at(now_ns) != one.values]


def _number(text: str) -> Any:
    """Read a number; a text that is none stays, and is refused as a text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _utc(time_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
