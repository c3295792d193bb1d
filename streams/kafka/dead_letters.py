"""Where messages go that can't be used: kept as they were, with the reason, while the worker goes on."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from irregulars.streams.kafka.outbox import Outbox
from irregulars.streams.kafka.topics import TopicSettings

LOG: Final = logging.getLogger("irregulars.worker")
_REASON_CHARACTERS: Final = 1000
_LOG_FIRST: Final = 5
_LOG_EVERY: Final = 1000


class InputMessage(Protocol):
    """What we use of a consumed message."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    key: bytes | None
    value: bytes | None


class DeadLetters:
    """Sends to ``deadletter`` the original key and bytes, with headers that tell why and from where.

    Headers, all text: ``reason``, ``topic``, ``partition``, ``offset`` and ``time_ns`` (of the message, ns since the
    epoch).
    """

    def __init__(self, outbox: Outbox, topics: TopicSettings) -> None:
        self._outbox: Final = outbox
        self._topic: Final = topics.name("deadletter")
        self.count = 0

    async def bury(self, message: InputMessage, reason: str) -> None:
        """Send `message`; it stands on the broker after the next barrier of the outbox."""
        time_ns = int((message.timestamp or 0.0) * 1000) * 1_000_000  # Kafka's own times are milliseconds
        headers = {
            "reason": reason[:_REASON_CHARACTERS],
            "topic": message.topic,
            "partition": str(message.partition),
            "offset": str(message.offset),
            "time_ns": str(time_ns),
        }
        await self.send(message.key, message.value, headers)

    async def send(self, key: bytes | None, value: bytes | None, headers: dict[str, str]) -> None:
        """Send bytes that are no input message, for example rows that the database will never take."""
        encoded = [(name, text.encode()) for name, text in headers.items()]
        await self._outbox.send(self._topic, key, value, headers=encoded)
        self.count += 1
        if self.count <= _LOG_FIRST or self.count % _LOG_EVERY == 0:  # never one line a record
            said = " ".join(f"{name}={text!r}" for name, text in headers.items())
            LOG.warning("event=dead_letter count=%d %s", self.count, said)
