"""Topics, consumer groups and our rights on them, read by librdkafka's admin client and judged."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]  # public there, and not told to type checkers

from irregulars.infra.doctor.facts import GroupFacts, KafkaFacts, TopicFacts
from irregulars.infra.doctor.findings import Finding, Level, Question, finding, names, numbers, ok, span, unread
from irregulars.kafka.access_roles import ROLES, Right, rights_of
from irregulars.kafka.topic_admin import partitions_of, topic_config
from irregulars.kafka.topics import SNAPSHOT_TOPICS, TOGETHER, TOPICS, WORKER_TOPICS, TopicSettings
from irregulars.printing import counted

_LEAST_S: Final = 0.2


class Deadline:
    """The time that all reading together may take, s from now."""

    def __init__(self, within_s: float) -> None:
        self._end_s: Final = time.monotonic() + within_s

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._end_s

    def left_s(self, most_s: float = float("inf")) -> float:
        """Return the seconds that are left, at most `most_s`; never 0, which clients take for no limit."""
        return max(min(self._end_s - time.monotonic(), most_s), _LEAST_S)


_MISSING: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_NO_GROUP: Final = 69  # GROUP_ID_NOT_FOUND, of Kafka from 4.0 on
_NO_COORDINATOR: Final = frozenset(
    {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
)
_COORDINATOR_S: Final = 5.0
_PAUSE_S: Final = 0.2
_ANSWER_S: Final = 10.0
_SETTLING: Final = ("PREPARING_REBALANCING", "COMPLETING_REBALANCING", "ASSIGNING", "RECONCILING")
Offsets = Mapping[tuple[str, int], int]


def read_topics(
    admin: AdminClient, settings: TopicSettings, now_s: float, deadline: Deadline
) -> dict[str, TopicFacts]:
    """Return the facts of our topics, by their names without prefix."""
    names = {settings.name(name): name for name in TOPICS}
    described = admin.describe_topics(TopicCollection(list(names)), include_authorized_operations=True,
                                      request_timeout=deadline.left_s(_ANSWER_S))  # fmt: skip
    found = {names[name]: _described(name, future) for name, future in described.items()}
    there = [topic for topic in found.values() if topic.error is None]
    configs = _configs(admin, [topic.name for topic in there], deadline)
    places = [(topic.name, number) for topic in there for number in range(topic.partitions)]
    begins = _offsets(admin, places, OffsetSpec.earliest(), deadline)  # type: ignore[no-untyped-call]
    ends = _offsets(admin, places, OffsetSpec.latest(), deadline)  # type: ignore[no-untyped-call]
    since = offsets_at(admin, places, now_s - RECENT_S, deadline)
    newest = _newest(admin, places, deadline)
    return {
        short: topic if topic.error is not None else replace(
            topic, config=configs.get(topic.name), begins=_of(begins, topic.name), ends=_of(ends, topic.name),
            since=_of(since, topic.name), newest_s=newest.get(topic.name),
        )
        for short, topic in found.items()
    }  # fmt: skip


def offsets_at(admin: AdminClient, places: Sequence[tuple[str, int]], time_s: float, deadline: Deadline) -> Offsets:
    """Return the offset of the first message that is not older than a time, by topic and partition, where one is."""
    return _offsets(admin, places, OffsetSpec.for_timestamp(int(time_s * 1000)), deadline)


def read_group(admin: AdminClient, name: str, deadline: Deadline) -> GroupFacts:
    """Return the facts of a consumer group; one that does not exist has no members."""
    try:
        asked = partial(admin.describe_consumer_groups, [name], include_authorized_operations=True,
                        request_timeout=deadline.left_s(_ANSWER_S))  # fmt: skip
        patience = Deadline(deadline.left_s(_COORDINATOR_S))
        while True:
            try:
                group = asked()[name].result()
                break
            except KafkaException as error:
                # The broker looks for the group's coordinator; where there was no group before, it makes one.
                if error.args[0].code() not in _NO_COORDINATOR or patience.is_over:
                    raise
                time.sleep(_PAUSE_S)
        members = tuple(f"{one.client_id} on {one.host.lstrip('/')}" for one in group.members)
        state, operations = group.state.name, _operations(group.authorized_operations)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return GroupFacts(name, "refused")
        if code != _NO_GROUP:
            return GroupFacts(name, error.args[0].str() or error.args[0].name())
        # No such group: it has never worked here, or was forgotten. Both are answers, and no error.
        members, state, operations = (), "DEAD", None
    committed = _committed(admin, name, deadline)
    return GroupFacts(name, None, members, state in _SETTLING, state == "STABLE", operations, committed)


def _committed(admin: AdminClient, name: str, deadline: Deadline) -> dict[tuple[str, int], int]:
    try:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)],
                                                  request_timeout=deadline.left_s(_ANSWER_S))  # fmt: skip
        places = asked[name].result().topic_partitions
    except KafkaException:
        # Without the right to read commits, no lag of the group is known.
        return {}
    return {(one.topic, one.partition): one.offset for one in places if one.offset >= 0 and one.error is None}


def _described(name: str, future: Any) -> TopicFacts:
    try:
        topic = future.result()
    except KafkaException as error:
        told = error.args[0]
        refused = told.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        return TopicFacts(name, "missing" if told.code() in _MISSING else "refused" if refused else told.str())
    parts = topic.partitions
    return TopicFacts(
        name,
        partitions=len(parts),
        replicas=min((len(one.replicas) for one in parts), default=0),
        leaderless=tuple(one.id for one in parts if one.leader is None or one.leader.id < 0),
        behind=tuple(one.id for one in parts if len(one.isr) < len(one.replicas)),
        operations=_operations(topic.authorized_operations),
    )


def _operations(found: Any) -> frozenset[str] | None:
    return None if found is None else frozenset(one.name.lower() for one in found)


def _configs(admin: AdminClient, names: Sequence[str], deadline: Deadline) -> dict[str, Mapping[str, str]]:
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found: dict[str, Mapping[str, str]] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=deadline.left_s(_ANSWER_S)).items():
        try:
            found[resource.name] = {key: str(entry.value) for key, entry in future.result().items()}
        except KafkaException:  # we may lack the right, and small brokers can't do it
            continue
    return found


def _offsets(
    admin: AdminClient, places: Sequence[tuple[str, int]], which: OffsetSpec, deadline: Deadline
) -> dict[tuple[str, int], int]:
    # -1: no message fits, as in a partition without any.
    return {place: info.offset for place, info in _listed(admin, places, which, deadline).items() if info.offset >= 0}


def _newest(admin: AdminClient, places: Sequence[tuple[str, int]], deadline: Deadline) -> dict[str, float]:
    """Return the time of each topic's newest message, s since 1970."""
    found: dict[str, float] = {}
    newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    for (topic, _), info in _listed(admin, places, newest, deadline).items():
        if info.offset >= 0 and info.timestamp > 0:
            found[topic] = max(found.get(topic, 0.0), info.timestamp / 1000)
    return found


