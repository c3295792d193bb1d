"""Which notice a channel gets of an incident, and when: a pure function of the incident, the record, and the time.

A record (`DeliveryRecord`, a message on the topic ``notices``) holds the newest notice that a channel got of an
incident. A decision compares the two. So replays, duplicates and other orders of alerts change nothing: a notice that
was delivered is not delivered again, and an older one never is. After a restart the process goes on from the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from irregulars.messages.judgements import SEVERITIES, urgency_of
from irregulars.messages.kinds import STANDSTILLS
from irregulars.messages.records import VERSION, decode_as, encode_json
from irregulars.printing import counted
from irregulars.sinks.notices.incidents import Incident, device_of, host_of
from irregulars.sinks.notices.mutes import Mute, mute_of, past_mute_of
from irregulars.sinks.notices.notice import Notice
from irregulars.validation import Count, Integer, JobName, Text, one_of
from irregulars.words import name_kind

STATES: Final = ("trying", "open", "doubtful", "refused", "closed")
# How long a record is kept after the incident's end was delivered. Only alerts of the last week are read again.
KEPT_NS: Final = 30 * 86_400 * 10**9

_NS: Final = 10**9
# An incident that was over when its first alert came is told within this: a first start reads weeks of old ones
_NEWS_NS: Final = 3600 * _NS
State = Annotated[str, one_of(*STATES)]


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """The newest notice that one channel got of one incident."""

    # verdict_id, channel: which incident, and the channel's name
    verdict_id: Text
    channel: Text
    # ``trying``: the notice that it opened is under way; ``open``: the channel took that; ``doubtful``: the try was
    # given up, and may have arrived; ``refused``: it was given up, and did not arrive; ``closed``: the end was
    # delivered or given up
    state: State
    # event, revision, severity: of that notice, and of the revision of the verdict that it rests on
    event: Annotated[str, one_of("opened", "updated", "resolved")]
    revision: Count
    severity: Annotated[str, one_of("note", "ticket", "page")]
    job: JobName  # of the verdict
    device: str | None  # as `incidents.device_of` names it; None: not known
    reference: str | None  # returned by the channel: the id of a message that it updates
    told_ns: Integer  # when, ns since the epoch
    # partition, offset: of the alert that the notice rests on
    partition: Count
    offset: Count
    # Id of the storm (`Storm`) whose notices cover it; the storm's own record has it too. None, and
    # not in the JSON: it has notices of its own.
    storm: Text | None = None

    @property
    def key(self) -> bytes:
        """Key on the topic: ``llama:1:25:0/pager``; a channel's name has no slash."""
        return f"{self.verdict_id}/{self.channel}".encode()


def encode_delivery(told: DeliveryRecord) -> bytes:
    """Encode for the topic ``notices``."""
    values = asdict(told)
    if told.storm is None:
        del values["storm"]
    return encode_json("notices", values)


def decode_delivery(value: bytes | None) -> DeliveryRecord:
    """Decode a message of the topic ``notices``; raises `RecordError`."""
    return decode_as(value, "notices", DeliveryRecord)


