"""Whether a broker is ready for clients."""

from __future__ import annotations

import logging
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from irregulars.infra.services.loopback import HOST, answers

_ANSWER_S: Final = 2.0

# librdkafka's lines about a broker that is still coming up are no news.
_QUIET: Final = logging.getLogger("irregulars.kafka_answers")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def kafka_answers(port: int) -> bool:
    """Whether a Kafka broker on `port` of 127.0.0.1 tells who it is, within 2 s."""
    if not answers(port):
        return False
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0}, logger=_QUIET)
    try:
        return bool(client.list_topics(timeout=_ANSWER_S).brokers)
    except KafkaException:
        return False