def _listed(
    admin: AdminClient, places: Sequence[tuple[str, int]], which: OffsetSpec, deadline: Deadline
) -> dict[tuple[str, int], Any]:
    if not places:
        return {}
    wanted = {TopicPartition(topic, partition): which for topic, partition in places}
    found: dict[tuple[str, int], Any] = {}
    for place, future in admin.list_offsets(wanted, request_timeout=deadline.left_s(_ANSWER_S)).items():
        with suppress(KafkaException):  # of this partition nothing is known
            found[place.topic, place.partition] = future.result()
    return found


def _of(offsets: Offsets, topic: str) -> dict[int, int]:
    return {partition: at for (name, partition), at in offsets.items() if name == topic}


RECENT_S: Final = 600.0  # age up to which a message counts as sent now
FOR_PEOPLE: Final = tuple(name for name in TOPICS if name not in WORKER_TOPICS)
_WHOLE: Final = Question()
Topics = Mapping[str, TopicFacts]


def check_topics(
    seen: KafkaFacts, settings: TopicSettings, grace_s: float, question: Question = _WHOLE
) -> Iterator[Finding]:
    """Yield the findings on the topics; for a role, on those that it needs.

    `settings`: how they should be laid out. `grace_s`: how long a worker waits for a source; messages deleted by then
    were never judged.
    """
    needed = {one.name for one in question.needed(settings)}
    topics = {name: topic for name, topic in seen.topics.items() if question.role is None or topic.name in needed}
    there = {name: topic for name, topic in topics.items() if topic.error is None}
    must = WORKER_TOPICS if question.role is None else tuple(topics)
    should = FOR_PEOPLE if question.role is None else ()
    groups: tuple[tuple[Level, Sequence[str]], ...] = (("problem", must), ("warning", should))
    for level, of_level in groups:
        lacking = [topics[name].name for name in topics if name in of_level and topics[name].error == "missing"]
        if lacking:
            text = f"{counted(len(lacking), 'topic')} missing: {names(lacking)}"
            yield finding(level, "topics", "topics", text, "topic_missing")
    if topics and all(topic.error is None for topic in topics.values()):
        yield ok("topics", "topics", f"{len(topics)} of {len(topics)} that are needed are there")
    hidden = [topic.name for topic in topics.values() if topic.error == "refused"]
    if hidden:
        text = f"{counted(len(hidden), 'topic')} may not be seen with these credentials: {names(hidden)}"
        yield finding("unknown", "topics", "topics", text, "topic_hidden")
    for topic in topics.values():
        if topic.error not in (None, "missing", "refused"):
            yield unread("topics", topic.name, str(topic.error))
    if not there:
        return
    yield from _partitions(there, settings)
    without = {topic.name: topic.leaderless for topic in there.values() if topic.leaderless}
    behind = {topic.name: topic.behind for topic in there.values() if topic.behind and not topic.leaderless}
    if without:
        text = "no broker leads " + names(f"{name}/{numbers(parts)}" for name, parts in without.items())
        yield finding("problem", "topics", "leaders", text, "no_leader")
    if behind:
        text = "copies lag or are gone: " + names(f"{name}/{numbers(parts)}" for name, parts in behind.items())
        yield finding("warning", "topics", "copies", text, "under_replicated")
    if not without and not behind:
        yield ok("topics", "leaders", "each partition has a leader, and all its copies keep up")
    if question.role in (None, "admin"):  # only the admin's role can change the layout
        yield from _copies(there)
        unknown = [topic.name for topic in there.values() if topic.config is None]
        wrong = [one for name, topic in there.items() if topic.config is not None
                 for one in _configuration(name, topic, topic.config, grace_s)]  # fmt: skip
        yield from wrong
        if unknown:
            yield unread(
                "topics", "settings", f"we may not read the configuration of {counted(len(unknown), 'topic')}"
            )
        elif not wrong:
            yield ok("topics", "settings", "kept, cleaned and bounded as they should be")


