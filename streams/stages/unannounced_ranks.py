"""Messages of ranks that nobody has announced yet: kept as bytes, within a bound of memory and of time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from irregulars.kafka.dead_letters import KeptMessage

UNANNOUNCED: Final = "rank and attempt must be announced on the topic jobs; got no announcement in time"


@dataclass(slots=True)
class ParkedMessage(KeptMessage):
    """One message as it was read; `reason` is for the headers of its dead letter."""

    short_topic: str
    parked_at_s: float
    reason: str = UNANNOUNCED


class ParkingLot:
    """Keeps messages by key, oldest first.

    Parameters
    ----------
    limit_bytes
        Of all keys and values together.
    limit_s
        How long a message may stay.
    """

    def __init__(self, limit_bytes: int, limit_s: float) -> None:
        self._limit_bytes: Final = limit_bytes
        self._limit_s: Final = limit_s
        self._by_key: dict[bytes, deque[ParkedMessage]] = {}
        self.size_bytes = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def add(self, key: bytes, message: ParkedMessage) -> None:
        """Keep a message."""
        self._by_key.setdefault(key, deque()).append(message)
        self.size_bytes += _size_bytes(message)

    def take(self, key: bytes) -> list[ParkedMessage]:
        """Give back the messages of `key`: it was announced."""
        messages = list(self._by_key.pop(key, ()))
        self.size_bytes -= sum(map(_size_bytes, messages))
        return messages

    def take_overdue(self, now_s: float) -> list[ParkedMessage]:
        """Give up what has stayed too long, and, where memory is short, the keys that came first."""
        overdue = []
        for key in list(self._by_key):
            first = self._by_key[key][0]
            if now_s - first.parked_at_s >= self._limit_s or self.size_bytes > self._limit_bytes:
                overdue += self.take(key)
        return overdue


def _size_bytes(message: ParkedMessage) -> int:
    return len(message.key or b"") + len(message.value or b"")
