"""The topic ``alerts`` as it comes: for people, for a page, for an agent that looks into processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.broker import BrokerWatch, client_config, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.scattered_reading import PASSING, offsets_at
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
    since_ns: int | None = None,
    answer_s: float = 10.0,
    is_over: Callable[[], bool] = lambda: False,
    tell: Callable[[str | None], object] = lambda _: None,
) -> Iterator[bytes]:
    """Yield the messages of the topic ``alerts`` as they come, for ever.

    They begin with the next one; or, `is_from_start`, with the oldest that the topic keeps; or `newest` messages
    before the end of each partition; or with the first that is not older than `since_ns`. `is_ending`: stop at the
    present end. `answer_s`: how long the broker may take for an answer at the start. `is_over` is asked several times
    a second whether to stop. `tell` takes None when the topic begins to be read, a sentence when Kafka is away
    meanwhile, and None again when it is back.

    Raises `ServiceUnavailable`, `ServiceRefused` if the broker does not answer, with `is_ending` also later on, or
    refuses us; `TopicMismatch` if there is no such topic.
    """
    deadline_s = time.monotonic() + answer_s
    partitions = partitions_there(bootstrap, topics, security, ("alerts",), answer_s)["alerts"]
    watch = BrokerWatch(bootstrap)
    config = client_config(bootstrap, security) | {
        "group.id": "irregulars-alerts", "enable.auto.commit": False, "enable.partition.eof": True,
        "error_cb": watch.note_error,
    }  # fmt: skip
    consumer = new_consumer(config)
    try:
        start = OFFSET_BEGINNING if is_from_start else _OFFSET_TAIL - newest if newest else OFFSET_END
        start = start if since_ns is None else since_ns // 10**6
        places = [TopicPartition(topics.name("alerts"), partition, start) for partition in partitions]
        if since_ns is not None:
            places = offsets_at(consumer, places, deadline_s)
        consumer.assign(places)
        unread = set(partitions)
        tell(None)
        while (unread or not is_ending) and not is_over():
            message = consumer.poll(_POLL_S)
            if watch.check(consumer):
                tell(watch.trouble)
            if message is None:
                # Without a broker the end that is asked for never comes, and the caller would wait for it in silence.
                if is_ending and watch.trouble is not None:
                    raise ServiceUnavailable(f"Kafka at {bootstrap} must answer until all is read; got no answer")
                continue
            error = message.error()
            if error is None:
                yield message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition() or 0)
            elif error.code() not in PASSING:
                # Those pass: librdkafka connects again by itself.
                raise service_error(error, bootstrap, security=security)
    except KafkaException as error:
        raise service_error(error.args[0], bootstrap, answer_s, security) from error
    finally:
        consumer.close()
