"""All that is read from Kafka, step by step; what one step can't read the next ones do without."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from irregulars.errors import InputError, ServiceError, ServiceRefused
from irregulars.infra.configuration.settings import Settings
from irregulars.infra.doctor.checks.facts import BrokerFacts, KafkaFacts, Obstacle, StreamFacts, TopicFacts
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.reading.certificate import file_ends_s
from irregulars.infra.doctor.reading.deadline import Deadline
from irregulars.infra.doctor.reading.handshake import shake_hands
from irregulars.infra.doctor.reading.page import read_page
from irregulars.infra.doctor.reading.stream import StreamReading
from irregulars.infra.doctor.reading.tails import Tails, reason_of
from irregulars.infra.doctor.reading.topics import read_group, read_topics
from irregulars.infra.doctor.reading.wire import release_of
from irregulars.infra.notifying.process import NotifySettings
from irregulars.kafka.broker import open_admin

_ANSWER_S: Final = 8.0
_HANDSHAKE_S: Final = 3.0
_SECOND_LOOK_S: Final = 1.5
"""For librdkafka where the handshake has found what would keep us out: it may know better, or a second broker may."""

_SAID: Final = re.compile(r"SASL authentication error: (.*?)(?: \(after |$)")
OnStep = Callable[[str], None]


def read_kafka(settings: Settings, question: Question, on_step: OnStep) -> KafkaFacts:
    """Read what Kafka knows; a broker that is away, or refuses us, is told in what comes back.

    Parameters
    ----------
    on_step
        Told in a few words what is read next.
    """
    deadline, now_s = Deadline(question.within_s), time.time()
    on_step("asking the brokers")
    broker, obstacle = _handshake(settings, deadline)
    is_certain = obstacle is not None and obstacle.code != "kafka_away"
    # Half of the time: what answers late is told of, and not waited for.
    wait_s = deadline.left_s(_SECOND_LOOK_S if is_certain else min(_ANSWER_S, question.within_s / 2))
    begin_s = time.monotonic()
    try:
        security = settings.kafka_security().client()
        admin, metadata = open_admin(settings.kafka_bootstrap, security, wait_s)
    except (ServiceError, InputError) as error:
        return KafkaFacts(now_s, replace(broker, error=_obstacle(error, obstacle, settings)))
    broker = replace(
        broker,
        doubt=None if obstacle is None else obstacle.text,
        brokers=len(metadata.brokers),
        answered_in_s=time.monotonic() - begin_s,
    )
    tails = Tails(settings.kafka_bootstrap, security)
    return _read_inside(settings, question, on_step, admin, tails, KafkaFacts(now_s, broker), deadline)


def _read_inside(
    settings: Settings,
    question: Question,
    on_step: OnStep,
    admin: AdminClient,
    tails: Tails,
    seen: KafkaFacts,
    deadline: Deadline,
) -> KafkaFacts:
    """Read what a broker that has let us in knows; `seen` is what is known of it already."""
    on_step("asking for the topics")
    topics = read_topics(admin, settings.topics(), seen.now_s, deadline)
    on_step("asking for the consumer groups")
    workers = read_group(admin, question.group, deadline)
    notify = read_group(admin, _notify_group(settings), deadline)
    needed = {right.name for right in question.needed(settings.topics()) if right.kind == "group"}
    others = tuple(read_group(admin, name, deadline) for name in sorted(needed - {workers.name, notify.name}))
    try:
        stream = StreamReading(admin, tails, topics, seen.now_s, deadline).read(workers, on_step)
    except KafkaException as error:
        stream = StreamFacts({name: reason_of(error) for name in topics})
    broker = replace(seen.broker, broker_clock_s=_clock(topics, seen.now_s))
    page = read_page(settings.metrics_listen)
    return KafkaFacts(seen.now_s, broker, topics, workers, notify, others, stream, page)


def _obstacle(error: Exception, seen: Obstacle | None, settings: Settings) -> Obstacle:
    """Return why no broker could be used: what the handshake saw, else what librdkafka says."""
    if isinstance(error, InputError):
        return Obstacle("log_in_unusable", reason_of(error))
    is_refused = isinstance(error, ServiceRefused)
    if seen is not None and not (is_refused and seen.code == "kafka_away"):
        return seen
    if not is_refused:
        return Obstacle("kafka_away", reason_of(error))
    said = _SAID.search(str(error))
    if said is None:
        return Obstacle("kafka_refuses", reason_of(error))
    who = f"user {settings.kafka_user!r}" if settings.kafka_user else "our token"
    text = f"{settings.kafka_bootstrap} refuses {who} by {settings.kafka_mechanism}: {said[1]}"
    return Obstacle("log_in_refused", text)


def _handshake(settings: Settings, deadline: Deadline) -> tuple[BrokerFacts, Obstacle | None]:
    security = settings.kafka_security()
    seen = shake_hands(settings.kafka_bootstrap, security, deadline.left_s(_HANDSHAKE_S))
    own = None if security.cert_file is None else file_ends_s(security.cert_file)
    facts = BrokerFacts(
        settings.kafka_bootstrap,
        release=release_of(seen.requests),
        is_tls=security.tls,
        has_login=security.user is not None or security.mechanism == "OAUTHBEARER",
        certificate_ends_s=seen.certificate_ends_s,
        own_certificate_ends_s=own,
    )
    return facts, seen.obstacle


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
