"""The newest dead letters: what could not be used, and why. Nothing is sent again from here."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from irregulars.infra.console.topics.kafka_address import KafkaAddress
from irregulars.infra.runs.dead_letters import DeadLetter
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import partitions_there

_DEADLINE_S: Final = 5.0


def newest_letters(kafka: KafkaAddress, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Return how many letters are kept, about, and the newest of them, the last first; waits for the broker.

    Raises
    ------
    ServiceError
        If Kafka does not answer, refuses us, or lacks the topic.
    """
    partitions = partitions_there(kafka.bootstrap, kafka.topics, kafka.security, ("deadletter",), _DEADLINE_S)
    name, found, count = kafka.topics.name("deadletter"), [], 0
    with closing(LogReader(kafka.bootstrap, kafka.security, _DEADLINE_S)) as reader:
        for partition in partitions["deadletter"]:
            low, high = reader.bounds(name, partition)
            count += high - low
            found += [DeadLetter.of(one) for one in reader.messages(name, partition, max(low, high - most), high)]
    letters = sorted((one.to_json() for one in found), key=lambda one: one["time"] or "", reverse=True)
    return count, letters[:most]
