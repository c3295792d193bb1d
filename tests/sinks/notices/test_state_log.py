"""The state of notices: on a real broker, and where sending to one fails."""

from __future__ import annotations

import threading
import time
from contextlib import closing, nullcontext
from typing import NamedTuple, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message

from irregulars.errors import ServiceError
from irregulars.kafka.lasting_producer import LastingProducer
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, TopicSettings
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.mutes import Mute, encode_mute
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.state_log import StateLog, apply_message
from tests.sinks.notices.alerts import alert_bytes


@pytest.mark.parametrize(("code", "passes"), [
    (KafkaError._MSG_TIMED_OUT, True), (KafkaError._RESOLVE, True), (KafkaError.NOT_ENOUGH_REPLICAS, True),
    (KafkaError.NOT_LEADER_FOR_PARTITION, True), (KafkaError.MSG_SIZE_TOO_LARGE, False),
])  # fmt: skip
def test_a_record_is_sent_again_after_passing_errors(
    monkeypatch: pytest.MonkeyPatch, code: int, passes: bool
) -> None:
    outcomes = [KafkaError(code), None]
    assert not KafkaError(code).retriable()
    monkeypatch.setattr(LastingProducer, "deliver", lambda *_, **__: outcomes.pop(0))
    refused = nullcontext() if passes else pytest.raises(ServiceError, match="MSG_SIZE_TOO_LARGE")
    with closing(StateLog("127.0.0.1:1", TopicSettings(), {}, threading.Event())) as log, refused:
        log.erase_mute("one")
    assert len(outcomes) == (0 if passes else 1)


class AnHourAhead:
    """An alert of a worker whose clock is ahead, as it comes from Kafka."""

    def value(self) -> bytes:
        return alert_bytes(severity="page")

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, time.time_ns() // 10**6 + 3_600_000

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0


def test_a_worker_whose_clock_is_ahead_holds_no_page_back() -> None:
    ledger = Ledger({"pager": Rules(hold_s=60.0, least_severity="page")})
    assert apply_message(ledger, cast(Message, AnHourAhead())) is None
    now_ns = time.time_ns()
    assert ledger.next_due("pager", now_ns) is None
    due = ledger.next_due("pager", now_ns + 60 * 10**9)
    assert due is not None
    assert due.notice.severity == "page"


class Written(NamedTuple):
    """A mute, as it comes from Kafka."""

    mute: Mute

    def key(self) -> bytes:
        return self.mute.mute_id.encode()

    def value(self) -> bytes:
        return encode_mute(self.mute)


def test_of_a_topic_made_anew_all_is_read_and_nothing_of_before_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = (Mute(name, 0, 1, "firmware", "ann", host="node-3") for name in ("old", "new"))
    topic = [old, old, old]
    monkeypatch.setattr(LogReader, "partitions", lambda *_: [0])
    monkeypatch.setattr(LogReader, "end_offset", lambda *_: len(topic))
    monkeypatch.setattr(LogReader, "messages", lambda _, __, ___, begin, end: map(Written, topic[begin:end]))
    with closing(StateLog("127.0.0.1:1", TopicSettings(), {}, threading.Event())) as log:
        assert log.mutes() == [old]
        topic[:] = [new]
        assert log.mutes() == [new]


@pytest.mark.integration
def test_the_largest_dead_letter_with_the_longest_reason_is_published(
    kafka_bootstrap: str, topic_prefix: str
) -> None:
    topics = TopicSettings(topic_prefix, 1)
    create_topics(kafka_bootstrap, topics)
    key, value = b"k" * (MAX_KEY_BYTES + 1), b"v" * MAX_MESSAGE_BYTES
    with (
        closing(StateLog(kafka_bootstrap, topics, {}, threading.Event())) as log,
        closing(LogReader(kafka_bootstrap, {})) as reader,
    ):
        log.bury(key, value, (0, 7), "r" * 100_000, "all")
        (found,) = reader.read_tail(topics.name("deadletter"), 0)
    assert (found.key(), found.value()) == (key[:MAX_KEY_BYTES], value[: MAX_MESSAGE_BYTES - MAX_KEY_BYTES])
    assert dict(found.headers() or ())["value_bytes"] == str(MAX_MESSAGE_BYTES).encode()