def _partitions(there: Topics, settings: TopicSettings) -> Iterator[Finding]:
    is_sound = True
    for group in TOGETHER:
        counts = {name: there[name].partitions for name in group if name in there}
        if len(set(counts.values())) > 1:
            is_sound = False
            most = max(counts.values())
            fewer = [f"{there[name].name} ({found})" for name, found in counts.items() if found < most]
            text = f"must have equally many; fewer than {most}: {names(fewer)}"
            yield finding("problem", "topics", "partitions", text, "partitions_differ", most=most)
    single = [name for name in there if partitions_of(name, settings) == 1 and there[name].partitions > 1]
    for name in (name for name in single if name in ("progress", "alerts", "verdicts", "thresholds")):
        text = f"{there[name].name} has {there[name].partitions}, and one keeps its order"
        yield finding("warning", "topics", "partitions", text, "partitions_many")
    if is_sound and "commops" in there:
        yield ok("topics", "partitions", f"{there['commops'].partitions} of each topic that ranks write")


def _copies(there: Topics) -> Iterator[Finding]:
    least = min(topic.replicas for topic in there.values())
    if least < 2:
        single = [topic.name for topic in there.values() if topic.replicas < 2]
        text = (
            f"one copy of {'each topic' if len(single) == len(there) else names(single)}: a disk that fails loses it"
        )
        yield finding("warning", "topics", "copies", text, "one_copy")
        return
    in_sync = {name: topic.config.get("min.insync.replicas", "1") for name, topic in there.items() if topic.config}
    low = [there[name].name for name, found in in_sync.items() if found.isdigit() and int(found) < 2]
    high = [there[name].name for name, found in in_sync.items()
            if found.isdigit() and int(found) >= there[name].replicas]  # fmt: skip
    if low:
        text = f"min.insync.replicas is 1 for {names(low)}: what one broker took may be lost with it"
        yield finding("warning", "topics", "copies", text, "min_insync")
    elif high:
        text = f"min.insync.replicas is all copies of {names(high)}: one broker away stops writing"
        yield finding("warning", "topics", "copies", text, "min_insync")
    else:
        yield ok("topics", "copies", f"{least} of each partition or more")


