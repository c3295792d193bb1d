"""Where messages go that can't be used: kept with the reason and their place, while the worker goes on.

A dead letter always fits its topic: of a longer message it keeps the head. The headers name the place of the
original, which is there as long as its topic keeps it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, TopicSettings

LOG: Final = logging.getLogger("irregulars.worker")
REASON_CHARACTERS: Final = 1000
"""Of a reason, the start is kept: with the other headers it must fit into `kafka.topics.HEADER_BYTES`."""

# With the longest key this value is as long as `MAX_MESSAGE_BYTES`; headers have their room beside it.
_VALUE_BYTES: Final = MAX_MESSAGE_BYTES - MAX_KEY_BYTES
# The first few each have a line, then one in a thousand: a broken producer may send nothing else.
_LOG_FIRST: Final = 5
_LOG_EVERY: Final = 1000


@dataclass(slots=True)
class KeptMessage:
    """A message that was read, and may have to be buried."""

    topic: str  # with its prefix
    partition: int
    offset: int
    timestamp: float  # seconds since the epoch
    key: bytes | None
    value: bytes | None


class DeadLetters:
    """Sends to ``deadletter`` the original key and bytes, with headers that give reason and origin.

    Headers, all text: ``reason``, ``topic``, ``partition``, ``offset``, ``time_ns`` (of the message, ns since the
    epoch), and ``key_bytes`` and ``value_bytes``, how long key and value were. A key above 4096 bytes and a value
    above 995,904 bytes are cut there.
    """

    def __init__(self, outbox: Outbox, topics: TopicSettings) -> None:
        self._outbox: Final = outbox
        self._topic: Final = topics.name("deadletter")
        self.count = 0

    async def bury(self, message: KeptMessage, reason: str) -> None:
        """Send `message`; the broker has it after the next barrier of the outbox."""
        time_ns = int((message.timestamp or 0.0) * 1000) * 1_000_000  # Kafka's own times are milliseconds
        headers = {
            "reason": reason,
            "topic": message.topic,
            "partition": str(message.partition),
            "offset": str(message.offset),
            "time_ns": str(time_ns),
        }
        await self.send(message.key, message.value, headers)

    async def send(self, key: bytes | None, value: bytes | None, headers: dict[str, str]) -> None:
        """Send bytes that are no input message, for example rows that the database will never take."""
        headers = {name: text[:REASON_CHARACTERS] for name, text in headers.items()}
        headers |= {"key_bytes": str(len(key or b"")), "value_bytes": str(len(value or b""))}
        # A reason may quote half of a surrogate pair, which UTF-8 can't hold.
        encoded = [(name, text.encode(errors="backslashreplace")) for name, text in headers.items()]
        await self._outbox.send(self._topic, _head(key, MAX_KEY_BYTES), _head(value, _VALUE_BYTES), headers=encoded)
        self.count += 1
        if self.count <= _LOG_FIRST or self.count % _LOG_EVERY == 0:  # never one line a record
            said = " ".join(f"{name}={text!r}" for name, text in headers.items())
            LOG.warning("event=dead_letter count=%d %s", self.count, said)


def _head(value: bytes | None, most_bytes: int) -> bytes | None:
    return None if value is None else value[:most_bytes]
