"""Create the topics, change the configuration of those that exist, and check that they fit together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public there, and not told to type checkers
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from irregulars.errors import ServiceUnavailable, TopicMismatch
from irregulars.kafka.broker import REFUSED_S, answering, open_admin, service_error, wait_for_none
from irregulars.kafka.topics import (
    CLEANING,
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    SNAPSHOT_TOPICS,
    TOGETHER,
    TOPICS,
    WORKER_TOPICS,
    Topic,
    TopicSettings,
)


@dataclass(frozen=True, slots=True)
class TopicReport:
    """Changes that `create_topics` made, by full names of topics."""

    # created, existing: Those that it made, and those that were there
    created: tuple[str, ...]
    existing: tuple[str, ...]
    altered: tuple[str, ...] = ()  # of the latter, those whose configuration it changed
    # And those whose configuration it could not change: the argument for ``kafka-configs --add-config``
    stale: Mapping[str, str] = field(default_factory=dict)


def create_topics(
    bootstrap: str,
    settings: TopicSettings,
    extra_config: Mapping[str, Any] | None = None,
    timeout_s: float = 30.0,
) -> TopicReport:
    """Create the topics that are missing, and see to how those of snapshots are cleaned. On return all can be used.

    Topics that exist are otherwise left as they are, and reported.

    Raises `TopicMismatch` if one is missing that would get other numbers of partitions than those that it must equal;
    nothing is made; `ServiceUnavailable` or `ServiceRefused` if the broker does not answer within `timeout_s`, or
    refuses us.
    """
    admin, metadata = open_admin(bootstrap, extra_config or {}, timeout_s)
    missing = [name for name in TOPICS if settings.name(name) not in metadata.topics]
    there = {name: len(metadata.topics[settings.name(name)].partitions) for name in TOPICS if name not in missing}
    _require_fitting(missing, there, settings, bootstrap)
    created = []
    if missing:
        wanted = [
            NewTopic(settings.name(name), partitions_of(name, settings), settings.replicas,
                     config=topic_config(TOPICS[name]))
            for name in missing
        ]  # fmt: skip
        for name, future in admin.create_topics(wanted, operation_timeout=timeout_s).items():
            with answering(bootstrap, timeout_s):
                try:
                    future.result(timeout=timeout_s)
                    created.append(name)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # else another process was faster
                        raise
        _wait_for_leaders(admin, [one.topic for one in wanted], bootstrap, timeout_s)
    existing = [settings.name(name) for name in TOPICS if settings.name(name) not in created]
    snapshots = [settings.name(name) for name in SNAPSHOT_TOPICS if settings.name(name) in existing]
    altered, stale = alter_topics(admin, snapshots, CLEANING, timeout_s) if snapshots else ((), {})
    return TopicReport(tuple(created), tuple(existing), altered, stale)


def partitions_there(
    bootstrap: str,
    settings: TopicSettings,
    security: Mapping[str, Any],
    names: Collection[str],
    timeout_s: float = 10.0,
    refused_s: float = REFUSED_S,
) -> dict[str, list[int]]:
    """Return the partitions of some topics, by name (without prefix); see `open_admin` for `refused_s`.

    Raises `TopicMismatch` if one is missing, or we may not see it; `ServiceUnavailable` or `ServiceRefused` if the
    broker does not answer within `timeout_s`, or refuses us.
    """
    _, metadata = open_admin(bootstrap, security, timeout_s, refused_s)
    missing = [settings.name(name) for name in names if settings.name(name) not in metadata.topics]
    if missing:
        raise TopicMismatch(
            f"topics must exist; got none named {', '.join(missing)} (Kafka at {bootstrap}). "
            "Run: irregulars topics create; or, where they are there, irregulars topics grant"
        )
    return {name: list(metadata.topics[settings.name(name)].partitions) for name in names}


def check_topics(
    bootstrap: str,
    settings: TopicSettings,
    extra_config: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    names: Collection[str] = tuple(TOPICS),
    refused_s: float = math.inf,
) -> dict[str, int]:
    """Return the number of partitions by name (without prefix), if the topics fit together.

    Raises `TopicMismatch` if a topic is missing, or the topics of the first hop, or ``evidence`` and
    ``job_snapshots``, differ in their numbers of partitions: the messages of one rank or job would meet in no worker;
    `ServiceUnavailable` or `ServiceRefused` if the broker does not answer within `timeout_s`, or refuses us.
    """
    there = partitions_there(bootstrap, settings, extra_config or {}, names, timeout_s, refused_s)
    counts = {name: len(partitions) for name, partitions in there.items()}
    for together in TOGETHER:
        own = {name: counts[name] for name in together if name in counts}
        if len(set(own.values())) > 1:
            found = ", ".join(f"{settings.name(name)}={count}" for name, count in own.items())
            raise TopicMismatch(
                f"partitions of {', '.join(own)} must be equal; got {found} (Kafka at {bootstrap}). "
                "Give the smaller ones more partitions before the first job starts, or use another prefix"
            )
    return counts


def topics_there(
    bootstrap: str, settings: TopicSettings, security: Mapping[str, Any], timeout_s: float = 30.0
) -> tuple[str, ...]:
    """Return the full names of those of our topics that are there and that we may see.

    Raises `ServiceUnavailable` or `ServiceRefused` if the broker does not answer within `timeout_s`, or refuses us.
    """
    _, metadata = open_admin(bootstrap, security, timeout_s)
    return tuple(settings.name(name) for name in TOPICS if settings.name(name) in metadata.topics)


def delete_topics(bootstrap: str, names: Sequence[str], security: Mapping[str, Any], timeout_s: float = 30.0) -> None:
    """Delete topics with all that is in them, and wait until brokers no longer list them.

    Raises `ServiceUnavailable` or `ServiceRefused`.
    """
    admin, _ = open_admin(bootstrap, security, timeout_s)
    for future in admin.delete_topics(list(names), operation_timeout=timeout_s).values() if names else ():
        with answering(bootstrap, timeout_s):
            future.result(timeout=timeout_s)

    # Kafka acknowledges it earlier: who makes the topics anew at once would find the old ones, and make none.
    def left() -> list[str]:
        there = admin.list_topics(timeout=timeout_s).topics
        return [name for name in names if name in there]

    wait_for_none(left, bootstrap, timeout_s, "forget deleted topics")


def topic_config(topic: Topic) -> dict[str, str]:
    """Return the broker-side configuration of one topic."""
    config = {"max.message.bytes": str(MAX_MESSAGE_BYTES + HEADER_BYTES)}
    if topic.name in SNAPSHOT_TOPICS:
        config |= CLEANING
    if topic.segment_ms is not None:
        config["segment.ms"] = str(topic.segment_ms)
    if topic.is_compacted:
        return config | {"cleanup.policy": "compact"}
    return config | {"cleanup.policy": "delete", "retention.ms": str(topic.retention_ms)}


def partitions_of(name: str, settings: TopicSettings) -> int:
    """Return how many partitions a topic is made with."""
    return 1 if TOPICS[name].is_small else settings.partitions


def _wait_for_leaders(admin: AdminClient, names: Sequence[str], bootstrap: str, timeout_s: float) -> None:
    """Wait until new topics have leaders in the broker's metadata.

    Kafka acknowledges their creation earlier, and a client that asks too soon gets UNKNOWN_TOPIC.
    """

    def has_leaders(topic: Any) -> bool:
        return bool(topic and topic.partitions and all(one.leader >= 0 for one in topic.partitions.values()))

    def lacking() -> list[str]:
        topics = admin.list_topics(timeout=timeout_s).topics
        return [name for name in names if not has_leaders(topics.get(name))]

    wait_for_none(lacking, bootstrap, timeout_s, "have leaders for new topics")


def _require_fitting(
    missing: Collection[str], there: Mapping[str, int], settings: TopicSettings, bootstrap: str
) -> None:
    """Raise `TopicMismatch` if a topic that is made now would not fit those that exist: it could not be mended."""
    for together in TOGETHER:
        wanted = {name: settings.partitions for name in missing if name in together}
        others = {name: count for name, count in there.items() if name in together and count != settings.partitions}
        if wanted and others:
            raise TopicMismatch(
                f"partitions of {', '.join(map(settings.name, wanted))} must be as many as "
                f"{', '.join(map(settings.name, others))} have, {', '.join(map(str, sorted(set(others.values()))))}; "
                f"got {settings.partitions} (setting partitions, Kafka at {bootstrap}). No topic was made. "
                "Say that number as partitions in the settings, or with --partitions"
            )


def alter_topics(
    admin: AdminClient, names: Sequence[str], wanted: Mapping[str, str], timeout_s: float
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Give topics a configuration, as far as they have another one.

    Returns the names of the topics that were changed; and of those that could not be (we may lack the right, and
    small brokers can't do it) the values that are still to be set, as ``key=value,…``.
    """
    altered, stale = [], {}
    for name in names:
        missing = dict(wanted)
        with suppress(KafkaException):  # we may not read the configuration, and yet be allowed to change it
            asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)], request_timeout=timeout_s)
            found = {key: entry.value for key, entry in _result(asked).items() if entry.value is not None}
            missing = {k: value for k, value in wanted.items() if k not in found or float(found[k]) != float(value)}
        if missing:
            entries = [
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in missing.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
            try:
                _result(admin.incremental_alter_configs([resource], request_timeout=timeout_s))
                altered.append(name)
            except KafkaException:
                stale[name] = ",".join(f"{key}={value}" for key, value in missing.items())
    return tuple(altered), stale


def _result(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result()


_NOT_TOLD: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # the id of zeros, with which brokers before Kafka 2.8 answer

# Answers of brokers, or clients, too old or too small to tell the ids of topics.
_WITHOUT: Final = frozenset(
    {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION, KafkaError.INVALID_REQUEST}
)
_ASKED: Final = (*WORKER_TOPICS, "feedback", "thresholds")


def require_same_topics(before: Mapping[str, str], now: Mapping[str, str], topics: TopicSettings) -> None:
    """Require that no topic of which both ids are known has another one now; raises `TopicMismatch`.

    >>> require_same_topics({"jobs": "a", "commops": "b"}, {"jobs": "a", "evidence": "d"}, TopicSettings())
    """
    anew = sorted(topics.name(topic) for topic, known in now.items() if before.get(topic, known) != known)
    if anew:
        raise TopicMismatch(
            f"topic must be the one that was read before; got {', '.join(anew)}, deleted and made anew. "
            f"{what_to_do(topics)}"
        )


def what_to_do(topics: TopicSettings) -> str:
    """Return the advice to an operator about a topic that was made anew, or cut."""
    return (
        f"Stop all workers, delete {topics.name('rank_snapshots')} and {topics.name('job_snapshots')} too, run "
        "irregulars topics create, and start the workers: what is there is read from its beginning"
    )


class TopicIds:
    """Asks the broker for the ids of a worker's topics. One thread at a time."""

    def __init__(self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], timeout_s: float) -> None:
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        self._timeout_s: Final = timeout_s
        self._names: Final = {topics.name(topic): topic for topic in _ASKED}
        self._admin: AdminClient | None = None

    def read(self) -> dict[str, str]:
        """Return the ids by topic (named without prefix), of those that are there; none from a broker without ids.

        Raises `ServiceUnavailable` or `ServiceRefused` if the broker does not answer, or refuses us.
        """
        admin, self._admin = self._admin, None
        if admin is None:
            admin, _ = open_admin(self._bootstrap, self._security, self._timeout_s)
        admin.poll(0)  # a token may be due
        asked = admin.describe_topics(TopicCollection([*self._names]), request_timeout=self._timeout_s)
        ids = {self._names[name]: self._id_of(future) for name, future in asked.items()}
        self._admin = admin  # where it failed another is made, which reads the password anew
        return {topic: found for topic, found in ids.items() if found is not None and found != _NOT_TOLD}

    def _id_of(self, future: Future[Any]) -> str | None:
        try:
            return str(future.result(self._timeout_s).topic_id)
        except TimeoutError as error:
            raise ServiceUnavailable(f"Kafka at {self._bootstrap} must tell ids of topics; it did not") from error
        except KafkaException as error:
            code = error.args[0].code()
            # It is not there, we may not see it, or the broker has no ids: nothing is compared then.
            if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED) or code in _WITHOUT:
                return None
            raise service_error(error.args[0], self._bootstrap, self._timeout_s, self._security) from error
