"""When a consumer of actions says that the broker is away; the broker is one that the test plays."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.kafka import alert_feed, broker
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.notices.actions import feed as action_feed
from irregulars.sinks.notices.actions.actions import encode_actions
from irregulars.sinks.notices.actions.feed import ActionFeed, recent_verdicts
from irregulars.sinks.notices.actions.nvsentinel import run_health_events
from tests.sinks.notices.actions.memory_nodes import Received
from tests.sinks.notices.made_up_notices import VERDICT, notice_of


class PlayedConsumer:
    """Answers, or does not."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.error_cb = config["error_cb"]
        self.is_away = False
        self.found: list[object] = []
        self.failures: list[int] = []  # codes of the next commits' errors
        self.done: list[object] = []  # committed now

    def subscribe(self, *_: object, **__: object) -> None:
        pass

    def assign(self, _places: object) -> None:
        pass

    def consume(self, *_: object) -> list[object]:
        found, self.found = self.found, []
        return found

    def commit(self, message: object, asynchronous: bool) -> None:
        if self.failures:
            raise KafkaException(KafkaError(self.failures.pop(0)))
        self.done.append(message)

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(one.topic, one.partition) for one in places]

    def list_topics(self, timeout: float) -> None:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


class Failure:
    """An error that a consumer gives out in place of a message."""

    def __init__(self, code: int) -> None:
        self._error = KafkaError(code)

    def error(self) -> KafkaError:
        return self._error

    def partition(self) -> int:
        return 0


class Given(Received):
    """A message that a consumer gives out."""

    def error(self) -> None:
        return None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PlayedConsumer]:
    """Return the consumers that are made."""
    made: list[PlayedConsumer] = []

    def make(config: dict[str, Any]) -> PlayedConsumer:
        made.append(PlayedConsumer(config))
        return made[-1]

    monkeypatch.setattr(action_feed, "partitions_there", lambda *_: {"actions": [0]})
    monkeypatch.setattr(broker, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(action_feed, "new_consumer", make)
    return made


PASSING = ["_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "NOT_COORDINATOR", "_MAX_POLL_EXCEEDED"]


@pytest.mark.parametrize("name", PASSING)
def test_an_error_after_which_librdkafka_goes_on_ends_nothing(made: list[PlayedConsumer], name: str) -> None:
    feed = ActionFeed("localhost:9092", TopicSettings(), {}, "g")
    made[0].found = [Failure(getattr(KafkaError, name))]
    assert feed.poll(0.0).messages == ()


def test_a_refusal_ends_it(made: list[PlayedConsumer]) -> None:
    feed = ActionFeed("localhost:9092", TopicSettings(), {}, "g", is_member=False)
    made[0].found = [Failure(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(ServiceRefused, match="TOPIC_AUTHORIZATION_FAILED"):
        feed.poll(0.0)
    made[0].failures = [KafkaError.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(ServiceRefused, match="GROUP_AUTHORIZATION_FAILED"):
        deliver_two(made[0], feed)


def deliver_two(consumer: PlayedConsumer, feed: ActionFeed) -> list[str]:
    """Give two messages to NVSentinel, and return which revisions it was given."""
    alerts = [replace(VERDICT, revision=revision, time_ns=time.time_ns()) for revision in (1, 2)]
    given = [Given(encode_actions(notice_of(one))) for one in alerts]
    consumer.found = [*given, Failure(KafkaError._PARTITION_EOF)]
    events: list[Any] = []
    run_health_events(feed, events.extend, "west", 0.9, is_executed=False, is_ending=True)
    assert consumer.done == given[-len(consumer.done) :]
    return [one["data"]["healthEvent"]["metadata"]["revision"] for one in events]


COUNTED_OUT = ["ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"]


@pytest.mark.parametrize("name", PASSING + COUNTED_OUT)
def test_a_commit_whose_error_passes_is_left_to_a_later_one(made: list[PlayedConsumer], name: str) -> None:
    feed = ActionFeed("localhost:9092", TopicSettings(), {}, "g", is_member=False)
    made[0].failures = [getattr(KafkaError, name)]
    assert deliver_two(made[0], feed) == ["1", "2"]
    assert len(made[0].done) == 1


def test_a_connection_that_fails_is_no_broker_that_is_away(made: list[PlayedConsumer]) -> None:
    told: list[str] = []
    feed = ActionFeed("localhost:9092", TopicSettings(), {}, "g", tell=told.append)
    (consumer,) = made
    for is_away, wanted in ((False, 0), (True, 1), (True, 1), (False, 2)):
        consumer.is_away = is_away
        consumer.error_cb(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        feed.poll(0.0)
        feed.poll(0.0)
        assert len(told) == wanted
    assert told[0].startswith("Kafka at localhost:9092 does not answer")
    assert told[1] == "Kafka at localhost:9092 answers again"


def test_alerts_must_be_read_in_time_and_leaving_the_broker_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]
    read = [SimpleNamespace(error=lambda: KafkaError(KafkaError._PARTITION_EOF), partition=lambda: 0)]
    consumer = SimpleNamespace(
        offsets_for_times=lambda places, timeout: places, assign=lambda _: None, poll=lambda _: read[-1],
        close=lambda: clock_s.append(9.0),
    )  # fmt: skip
    monkeypatch.setattr(alert_feed, "new_consumer", lambda _: consumer)
    monkeypatch.setattr(alert_feed, "partitions_there", lambda *_: {"alerts": [0]})
    monkeypatch.setattr(action_feed, "time", SimpleNamespace(monotonic=lambda: clock_s[-1]))
    where: tuple[str, TopicSettings, dict[str, Any]] = "broker:9092", TopicSettings(), {}
    assert list(recent_verdicts(*where, 0, 5.0)) == []
    read.append(SimpleNamespace(error=lambda: clock_s.append(clock_s[-1] + 9.0), value=lambda: b"unreadable"))
    with pytest.raises(ServiceUnavailable, match="must give all alerts in time"):
        list(recent_verdicts(*where, 0, 5.0))
