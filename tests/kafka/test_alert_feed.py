"""Alerts are followed whatever happens to connections in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.kafka import alert_feed
from irregulars.kafka.alert_feed import follow_alerts
from irregulars.kafka.topics import TopicSettings


def polled(code: int | None, value: bytes | None = None) -> SimpleNamespace:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(error=lambda: error, value=lambda: value, partition=lambda: 0)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """A consumer of one partition, which is given these one after the other."""
    found: list[SimpleNamespace] = []
    consumer: Any = SimpleNamespace(assign=lambda _: None, close=lambda: None, poll=lambda _: found.pop(0))
    monkeypatch.setattr(alert_feed, "new_consumer", lambda _: consumer)
    monkeypatch.setattr(alert_feed, "partitions_there", lambda *_: {"alerts": [0]})
    return found


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE])
def test_a_connection_that_breaks_does_not_end_the_feed(script: list[SimpleNamespace], code: int) -> None:
    script += [polled(None, b"1"), polled(code), polled(None, b"2"), polled(KafkaError._PARTITION_EOF)]
    assert list(follow_alerts("broker:9092", TopicSettings(), {}, is_ending=True)) == [b"1", b"2"]


def test_a_refusal_ends_the_feed(script: list[SimpleNamespace]) -> None:
    script += [polled(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(ServiceRefused):
        list(follow_alerts("broker:9092", TopicSettings(), {}, is_ending=True))


def test_a_partition_whose_first_alert_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SimpleNamespace(offset=-1001, error=KafkaError(KafkaError._TIMED_OUT))
    end = polled(KafkaError._PARTITION_EOF)
    consumer = SimpleNamespace(
        offsets_for_times=lambda _, timeout: [unknown], assign=lambda _: None, close=lambda: None, poll=lambda _: end
    )
    monkeypatch.setattr(alert_feed, "new_consumer", lambda _: consumer)
    monkeypatch.setattr(alert_feed, "partitions_there", lambda *_: {"alerts": [0]})
    with pytest.raises(ServiceUnavailable, match="must answer within 10 s"):
        list(follow_alerts("broker:9092", TopicSettings(), {}, since_ns=0, is_ending=True))


def test_a_partition_whose_leader_is_still_being_made_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    leaderless = SimpleNamespace(offset=-1001, error=KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    answers = [[leaderless], [SimpleNamespace(offset=0, error=None)]]
    found = [polled(None, b"1"), polled(KafkaError._PARTITION_EOF)]
    consumer = SimpleNamespace(
        offsets_for_times=lambda _, timeout: answers.pop(0), assign=lambda _: None, close=lambda: None,
        poll=lambda _: found.pop(0),
    )  # fmt: skip
    monkeypatch.setattr(alert_feed, "new_consumer", lambda _: consumer)
    monkeypatch.setattr(alert_feed, "partitions_there", lambda *_: {"alerts": [0]})
    assert list(follow_alerts("broker:9092", TopicSettings(), {}, since_ns=0, is_ending=True)) == [b"1"]


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A consumer whose broker goes away after one message, before the end of the topic; and how often it polled."""
    lost = SimpleNamespace(polls=0)

    def make(config: dict[str, Any]) -> Any:
        def poll(_timeout_s: float) -> SimpleNamespace | None:
            lost.polls += 1
            if lost.polls == 1:
                return polled(None, b"1")
            assert lost.polls < 10, "it goes on for ever"
            config["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
            return None

        def list_topics(timeout: float) -> None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        return SimpleNamespace(assign=lambda _: None, close=lambda: None, poll=poll, list_topics=list_topics)

    monkeypatch.setattr(alert_feed, "new_consumer", make)
    monkeypatch.setattr(alert_feed, "partitions_there", lambda *_: {"alerts": [0]})
    return lost


@pytest.mark.usefixtures("lost")
def test_a_broker_that_goes_away_before_the_end_that_is_asked_for_is_an_error() -> None:
    feed = follow_alerts("broker:9092", TopicSettings(), {}, is_ending=True)
    assert next(feed) == b"1"
    with pytest.raises(ServiceUnavailable, match="Kafka at broker:9092 must answer until all is read; got no answer"):
        next(feed)


def test_a_broker_that_goes_away_is_reported_and_waited_for_where_no_end_is_asked_for(lost: SimpleNamespace) -> None:
    told: list[str | None] = []
    feed = follow_alerts("broker:9092", TopicSettings(), {}, tell=told.append, is_over=lambda: lost.polls > 5)
    assert list(feed) == [b"1"]
    assert told == [None, "Kafka at broker:9092 does not answer: nothing new is read until it does"]
