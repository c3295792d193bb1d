"""All that is read from Kafka, step by step; what one step can't read the next ones do without."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaException

from irregulars.errors import InputError, ServiceError, ServiceRefused
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.doctor.checks.facts import BrokerFacts, KafkaFacts, StreamFacts, TopicFacts
from irregulars.infra.doctor.reading.deadline import Deadline
from irregulars.infra.doctor.reading.handshake import file_ends_s, release_of, shake_hands
from irregulars.infra.doctor.reading.page import read_page
from irregulars.infra.doctor.reading.stream import StreamReading
from irregulars.infra.doctor.reading.tails import Tails, reason_of
from irregulars.infra.doctor.reading.topics import read_group, read_topics
from irregulars.infra.notifying.process import NotifySettings
from irregulars.streams.kafka.broker import open_admin

_ANSWER_S: Final = 8.0
_HANDSHAKE_S: Final = 3.0
OnStep = Callable[[str], None]


def read_kafka(settings: Settings, group: str, within_s: float, on_step: OnStep) -> KafkaFacts:
    """Read what Kafka knows; a broker that is away, or refuses us, is told in what comes back.

    Parameters
    ----------
    group
        Consumer group of the workers.
    on_step
        Told in a few words what is read next.
    """
    deadline, now_s = Deadline(within_s), time.time()
    on_step("asking the brokers")
    broker = _handshake(settings, deadline)
    begin_s = time.monotonic()
    try:
        security = settings.kafka_security().client()
        # Half of the time: what answers late is told of, and not waited for.
        admin, metadata = open_admin(
            settings.kafka_bootstrap, security, deadline.left_s(min(_ANSWER_S, within_s / 2))
        )
    except (ServiceError, InputError) as error:
        refused = isinstance(error, ServiceRefused)
        return KafkaFacts(now_s, replace(broker, error=reason_of(error), is_refused=refused))
    broker = replace(broker, brokers=len(metadata.brokers), answered_in_s=time.monotonic() - begin_s)
    on_step("asking for the topics")
    topics = read_topics(admin, settings.topics(), now_s, deadline)
    on_step("asking for the consumer groups")
    workers = read_group(admin, group, deadline)
    notify = read_group(admin, _notify_group(settings), deadline)
    reading = StreamReading(admin, Tails(settings.kafka_bootstrap, security), topics, now_s, deadline)
    try:
        stream = reading.read(workers, on_step)
    except KafkaException as error:
        stream = StreamFacts({name: reason_of(error) for name in topics})
    broker = replace(broker, broker_clock_s=_clock(topics, now_s))
    page = read_page(settings.metrics_listen)
    return KafkaFacts(now_s, broker, topics, workers, notify, stream, page)


def _handshake(settings: Settings, deadline: Deadline) -> BrokerFacts:
    security = settings.kafka_security()
    seen = shake_hands(settings.kafka_bootstrap, security, deadline.left_s(_HANDSHAKE_S))
    own = None if security.cert_file is None else file_ends_s(security.cert_file)
    return BrokerFacts(
        settings.kafka_bootstrap,
        release=release_of(seen.requests),
        is_tls=security.tls,
        has_login=security.user is not None or security.mechanism == "OAUTHBEARER",
        certificate_ends_s=seen.certificate_ends_s,
        certificate_error=seen.error if security.tls else None,
        own_certificate_ends_s=own,
    )


def _notify_group(settings: Settings) -> str:
    return NotifySettings(bootstrap=settings.kafka_bootstrap, topics=settings.topics()).group


def _clock(topics: Mapping[str, TopicFacts], now_s: float) -> float | None:
    """Return how far the broker's clock is ahead of ours, at least, where it sets the times of a topic's messages."""
    stamped = [
        topic.newest_s for topic in topics.values() if topic.newest_s is not None and _is_stamped(topic.config)
    ]
    return max(max(stamped) - now_s, 0.0) if stamped else None


def _is_stamped(config: Mapping[str, Any] | None) -> bool:
    return config is not None and config.get("message.timestamp.type") == "LogAppendTime"
