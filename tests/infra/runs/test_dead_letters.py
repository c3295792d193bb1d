"""Alerts are followed whatever happens to connections in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from irregulars.errors import ServiceRefused
from irregulars.infra.runs import dead_letters
from irregulars.infra.runs.dead_letters import follow_alerts
from irregulars.kafka.topics import TopicSettings


def polled(code: int | None, value: bytes | None = None) -> SimpleNamespace:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(error=lambda: error, value=lambda: value, partition=lambda: 0)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """A consumer of one partition, which is given these one after the other."""
    found: list[SimpleNamespace] = []
    consumer: Any = SimpleNamespace(assign=lambda _: None, close=lambda: None, poll=lambda _: found.pop(0))
    monkeypatch.setattr(dead_letters, "new_consumer", lambda _: consumer)
    monkeypatch.setattr(dead_letters, "partitions_there", lambda *_: {"alerts": [0]})
    return found


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE])
def test_a_connection_that_breaks_does_not_end_the_feed(script: list[SimpleNamespace], code: int) -> None:
    script += [polled(None, b"1"), polled(code), polled(None, b"2"), polled(KafkaError._PARTITION_EOF)]
    assert list(follow_alerts("broker:9092", TopicSettings(), {}, is_ending=True)) == [b"1", b"2"]


def test_a_refusal_ends_the_feed(script: list[SimpleNamespace]) -> None:
    script += [polled(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(ServiceRefused):
        list(follow_alerts("broker:9092", TopicSettings(), {}, is_ending=True))
