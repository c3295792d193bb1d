"""Checks of what people hear: the newest alert, whether notify runs, which channels fail, who is muted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from irregulars.infra.doctor.checks.facts import KafkaFacts, TopicFacts
from irregulars.infra.doctor.checks.findings import Finding, finding, ok, unread, why_not
from irregulars.infra.doctor.checks.words import count, names, span

GROUP: Final = "alerts"


def check_alerts(seen: KafkaFacts, least_severity: str) -> Iterator[Finding]:
    """Give what is found of alerts and of those who tell people; `least_severity` is the setting."""
    alerts = seen.topics.get("alerts")
    if alerts is not None and alerts.error is None:
        yield ok(GROUP, "alerts", _newest(seen, alerts, "alert", least_severity))
    yield from _notify(seen, alerts)
    for channel, text in sorted(seen.stream.troubled.items()):
        yield finding("warning", GROUP, f"channel {channel}", text, "channel_fails")
    failing = [one for one in seen.stream.letters if one.channel]
    if failing:
        text = f"{count(len(failing), 'notice')} given up, the last of {failing[-1].channel}: {failing[-1].reason}"
        yield finding("warning", GROUP, "notices", text, "channel_fails")
    mutes = seen.topics.get("mutes")
    if mutes is None or mutes.error is not None:
        return
    if "mutes" in seen.stream.unread:
        yield unread(GROUP, "mutes", seen.stream.unread["mutes"])
    elif seen.stream.mutes:
        yield ok(GROUP, "mutes", f"{count(len(seen.stream.mutes), 'mute')} in force: {names(seen.stream.mutes)}")
    else:
        yield ok(GROUP, "mutes", "none in force")


def _newest(seen: KafkaFacts, alerts: TopicFacts, what: str, least_severity: str) -> str:
    verdicts = seen.topics.get("verdicts")
    if alerts.messages == 0:
        others = verdicts is not None and verdicts.error is None and verdicts.messages > 0
        why = (
            f", and {verdicts.messages:,} revisions of verdicts below {least_severity}" if others and verdicts else ""
        )
        return f"none yet{why}"
    ago = "" if alerts.newest_s is None else f", the newest {span(max(seen.now_s - alerts.newest_s, 0.0))} ago"
    return f"{count(alerts.messages, what)} kept{ago}"


def _notify(seen: KafkaFacts, alerts: TopicFacts | None) -> Iterator[Finding]:
    group = seen.notify
    if group is None:
        return
    if group.error is not None:
        yield unread(GROUP, "notify", why_not(f"consumer group {group.name}", group.error))
        return
    unread_alerts = 0
    if alerts is not None and group.committed:
        read_to = {partition: at for (topic, partition), at in group.committed.items() if topic == alerts.name}
        unread_alerts = sum(max(end - read_to.get(number, end), 0) for number, end in alerts.ends.items())
    if group.members:
        left = f", {count(unread_alerts, 'alert')} not told yet" if unread_alerts else ""
        yield ok(GROUP, "notify", f"runs on {names(group.members)}{left}")
    elif group.committed:
        text = f"has run and does not run now; {count(unread_alerts, 'alert')} since then"
        yield finding("problem", GROUP, "notify", text, "notify_stopped")
    else:
        yield ok(GROUP, "notify", "has never run here: alerts stand on the topic, and nobody else is told")
