"""The channel of notices that publishes what may be done on the topic `actions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from irregulars.errors import RecordError, SinkBusy, SinkRejected
from irregulars.sinks.notices.action_messages import encode_actions
from irregulars.sinks.notices.actions import actions_of, remember
from irregulars.sinks.notices.notice import Notice
from irregulars.streams.kafka.broker import client_config, is_refusal
from irregulars.streams.kafka.topics import HEADER_BYTES, MAX_MESSAGE_BYTES, SENDING, TopicSettings

_RETRY_S: Final = 5.0
_NEVER: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG})


class ActionsChannel:
    """Publishes the actions of each incident; a notice that comes again gives the same message again.

    A message is there when `deliver` returns: the producer is idempotent, and all replicas in sync have it. A notice
    without any action, now or before, is not published.

    Parameters
    ----------
    bootstrap, security
        As in `streams.kafka.broker.client_config`.
    topics
        How the topics are named.
    timeout_s
        How long the broker may take for a message, before the notice is to come again.
    """

    name: Final = "actions"

    def __init__(
        self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], timeout_s: float = 30.0
    ) -> None:
        self._security: Final = security
        self._bootstrap: Final = bootstrap
        self._topic: Final = topics.name("actions")
        self._config: Final = client_config(bootstrap, security) | {
            **SENDING, "acks": "all", "message.timeout.ms": int(timeout_s * 1000),
            "message.max.bytes": MAX_MESSAGE_BYTES + HEADER_BYTES,
        }  # fmt: skip
        self._producer: Producer | None = None

    def deliver(self, notice: Notice) -> str | None:
        """Publish; returns what the incident's next notice shall carry. Raises `SinkBusy` and `SinkRejected`."""
        try:
            actions = actions_of(notice)
            value = encode_actions(notice, actions)
        except RecordError as error:
            raise SinkRejected(str(error), (notice,)) from error
        if actions:
            self._send(notice, value)
        return remember(actions)

    def close(self) -> None:
        """Let go of the producer; nothing is on its way."""
        self._producer = None

    def _send(self, notice: Notice, value: bytes) -> None:
        failures: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            failures.append(error)

        try:
            self._producer = self._producer or Producer(dict(self._config))
            self._producer.produce(self._topic, value, notice.incident.encode(), on_delivery=delivered)
            self._producer.flush()  # ends: message.timeout.ms
        except KafkaException as error:
            failures.append(error.args[0])
        if failures and failures[0] is None:
            return
        self._fail(failures[0] if failures else None, notice)

    def _fail(self, error: KafkaError | None, notice: Notice) -> None:
        self._producer = None  # a failure may be fatal to an idempotent one
        told = "no acknowledgement" if error is None else f"{error.name()}: {error.str()}"
        reason = f"topic {self._topic} must take actions; got {told} (Kafka at {self._bootstrap})"
        if error is not None and error.code() in _NEVER:
            raise SinkRejected(reason, (notice,))
        hint = ". Check user and rights (infra/docs/access.md)" if error and is_refusal(error, self._security) else ""
        raise SinkBusy(reason + hint, _RETRY_S)