def _configuration(name: str, topic: TopicFacts, config: Mapping[str, str], grace_s: float) -> Iterator[Finding]:
    wanted = topic_config(TOPICS[name])
    policy = set(config.get("cleanup.policy", "delete").split(","))
    if TOPICS[name].is_compacted and policy != {"compact"}:
        text = f"{topic.name} has cleanup.policy {','.join(sorted(policy))}, and must be compacted only"
        yield finding(
            "problem", "topics", "cleaning", text, "topic_config", topic=topic.name, config="cleanup.policy=compact"
        )
    elif not TOPICS[name].is_compacted and "compact" in policy:
        text = f"{topic.name} is compacted, which loses messages of equal keys"
        yield finding(
            "problem", "topics", "cleaning", text, "topic_config", topic=topic.name, config="cleanup.policy=delete"
        )
    elif "delete" in policy:
        yield from _retention(topic, config, float(wanted["retention.ms"]), grace_s)
    if name in SNAPSHOT_TOPICS:
        cleaning = ("segment.bytes", "segment.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio")
        other = [key for key in cleaning if (_number(config.get(key)) or 0.0) > float(wanted[key])]
        if other:
            text = f"{topic.name} is cleaned seldom ({', '.join(other)}): its log grows"
            yield finding("warning", "topics", "cleaning", text, "snapshot_cleaning")
    largest = _number(config.get("max.message.bytes"))
    if largest is not None and largest < float(wanted["max.message.bytes"]):
        text = f"{topic.name} takes messages of {largest:.0f} bytes; ours have up to {wanted['max.message.bytes']}"
        needed = f"max.message.bytes={wanted['max.message.bytes']}"
        yield finding("problem", "topics", "messages", text, "topic_config", topic=topic.name, config=needed)


def _retention(topic: TopicFacts, config: Mapping[str, str], wanted_ms: float, grace_s: float) -> Iterator[Finding]:
    kept_ms = _number(config.get("retention.ms"))
    needed = f"retention.ms={wanted_ms:.0f}"
    # -1 means for ever.
    if kept_ms is not None and 0 <= kept_ms < wanted_ms:
        is_lost = kept_ms / 1000 < 4 * grace_s
        text = f"{topic.name} keeps {span(kept_ms / 1000)} and not {span(wanted_ms / 1000)}: "
        text += "less than judging takes" if is_lost else "a longer outage loses what was sent"
        yield finding("problem" if is_lost else "warning", "topics", "retention", text, "topic_config",
                      topic=topic.name, config=needed)  # fmt: skip
    most = _number(config.get("retention.bytes"))
    if most is not None and most >= 0:
        text = f"{topic.name} keeps {most:.0f} bytes a partition at most, however short a time that is"
        yield finding(
            "warning", "topics", "retention", text, "topic_config", topic=topic.name, config="retention.bytes=-1"
        )


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def check_rights(
    seen: KafkaFacts, settings: TopicSettings, question: Question, user: str | None = None
) -> Iterator[Finding]:
    """Yield the findings on our rights; `user` is our name at the broker, where we log in by one."""
    if not any(topic.operations is not None or topic.error == "refused" for topic in seen.topics.values()):
        is_empty = all(topic.error == "missing" for topic in seen.topics.values())
        reason = "no topic is there" if is_empty else "the broker does not say what we may do"
        yield unread("rights", "operations", reason)
        return
    lacking = {one: _lacking(seen, rights_of(one, settings, question.group)) for one in ROLES}
    who = f"User:{user or 'NAME'}"
    if question.role is None:
        yield _roles(lacking, who)
    elif lacking[question.role]:
        text = f"for {question.role} we lack: {_words(lacking[question.role])}"
        yield finding("problem", "rights", question.role, text, "right_missing", role=question.role, who=who)
    else:
        yield ok("rights", question.role, "has every right that it needs")


def _roles(lacking: Mapping[str, list[Right]], who: str) -> Finding:
    may = [role for role, rights in lacking.items() if not rights]
    if len(may) == len(ROLES):
        return ok("rights", "roles", "we may do everything: no rights are asked for, or we are an administrator")
    if may:
        return ok("rights", "roles", f"we may work as {names(may)}")
    role, rights = min(lacking.items(), key=lambda one: len(one[1]))
    text = f"we may not do the work of any role; nearest is {role}, which lacks: {_words(rights)}"
    return finding("problem", "rights", "roles", text, "no_role", who=who)


def _words(rights: Sequence[Right]) -> str:
    return names(f"{one.operation} {one.kind} {one.name}" for one in rights)


def _lacking(seen: KafkaFacts, rights: tuple[Right, ...]) -> list[Right]:
    topics = {topic.name: topic for topic in seen.topics.values()}
    groups = {one.name: one for one in (seen.workers, seen.notify, *seen.others) if one is not None}
    found = []
    for right in rights:
        if right.kind == "topic":
            topic = topics.get(right.name)
            # Kafka hides a topic from a user who may not describe it; one that is certainly missing lacks no right.
            allowed = frozenset() if topic is None or topic.error == "refused" else topic.operations
            if topic is not None and topic.error == "missing":
                continue
        else:
            group = groups.get(right.name)
            # A group that was not read (None) is one of a role that is not in question: no right to it is missed.
            is_hidden = group is not None and group.error == "refused"
            allowed = frozenset() if is_hidden else None if group is None else group.operations
        if allowed is not None and right.operation not in allowed:
            found.append(right)
    return found
