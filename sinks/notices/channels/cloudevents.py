"""CloudEvents on a topic of Kafka, in binary mode: attributes in headers, the notice as JSON in the value."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.sinks.notices.notice import AWAY_S, Notice, written
from irregulars.sinks.notices.text import encode_notice

TYPE: Final = "irregulars.incident"
_NEVER: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD})
_POLL_S: Final = 0.2


class CloudEventsChannel:
    """Produces a message for each notice, keyed by the incident: one incident's stand in order in one partition.

    Parameters
    ----------
    name
        Of the channel.
    topic
        Full name of a topic that exists.
    producer
        Makes messages; it calls back within its own ``message.timeout.ms``.
    source
        Who sends: ``ce_source``.
    """

    def __init__(self, name: str, topic: str, producer: Producer, source: str = "irregulars") -> None:
        self.name: Final = name
        self._topic, self._producer, self._source = topic, producer, source

    def deliver(self, notice: Notice) -> str | None:
        """Produce it, and wait for the acknowledgement; see `Channel.deliver`."""
        done, outcome = threading.Event(), list[KafkaError | None]()

        def note(error: KafkaError | None, _: object) -> None:
            outcome.append(error)
            done.set()

        value, headers = written(self._message, notice)
        try:
            self._producer.produce(self._topic, value, notice.incident.encode(), headers=headers, on_delivery=note)
        except (KafkaException, BufferError) as error:
            raise self._failure(error.args[0]) from error
        while not done.is_set():  # librdkafka calls back within the message's time limit
            self._producer.poll(_POLL_S)
        if outcome[0] is not None:
            raise self._failure(outcome[0])
        return None

    def close(self) -> None:
        """Let go of the connection."""
        self._producer.flush(0)

    def _message(self, notice: Notice) -> tuple[bytes, Any]:
        headers = [(key, value.encode(errors="replace")) for key, value in headers_of(notice, self._source).items()]
        return encode_notice(notice), headers

    def _failure(self, error: object) -> SinkBusy | SinkRejected:
        text = f"topic {self._topic} must take the event"
        if not isinstance(error, KafkaError):
            return SinkBusy(f"{text}; got a full queue", AWAY_S)
        text = f"{text}; got {error.name()}"
        return SinkRejected(text) if error.code() in _NEVER else SinkBusy(text, AWAY_S)


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
