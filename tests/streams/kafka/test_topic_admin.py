from __future__ import annotations

import pytest

from irregulars.streams.kafka.topic_admin import topic_config
from irregulars.streams.kafka.topics import HOUR_MS, SNAPSHOT_TOPICS, TOPICS

KAFKAS_DEFAULT_BYTES = 1_048_576


@pytest.mark.parametrize("name", TOPICS)
def test_no_message_is_larger_than_kafka_takes_unasked(name: str) -> None:
    assert topic_config(TOPICS[name])["max.message.bytes"] == str(KAFKAS_DEFAULT_BYTES)


@pytest.mark.parametrize("name", SNAPSHOT_TOPICS)
def test_stale_snapshots_are_cleaned_within_an_hour(name: str) -> None:
    """Kafka compacts no open file of the log, and closes one by default after 7 days or 1 GiB."""
    config = {key: float(value) for key, value in topic_config(TOPICS[name]).items() if key != "cleanup.policy"}
    assert config["segment.ms"] + config["max.compaction.lag.ms"] <= HOUR_MS
    assert config["segment.bytes"] <= 64 << 20
    assert config["delete.retention.ms"] >= config["max.compaction.lag.ms"]


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_is_compacted_or_ends_after_its_retention(name: str) -> None:
    config = topic_config(TOPICS[name])
    is_compacted = config["cleanup.policy"] == "compact"
    assert is_compacted == TOPICS[name].is_compacted
    assert ("retention.ms" in config) != is_compacted
    assert is_compacted or int(config["retention.ms"]) >= HOUR_MS
