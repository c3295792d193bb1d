from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any, cast

import pytest

from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import HEADER_BYTES, MAX_KEY_BYTES, MAX_MESSAGE_BYTES, TopicSettings


class Sent:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes | None, bytes | None, dict[str, bytes]]] = []

    async def send(self, topic: str, key: bytes | None, value: bytes | None, *, headers: Any) -> None:
        self.messages.append((topic, key, value, dict(headers)))


@dataclass
class Message:
    key: bytes | None
    value: bytes | None
    topic: str = "irregulars.commops"
    partition: int = 3
    offset: int = 77
    timestamp: float = 1.5


def buried(message: Message, reason: str = "x must be y") -> tuple[bytes | None, bytes | None, dict[str, bytes]]:
    sent = Sent()
    asyncio.run(DeadLetters(cast(Outbox, sent), TopicSettings()).bury(message, reason))
    ((_, key, value, headers),) = sent.messages
    return key, value, headers


def test_a_message_that_fits_is_kept_as_it_was_and_a_reason_with_half_a_surrogate_pair_sent() -> None:
    key, value, headers = buried(Message(b"job/3", b"no record"))
    assert (key, value) == (b"job/3", b"no record")
    assert headers == {
        "reason": b"x must be y", "topic": b"irregulars.commops", "partition": b"3", "offset": b"77",
        "time_ns": b"1500000000", "key_bytes": b"5", "value_bytes": b"9",
    }  # fmt: skip
    _, _, headers = buried(Message(None, None), "got '\ud800'")
    assert headers["reason"] == b"got '\\ud800'"
    assert headers["value_bytes"] == b"0"


@pytest.mark.parametrize("size", [MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + HEADER_BYTES, 5_000_000])
def test_of_a_message_that_does_not_fit_the_head_and_its_place_are_kept(size: int) -> None:
    original = os.urandom(size)
    key, value, headers = buried(Message(original, original), "é" * 10_000)
    assert key == original[:MAX_KEY_BYTES]
    assert value is not None
    assert original.startswith(value)
    assert (headers["offset"], headers["key_bytes"], headers["value_bytes"]) == (b"77", *[str(size).encode()] * 2)
    headers_bytes = sum(len(name) + len(text) for name, text in headers.items())
    assert len(key) + len(value) <= MAX_MESSAGE_BYTES
    assert headers_bytes <= HEADER_BYTES // 2
