"""The thread that follows alerts goes on, whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from irregulars.errors import ServiceUnavailable
from irregulars.infra.console.database import KafkaAddress, RecentAlerts
from irregulars.kafka.topics import TopicSettings
from tests.waiting import wait_for


class Followed(RecentAlerts):
    """Reads a topic whose reading fails in one way after the other, and is then closed."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__(KafkaAddress("127.0.0.1:1", TopicSettings()))
        self._failures = iter(failures)
        self.troubles: list[str | None] = []

    def _messages(self) -> Iterator[Any]:
        self.troubles.append(self.trouble)
        for failure in self._failures:
            raise failure
        self._is_over.set()
        yield b"no alert"


def test_a_fault_is_told_and_the_topic_read_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("irregulars.infra.console.database._RETRY_S", 0.01)
    found = Followed(ServiceUnavailable("Kafka must answer"), KeyError("alerts"))
    found.start()
    found._thread.join(60)
    found.close()
    assert found.troubles == [None, "Kafka must answer", "alerts must be readable; reading them raised KeyError"]


def test_that_kafka_went_away_is_told_as_long_as_it_is_away(monkeypatch: Any) -> None:
    monkeypatch.setattr("irregulars.infra.console.database._RETRY_S", 0.01)
    topics = TopicSettings()
    # The client library's own broker, which lives as long as this producer.
    broker = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    broker.produce(topics.name("alerts"), b"no alert", partition=0)
    assert broker.flush(60) == 0
    (one,) = broker.list_topics(timeout=60).brokers.values()
    read: list[int] = []
    found = RecentAlerts(KafkaAddress(f"{one.host}:{one.port}", topics), on_alert=lambda: read.append(1))
    monkeypatch.setattr(found, "take", lambda value: read.append(len(value)))
    found.start()
    try:
        wait_for(lambda: bool(read))
        assert found.trouble is None
        del broker
        wait_for(lambda: found.trouble is not None)
        with pytest.raises(AssertionError):
            wait_for(lambda: found.trouble is None, within_s=1.0)
        assert "Kafka at 127.0.0.1" in str(found.trouble)
    finally:
        found.close()
