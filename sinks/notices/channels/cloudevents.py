"""CloudEvents on a topic of Kafka, in binary mode: attributes in headers, the notice as JSON in the value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from confluent_kafka import KafkaError

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.kafka.lasting_producer import BY_KEY, Headers, LastingProducer, Record
from irregulars.sinks.notices.notice import AWAY_S, Notice, encode_notice, written

TYPE: Final = "irregulars.incident"
_NEVER: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD})


class CloudEventsChannel:
    """Produces a message for each notice, keyed by the incident: one incident's stand in order in one partition.

    The producer calls back within its own ``message.timeout.ms``; `source` becomes ``ce_source``.
    """

    def __init__(self, name: str, topic: str, producer: LastingProducer, source: str = "irregulars") -> None:
        self.name: Final = name
        self._topic, self._producer, self._source = topic, producer, source

    def deliver(self, notice: Notice) -> str | None:
        """Produce it, and wait for the acknowledgement; see `Channel.deliver`."""
        value, headers = written(self._message, notice)
        error = self._producer.deliver(
            [Record(self._topic, notice.incident.encode(), value, BY_KEY, headers)]
        )  # ends: message.timeout.ms
        if error is None:
            return None
        text = f"topic {self._topic} must take the event; got {error.name()}"
        raise SinkRejected(text) if error.code() in _NEVER else SinkBusy(text, AWAY_S)

    def close(self) -> None:
        """Let go of the connection."""
        self._producer.flush(0)

    def _message(self, notice: Notice) -> tuple[bytes, Headers]:
        headers = [(key, value.encode(errors="replace")) for key, value in headers_of(notice, self._source).items()]
        return encode_notice(notice), headers


def headers_of(notice: Notice, source: str) -> dict[str, str]:
    """Return the attributes as headers; `ce_id` is the same for the same notice."""
    headers = {
        "ce_specversion": "1.0",
        "ce_id": notice.idempotency_key,
        "ce_source": source,
        "ce_type": f"{TYPE}.{notice.event}",
        "ce_subject": notice.incident,
        "content-type": "application/json",
    }
    time_ns = notice.alert.get("time_ns")
    if isinstance(time_ns, int) and 0 <= time_ns < 1 << 62:
        headers["ce_time"] = datetime.fromtimestamp(time_ns / 10**9, UTC).isoformat("T", "milliseconds")
    return headers
