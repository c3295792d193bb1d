"""When a consumer of actions says that the broker is away; the broker is one that the test plays."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from irregulars.kafka import broker
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.notices.actions import feed as action_feed
from irregulars.sinks.notices.actions.feed import ActionFeed


class PlayedConsumer:
    """Answers, or does not."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.error_cb = config["error_cb"]
        self.is_away = False

    def subscribe(self, *_: object, **__: object) -> None:
        pass

    def consume(self, *_: object) -> list[object]:
        return []

    def list_topics(self, timeout: float) -> None:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_connection_that_fails_is_no_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PlayedConsumer] = []

    def make(config: dict[str, Any]) -> PlayedConsumer:
        made.append(PlayedConsumer(config))
        return made[-1]

    monkeypatch.setattr(action_feed, "partitions_there", lambda *_: {"actions": [0]})
    monkeypatch.setattr(broker, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(action_feed, "new_consumer", make)
    told: list[str] = []
    feed = ActionFeed("localhost:9092", TopicSettings(), {}, "g", is_from_start=True, tell=told.append)
    (consumer,) = made
    for is_away, wanted in ((False, 0), (True, 1), (True, 1), (False, 2)):
        consumer.is_away = is_away
        consumer.error_cb(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        feed.poll(0.0)
        feed.poll(0.0)
        assert len(told) == wanted
    assert told[0].startswith("Kafka at localhost:9092 does not answer")
    assert told[1] == "Kafka at localhost:9092 answers again"
