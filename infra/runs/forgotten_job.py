"""Taking one job out of topics that keep the newest message of each key: announcements, notices, feedback.

Mutes and changes of thresholds that name the job stay. Workers delete the snapshots of a job that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Message

from irregulars.errors import RecordError
from irregulars.kafka.broker import client_config, service_error
from irregulars.kafka.lasting_producer import LastingProducer, Record
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.records import decode_json

TOPICS: Final = ("jobs", "notices", "feedback")
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Place of a message that stays for ever unless its key is deleted."""

    topic: str
    partition: int
    key: bytes


def kept_of_job(bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], job: str) -> list[Kept]:
    """Return the places of messages that the topics keep of a job.

    Raises `ServiceError` if Kafka does not answer, refuses us, or lacks a topic.
    """
    there = partitions_there(bootstrap, topics, security, TOPICS)
    found: list[Kept] = []
    with closing(LogReader(bootstrap, security, _DEADLINE_S)) as reader:
        for topic, partitions in there.items():
            for partition in partitions:
                messages = reader.messages(topics.name(topic), partition)
                found += [Kept(topic, partition, key) for key in _keys(messages, topic, job)]
    return found


def erase(bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], kept: list[Kept]) -> None:
    """Delete these keys, each in the partition in which it stands: that need not be the one of the key itself.

    Raises `ServiceError` if Kafka does not answer or refuses us.
    """
    producer = LastingProducer(client_config(bootstrap, security))
    tombstones = [Record(topics.name(one.topic), one.key, None, one.partition) for one in kept]
    failure = producer.deliver(tombstones, _DEADLINE_S)
    if failure is not None:
        raise service_error(failure, bootstrap, _DEADLINE_S, security)


def _keys(messages: Iterator[Message], topic: str, job: str) -> list[bytes]:
    """Return the keys whose newest message is of a job, in the order in which they came first."""
    is_kept: dict[bytes, bool] = {}
    for message in messages:
        key = message.key()
        if key is not None:
            is_kept[key] = _job_of(message.value(), topic) == job
    return [key for key, is_ours in is_kept.items() if is_ours]


def _job_of(value: bytes | None, topic: str) -> object:
    try:
        return None if value is None else decode_json(value, topic).get("job")
    except RecordError:
        return None
