"""Topics and consumer groups as the brokers describe them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public there, and not told to type checkers
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from irregulars.infra.doctor.checks.facts import GroupFacts, TopicFacts
from irregulars.infra.doctor.checks.topics import RECENT_S
from irregulars.infra.doctor.reading.deadline import Deadline
from irregulars.kafka.topics import TOPICS, TopicSettings

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
    """Return what is known of our topics, by their names without prefix."""
    names = {settings.name(name): name for name in TOPICS}
    described = admin.describe_topics(TopicCollection(list(names)), include_authorized_operations=True,
                                      request_timeout=deadline.left_s(_ANSWER_S))  # fmt: skip
    found = {names[name]: _described(name, future) for name, future in described.items()}
    there = [topic for topic in found.values() if topic.error is None]
    configs = _configs(admin, [topic.name for topic in there], deadline)
    places = [(topic.name, number) for topic in there for number in range(topic.partitions)]
    begins = _offsets(admin, places, OffsetSpec.earliest(), deadline)  # type: ignore[no-untyped-call]
    ends = _offsets(admin, places, OffsetSpec.latest(), deadline)  # type: ignore[no-untyped-call]
    since = _offsets(admin, places, OffsetSpec.for_timestamp(int((now_s - RECENT_S) * 1000)), deadline)
    newest = _newest(admin, places, deadline)
    return {
        short: topic if topic.error is not None else TopicFacts(
            topic.name, None, topic.partitions, topic.replicas, topic.leaderless, topic.behind,
            configs.get(topic.name), topic.operations, _of(begins, topic.name), _of(ends, topic.name),
            _of(since, topic.name), newest.get(topic.name),
        )
        for short, topic in found.items()
    }  # fmt: skip


def offsets_at(admin: AdminClient, places: Sequence[tuple[str, int]], time_s: float, deadline: Deadline) -> Offsets:
    """Return the offset of the first message that is not older than a time, by topic and partition, where one is."""
    return _offsets(admin, places, OffsetSpec.for_timestamp(int(time_s * 1000)), deadline)


def read_group(admin: AdminClient, name: str, deadline: Deadline) -> GroupFacts:
    """Return what is known of a consumer group; one that does not exist has no members."""
    try:
        asked = partial(admin.describe_consumer_groups, [name], include_authorized_operations=True,
                        request_timeout=deadline.left_s(_ANSWER_S))  # fmt: skip
        group = _patiently(lambda: asked()[name].result(), deadline)
        members = tuple(f"{one.client_id} on {one.host.lstrip('/')}" for one in group.members)
        state, operations = group.state.name, _operations(group.authorized_operations)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return GroupFacts(name, "refused")
        if code != _NO_GROUP:
            return GroupFacts(name, error.args[0].str() or error.args[0].name())
        members, state, operations = (), "DEAD", None
    committed = _committed(admin, name, deadline)
    return GroupFacts(name, None, members, state in _SETTLING, state == "STABLE", operations, committed)


def _patiently(ask: Callable[[], Any], deadline: Deadline) -> Any:
    """Ask again while the broker looks for the group's coordinator: where there was no group before, it makes one."""
    patience = Deadline(deadline.left_s(_COORDINATOR_S))
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR or patience.is_over:
                raise
            time.sleep(_PAUSE_S)


def _committed(admin: AdminClient, name: str, deadline: Deadline) -> dict[tuple[str, int], int]:
    try:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)],
                                                  request_timeout=deadline.left_s(_ANSWER_S))  # fmt: skip
        places = asked[name].result().topic_partitions
    except KafkaException:
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
        _note(found, (place.topic, place.partition), future.result)
    return found


def _note(found: dict[tuple[str, int], Any], place: tuple[str, int], result: Callable[[], Any]) -> None:
    try:
        found[place] = result()
    except KafkaException:  # of this partition nothing is known
        return


def _of(offsets: Offsets, topic: str) -> dict[int, int]:
    return {partition: at for (name, partition), at in offsets.items() if name == topic}