@dataclass(frozen=True, slots=True)
class Rules:
    """Which incidents one channel is notified of."""

    # Seconds for which a page is delivered as a ticket at most: an incident that ends meanwhile wakes no one
    hold_s: float = 60.0
    least_severity: str = "ticket"  # incidents that are less urgent are left out
    least_gpu_hours: float = 0.0  # so are those that have cost less; one whose cost is not known is not
    jobs: tuple[str, ...] = ("*",)  # shell patterns: incidents of jobs that match none of them are left out
    # Seconds after which the last notice of an open incident is delivered again; None: never
    repeat_s: float | None = None
    # console_url, runbook_url: where the console and the runbook are; None: notices have no link to it
    console_url: str | None = None
    runbook_url: str | None = None
    gathers: bool = True  # whether incidents that open too fast are gathered into one notice (`Storm`)
    withdraws: bool = False  # whether what the channel was told is taken back in spite of mutes (`Notice.is_muted`)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver this now. `is_repeat`: the channel took the same before."""

    notice: Notice
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing before `until_ns`; `reason` is ``held``, ``muted`` or ``repeat``."""

    until_ns: int
    reason: str


Decision = Deliver | Wait | None  # None: nothing, until an alert or a mute comes that changes it


def decide(
    incident: Incident, told: DeliveryRecord | None, rules: Rules, mutes: Collection[Mute], now_ns: int,
    earlier: tuple[str, ...] = (),
) -> Decision:  # fmt: skip
    """Decide which notice of an incident a channel gets, if any.

    `told`: the record of its last notice; None: it got none. `mutes`: all that are known, those that are over too.
    `earlier`: verdicts on the same device within the week before.
    """
    if told is not None and told.state == "closed":
        return None
    # A hang that is found as its job ends says why the job died: it is told, and its end after it.
    is_news = told is None or told.state == "trying"
    if not incident.is_open and not (is_news and _explains_end(incident, mutes, now_ns)):
        if told is None or told.state == "refused":
            return None  # it ended before the channel took a notice of it
        # An end is told in spite of mutes; its own proposal (to keep a host out of the next job) is held back.
        is_muted = rules.withdraws and mute_of(incident.alert, mutes, now_ns) is not None
        end = Notice("resolved", incident.alert, told.severity, earlier, told.reference, is_muted=is_muted)
        return Deliver(end)
    if not _is_wanted(incident.alert, rules):
        return None
    mute = mute_of(incident.alert, mutes, now_ns)
    if mute is not None:
        until_ns = mute.until_ns
        # The record of a muted notice keeps the revision of the one before, so that the rest follows when the mute
        # ends: whether the channel got the part of this alert that the mute lets through, its place tells.
        is_unread = told is not None and incident.revision > told.revision and (
            (incident.partition, incident.offset) != (told.partition, told.offset))  # fmt: skip
        if rules.withdraws and told is not None and told.state != "refused" and is_unread:
            muted_one = Notice(
                "updated", incident.alert, told.severity, earlier, told.reference, is_muted=True,
                is_doubtful=told.state != "open",
            )  # fmt: skip
            return Deliver(muted_one)
        # Deliver nothing new; but a channel whose alerts end by themselves unless repeated must not seem to be over.
        again_ns = None if told is None or told.state != "open" else _again_ns(told, rules)
        if told is None or again_ns is None:
            return Wait(until_ns, "muted")
        return _repeat(incident, told, earlier) if now_ns >= again_ns else Wait(min(until_ns, again_ns), "muted")
    severity, held_until_ns = severity_now(incident, rules, now_ns)
    if not incident.is_open and held_until_ns is None and rules.hold_s > 0:
        severity = min(severity, "ticket", key=SEVERITIES.index)  # nothing waits for anybody any more
    if _is_less(severity, rules.least_severity):
        return _held(held_until_ns)
    if told is not None and told.state == "open":
        return _update(incident, told, rules, severity, held_until_ns, now_ns, earlier)
    was_tried = told is not None and told.state != "trying" and told.revision >= incident.revision
    if was_tried and told is not None and not _is_less(told.severity, severity):  # this revision was given up
        return _held(held_until_ns)
    muted = past_mute_of(incident.alert, mutes, incident.first_ns, now_ns)
    reference = None if told is None else told.reference
    words = None if muted is None else muted.describe()
    is_doubtful = told is not None and told.state in ("trying", "doubtful")
    return Deliver(Notice("opened", incident.alert, severity, earlier, reference, words, is_doubtful=is_doubtful))


def _explains_end(incident: Incident, mutes: Collection[Mute], now_ns: int) -> bool:
    """Whether its only revision says that the job stood still as it ended, and is news."""
    found_late = incident.alert["kind"] in STANDSTILLS and incident.alert.get("event") == "opened"
    is_new = abs(now_ns - incident.first_ns) < _NEWS_NS
    return found_late and is_new and mute_of(incident.alert, mutes, now_ns) is None


def _is_wanted(alert: Mapping[str, Any], rules: Rules) -> bool:
    if not any(fnmatchcase(str(alert["job"]), pattern) for pattern in rules.jobs):
        return False
    hours = alert.get("gpu_hours_lost")
    loses_more = alert["kind"] in STANDSTILLS and alert["state"] != "closed"  # its loss is counted when it closes
    return hours is None or hours >= rules.least_gpu_hours or loses_more


def severity_now(incident: Incident, rules: Rules, now_ns: int) -> tuple[str, int | None]:
    """Return the severity of its notices now, and until when a page is held back; None: it is not."""
    severity = urgency_of(incident.alert.get("severity"))
    if severity != "page":
        return severity, None
    begin_ns = incident.first_ns if incident.paged_ns is None else incident.paged_ns
    until_ns = begin_ns + int(rules.hold_s * _NS)
    # One that came long after now came before the clock was set back: for how long it has waited nobody knows.
    is_held = abs(now_ns - begin_ns) < until_ns - begin_ns
    return ("ticket", until_ns) if is_held else ("page", None)


def _update(
    incident: Incident, told: DeliveryRecord, rules: Rules, severity: str, held_until_ns: int | None, now_ns: int,
    earlier: tuple[str, ...],
) -> Decision:  # fmt: skip
    if incident.revision > told.revision or _is_less(told.severity, severity):
        worse = max(severity, told.severity, key=SEVERITIES.index)
        return Deliver(Notice("updated", incident.alert, worse, earlier, told.reference))
    again_ns = _again_ns(told, rules)
    if again_ns is None:
        return _held(held_until_ns)
    if now_ns >= again_ns:
        return _repeat(incident, told, earlier)
    return Wait(again_ns, "repeat") if held_until_ns is None or held_until_ns >= again_ns else _held(held_until_ns)


def _again_ns(told: DeliveryRecord, rules: Rules) -> int | None:
    return None if rules.repeat_s is None else told.told_ns + int(rules.repeat_s * _NS)


def _repeat(incident: Incident, told: DeliveryRecord, earlier: tuple[str, ...]) -> Deliver:
    return Deliver(Notice("updated", incident.alert, told.severity, earlier, told.reference), is_repeat=True)


def _held(until_ns: int | None) -> Wait | None:
    return None if until_ns is None else Wait(until_ns, "held")


def _is_less(severity: str, than: str) -> bool:
    return SEVERITIES.index(severity) < SEVERITIES.index(than)


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

    `known`: those of its incidents of which alerts are known; `severity`: the worst of them.
    """
    alerts = [one.alert for one in known]
    jobs, kinds = ({str(one[name]) for one in alerts} for name in ("job", "kind"))
    hours = [one["gpu_hours_lost"] for one in alerts if one["gpu_hours_lost"] is not None]
    lost = [f"{sum(hours):,.3g} GPU-hours lost{'' if is_over else ' so far'}"] if hours else []
    switches = [one["suspects"][0].get("switch") if one["suspects"] else None for one in alerts]
    switch, host = _most("switch", switches), _most("host", map(host_of, alerts))
    # Of one job nothing is shared with others: its gravest incident leads further
    own = [str(one["verdict_id"]) for one in alerts if one["severity"] == severity and len(jobs) == 1]
    place = switch[1] or host[1] or next(iter(own), "what all of these jobs use (storage, fabric)")
    shared = [_most("kind", (name_kind(str(one["kind"])) for one in alerts))[0], switch[0], host[0]]
    times = [one.first_ns for one in known]
    within = [f"opened within {(max(times) - min(times)) / _NS:.0f} s"] if times else []
    facts = "; ".join([*(one for one in shared if one), *within, *lost])
    about = f"{counted(len(storm.members), 'incident')} in {counted(len(jobs), 'job')} ({severity})"
    return {
        "summary": f"{about}: {facts}. Next: look at {place} first.",
        # Its revision grows with each incident that joins, as `decide` wants of news.
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
        # With its quotes and the comma of JSON.
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
