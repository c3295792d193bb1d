"""Checks of the topics: are they there, laid out alike, kept long enough, and in the hands of brokers that live."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from irregulars.infra.doctor.checks.facts import KafkaFacts, TopicFacts
from irregulars.infra.doctor.checks.findings import Finding, Level, finding, ok, unread
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.checks.words import count, names, numbers, span
from irregulars.kafka.topic_admin import partitions_of, topic_config
from irregulars.kafka.topics import SNAPSHOT_TOPICS, TOPICS, WORKER_TOPICS, TopicSettings

GROUP: Final = "topics"
RECENT_S: Final = 600.0
"""Messages of so long count as what is sent now."""

FOR_PEOPLE: Final = tuple(name for name in TOPICS if name not in WORKER_TOPICS)
_TOGETHER: Final = (tuple(n for n, t in TOPICS.items() if t.is_parted_by_rank), ("evidence", "job_snapshots"))
_WHOLE: Final = Question()
Topics = Mapping[str, TopicFacts]


def check_topics(
    seen: KafkaFacts, settings: TopicSettings, grace_s: float, question: Question = _WHOLE
) -> Iterator[Finding]:
    """Give what is found of the topics; for a role, of those that it needs.

    Parameters
    ----------
    settings
        How they should be laid out.
    grace_s
        How long a worker waits for a source: what is deleted by then was never judged.
    """
    needed = {one.name for one in question.needed(settings)}
    topics = {name: topic for name, topic in seen.topics.items() if question.role is None or topic.name in needed}
    there = {name: topic for name, topic in topics.items() if topic.error is None}
    yield from _missing(topics, (WORKER_TOPICS, FOR_PEOPLE) if question.role is None else (tuple(topics), ()))
    yield from _hidden(topics)
    if not there:
        return
    yield from _partitions(there, settings)
    yield from _leaders(there)
    if question.role in (None, "admin"):  # how topics are laid out is for whoever makes them
        yield from _copies(there)
        yield from _configurations(there, grace_s)


def _missing(topics: Topics, needed: tuple[Collection[str], Collection[str]]) -> Iterator[Finding]:
    """What is missing for certain: Kafka says so to whoever may describe it. Nothing works without the first."""
    levels: tuple[Level, Level] = ("problem", "warning")
    for of_level, level in zip(needed, levels, strict=True):
        lacking = [topics[name].name for name in topics if name in of_level and topics[name].error == "missing"]
        if lacking:
            text = f"{count(len(lacking), 'topic')} missing: {names(lacking)}"
            yield finding(level, GROUP, "topics", text, "topic_missing")
    if topics and all(topic.error is None for topic in topics.values()):
        yield ok(GROUP, "topics", f"{len(topics)} of {len(topics)} that are needed are there")


def _hidden(topics: Topics) -> Iterator[Finding]:
    """What we may not describe: Kafka gives the same answer whether it is there or not."""
    hidden = [topic.name for topic in topics.values() if topic.error == "refused"]
    if hidden:
        text = f"{count(len(hidden), 'topic')} may not be seen with these credentials: {names(hidden)}"
        yield finding("unknown", GROUP, "topics", text, "topic_hidden")
    for topic in topics.values():
        if topic.error not in (None, "missing", "refused"):
            yield unread(GROUP, topic.name, str(topic.error))


def _partitions(there: Topics, settings: TopicSettings) -> Iterator[Finding]:
    is_sound = True
    for group in _TOGETHER:
        counts = {name: there[name].partitions for name in group if name in there}
        if len(set(counts.values())) > 1:
            is_sound = False
            most = max(counts.values())
            fewer = [f"{there[name].name} ({found})" for name, found in counts.items() if found < most]
            text = f"must have equally many; fewer than {most}: {names(fewer)}"
            yield finding("problem", GROUP, "partitions", text, "partitions_differ", most=most)
    single = [name for name in there if partitions_of(name, settings) == 1 and there[name].partitions > 1]
    for name in (name for name in single if name in ("progress", "alerts", "verdicts", "thresholds")):
        text = f"{there[name].name} has {there[name].partitions}, and one keeps its order"
        yield finding("warning", GROUP, "partitions", text, "partitions_many")
    if is_sound and "commops" in there:
        yield ok(GROUP, "partitions", f"{there['commops'].partitions} of each topic that ranks write")


def _leaders(there: Topics) -> Iterator[Finding]:
    without = {topic.name: topic.leaderless for topic in there.values() if topic.leaderless}
    behind = {topic.name: topic.behind for topic in there.values() if topic.behind and not topic.leaderless}
    if without:
        text = "no broker leads " + names(f"{name}/{numbers(parts)}" for name, parts in without.items())
        yield finding("problem", GROUP, "leaders", text, "no_leader")
    if behind:
        text = "copies lag or are gone: " + names(f"{name}/{numbers(parts)}" for name, parts in behind.items())
        yield finding("warning", GROUP, "copies", text, "under_replicated")
    if not without and not behind:
        yield ok(GROUP, "leaders", "each partition has a leader, and all its copies keep up")


def _copies(there: Topics) -> Iterator[Finding]:
    least = min(topic.replicas for topic in there.values())
    if least < 2:
        single = [topic.name for topic in there.values() if topic.replicas < 2]
        text = (
            f"one copy of {'each topic' if len(single) == len(there) else names(single)}: a disk that fails loses it"
        )
        yield finding("warning", GROUP, "copies", text, "one_copy")
        return
    in_sync = {name: topic.config.get("min.insync.replicas", "1") for name, topic in there.items() if topic.config}
    low = [there[name].name for name, found in in_sync.items() if found.isdigit() and int(found) < 2]
    high = [there[name].name for name, found in in_sync.items()
            if found.isdigit() and int(found) >= there[name].replicas]  # fmt: skip
    if low:
        text = f"min.insync.replicas is 1 for {names(low)}: what one broker took may be lost with it"
        yield finding("warning", GROUP, "copies", text, "min_insync")
    elif high:
        text = f"min.insync.replicas is all copies of {names(high)}: one broker away stops writing"
        yield finding("warning", GROUP, "copies", text, "min_insync")
    else:
        yield ok(GROUP, "copies", f"{least} of each partition or more")


def _configurations(there: Topics, grace_s: float) -> Iterator[Finding]:
    unknown = [topic.name for topic in there.values() if topic.config is None]
    wrong = [one for name, topic in there.items() if topic.config is not None
             for one in _configuration(name, topic, topic.config, grace_s)]  # fmt: skip
    yield from wrong
    if unknown:
        yield unread(GROUP, "settings", f"we may not read the configuration of {count(len(unknown), 'topic')}")
    elif not wrong:
        yield ok(GROUP, "settings", "kept, cleaned and bounded as they should be")


def _configuration(name: str, topic: TopicFacts, config: Mapping[str, str], grace_s: float) -> Iterator[Finding]:
    wanted = topic_config(TOPICS[name])
    policy = set(config.get("cleanup.policy", "delete").split(","))
    if TOPICS[name].is_compacted and policy != {"compact"}:
        text = f"{topic.name} has cleanup.policy {','.join(sorted(policy))}, and must be compacted only"
        yield finding(
            "problem", GROUP, "cleaning", text, "topic_config", topic=topic.name, config="cleanup.policy=compact"
        )
    elif not TOPICS[name].is_compacted and "compact" in policy:
        text = f"{topic.name} is compacted, which loses messages of equal keys"
        yield finding(
            "problem", GROUP, "cleaning", text, "topic_config", topic=topic.name, config="cleanup.policy=delete"
        )
    elif "delete" in policy:
        yield from _retention(topic, config, float(wanted["retention.ms"]), grace_s)
    if name in SNAPSHOT_TOPICS:
        yield from _cleaning(topic, config, wanted)
    largest = _number(config.get("max.message.bytes"))
    if largest is not None and largest < float(wanted["max.message.bytes"]):
        text = f"{topic.name} takes messages of {largest:.0f} bytes; ours have up to {wanted['max.message.bytes']}"
        needed = f"max.message.bytes={wanted['max.message.bytes']}"
        yield finding("problem", GROUP, "messages", text, "topic_config", topic=topic.name, config=needed)


def _retention(topic: TopicFacts, config: Mapping[str, str], wanted_ms: float, grace_s: float) -> Iterator[Finding]:
    kept_ms = _number(config.get("retention.ms"))
    needed = f"retention.ms={wanted_ms:.0f}"
    if kept_ms is not None and 0 <= kept_ms < wanted_ms:
        is_lost = kept_ms / 1000 < 4 * grace_s
        text = f"{topic.name} keeps {span(kept_ms / 1000)} and not {span(wanted_ms / 1000)}: "
        text += "less than judging takes" if is_lost else "a longer outage loses what was sent"
        level: str = "problem" if is_lost else "warning"
        yield finding("problem" if level == "problem" else "warning", GROUP, "retention", text, "topic_config",
                      topic=topic.name, config=needed)  # fmt: skip
    most = _number(config.get("retention.bytes"))
    if most is not None and most >= 0:
        text = f"{topic.name} keeps {most:.0f} bytes a partition at most, however short a time that is"
        yield finding(
            "warning", GROUP, "retention", text, "topic_config", topic=topic.name, config="retention.bytes=-1"
        )


def _cleaning(topic: TopicFacts, config: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Finding]:
    other = [key for key in ("segment.bytes", "segment.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio")
             if (_number(config.get(key)) or 0.0) > float(wanted[key])]  # fmt: skip
    if other:
        text = f"{topic.name} is cleaned seldom ({', '.join(other)}): its log grows"
        yield finding("warning", GROUP, "cleaning", text, "snapshot_cleaning")


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
