"""Where Kafka is and who the console is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from irregulars.kafka.topics import TopicSettings


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Brokers, topics, and librdkafka's settings of protocol and credentials, which appear in no text."""

    bootstrap: str
    topics: TopicSettings
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
