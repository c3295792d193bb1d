"""The newest messages of many partitions at once, within a bounded time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from irregulars.errors import ServiceError, ServiceUnavailable
from irregulars.infra.doctor.reading.deadline import Deadline
from irregulars.kafka.broker import client_config, is_refusal, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.scattered_reading import PASSING

_BATCH: Final = 1000
_POLL_S: Final = 0.1
_MOST_KIB: Final = 65_536
"""What librdkafka fetches ahead: large messages must not fill our memory."""

_PIECE_BYTES: Final = 1 << 18
Place = tuple[str, int]


class Tails:
    """Reads stretches of partitions. Nothing is committed, and no group is joined.

    Parameters
    ----------
    bootstrap, security
        As in `kafka.broker.client_config`.
    """

    def __init__(self, bootstrap: str, security: Mapping[str, Any]) -> None:
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        self._config: Final = client_config(bootstrap, security) | {
            "group.id": "irregulars-read-back",  # librdkafka asks for one
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": _MOST_KIB,
            "fetch.message.max.bytes": _PIECE_BYTES,
        }

    def read(self, stretches: Mapping[Place, tuple[int, int]], deadline: Deadline) -> Iterator[Message]:
        """Yield the messages of each stretch, from its first offset to before its last, as far as they exist.

        Raises
        ------
        ServiceUnavailable
            If not all came in time.
        ServiceRefused
            If we may not read one of the topics.
        """
        ends = {place: end for place, (begin, end) in stretches.items() if begin < end}
        if not ends:
            return
        with closing(new_consumer(self._config)) as consumer:
            consumer.assign([TopicPartition(*place, stretches[place][0]) for place in ends])
            while ends:
                if deadline.is_over:
                    raise ServiceUnavailable(f"Kafka at {self._bootstrap} must send all in time; got less")
                for message in consumer.consume(_BATCH, _POLL_S):
                    yield from self._taken(message, ends)

    def _taken(self, message: Message, ends: dict[Place, int]) -> Iterator[Message]:
        error = message.error()
        place = str(message.topic()), message.partition() or 0
        if error is None:
            offset = message.offset() or 0
            if offset < ends.get(place, 0):
                yield message
            if offset >= ends.get(place, 0) - 1:
                ends.pop(place, None)
        elif error.code() == KafkaError._PARTITION_EOF:  # what is compacted away ends before its last offset
            ends.pop(place, None)
        elif is_refusal(error, self._security) or error.code() not in PASSING:
            raise self._told(error)

    def _told(self, error: Any) -> ServiceError:
        return service_error(error, self._bootstrap, security=self._security)


def reason_of(error: Exception) -> str:
    """Return why something could not be read, without the advice at its end."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error).split(". Check ")[0]
