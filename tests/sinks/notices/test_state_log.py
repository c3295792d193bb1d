"""The state of notices on a real broker."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, TopicSettings
from irregulars.sinks.notices.state_log import StateLog

pytestmark = pytest.mark.integration


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
