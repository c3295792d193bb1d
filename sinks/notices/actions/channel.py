"""The channel of notices that publishes proposals on the topic `actions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.kafka.lasting_producer import LastingProducer, Record
from irregulars.sinks.notices.actions.actions import actions_of, encode_actions, remember
from irregulars.sinks.notices.notice import Notice, written

_RETRY_S: Final = 5.0
_MOST_BYTES: Final = 1 << 20  # of a message: what the topic takes
_NEVER: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG})


class ActionsChannel:
    """Publishes the actions of each incident; a notice that comes again gives the same message again.

    A message is there when `deliver` returns: the producer is idempotent, and all replicas in sync have it. The
    newest message of an incident is the whole truth, so that one without any action withdraws all before it; it is
    left out where nothing can have been published before. `timeout_s`: How long the broker may take for a message,
    before the notice is to come again, s.
    """

    def __init__(self, name: str, topic: str, config: Mapping[str, Any], timeout_s: float = 30.0) -> None:
        self.name: Final = name
        self.gathers: Final = False  # each node is an action of its own
        self._topic: Final = topic
        self._brokers: Final = config.get("bootstrap.servers", "")
        own = {"message.timeout.ms": int(timeout_s * 1000), "message.max.bytes": _MOST_BYTES}
        self._config: Final = {**config, **own}
        self._producer: LastingProducer | None = None

    def deliver(self, notice: Notice) -> str | None:
        """Publish; returns the reference for the incident's next notice. Raises `SinkBusy` and `SinkRejected`."""
        actions, value = written(lambda one: (found := actions_of(one), encode_actions(one, found)), notice)
        if actions or notice.event != "opened" or notice.is_doubtful:  # an earlier proposal may stand unbeknown to us
            record = Record(self._topic, notice.incident.encode(), value)
            try:
                if self._producer is None:
                    self._producer = LastingProducer(self._config)
                error = self._producer.deliver([record])  # ends: message.timeout.ms
            except KafkaException as none_made:
                error = none_made.args[0]
            if error is not None:
                told = f"{error.name()}: {error.str()} (Kafka at {self._brokers})"
                reason = f"topic {self._topic} must take actions; got {told}"
                if error.code() in _NEVER:
                    raise SinkRejected(reason, (notice,))
                raise SinkBusy(reason, _RETRY_S)
        return remember(actions)

    def close(self) -> None:
        """Let go of the producer; nothing is on its way."""
        self._producer = None
