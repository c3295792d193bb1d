"""Follow the topic of alerts as a bystander: no consumer group, nothing committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.broker import client_config, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import TopicSettings

_POLL_S: Final = 0.2
_OFFSET_TAIL: Final = -2000  # librdkafka's RD_KAFKA_OFFSET_TAIL_BASE: less n, n messages before the end


def follow_alerts(
    bootstrap: str,
    topics: TopicSettings,
    security: Mapping[str, Any],
    *,
    is_from_start: bool = False,
    is_ending: bool = False,
    newest: int = 0,
    is_over: Callable[[], bool] = lambda: False,
    timeout_s: float = 10.0,
) -> Iterator[bytes]:
    """Yield the messages of the topic ``alerts`` as they come, for ever.

    Raises `ServiceUnavailable`, `ServiceRefused` if the broker does not answer, or refuses us; `TopicMismatch` if
    there is no such topic.

    Parameters
    ----------
    is_from_start
        Begin with the oldest alert that the topic keeps, instead of the next one.
    is_ending
        Stop at the present end, instead of waiting for more.
    newest
        Begin this many messages before the end of each partition, instead of with the next one.
    is_over
        Asked several times a second: whether to stop.
    timeout_s
        How long the broker may take to answer at the start.
    """
    partitions = partitions_there(bootstrap, topics, security, ("alerts",), timeout_s)["alerts"]
    config = client_config(bootstrap, security) | {
        "group.id": "irregulars-alerts", "enable.auto.commit": False, "enable.partition.eof": True,
    }  # fmt: skip
    consumer = new_consumer(config)
    try:
        start = OFFSET_BEGINNING if is_from_start else _OFFSET_TAIL - newest if newest else OFFSET_END
        consumer.assign([TopicPartition(topics.name("alerts"), partition, start) for partition in partitions])
        unread = set(partitions)
        while (unread or not is_ending) and not is_over():
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition() or 0)
            elif error.fatal() or not error.retriable():
                raise service_error(error, bootstrap) or ServiceUnavailable(str(error))
    finally:
        consumer.close()
