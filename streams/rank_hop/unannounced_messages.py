"""What a rank sent of an attempt that nobody has announced yet: topics interleave as they like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from irregulars.streams.messages.announcements import Heartbeat, decode_heartbeat, encode_heartbeat
from irregulars.streams.messages.records import Batch, decode_batch, encode_batch

MAX_HELD_BATCHES: Final = 1000
"""Batches held for a rank that nobody has announced yet; more are handed back by `HeldMessages.take_surplus`."""


class HeldMessages:
    """Batches with their offsets, and the newest heartbeats, in the order in which they came."""

    def __init__(self) -> None:
        self._batches: list[tuple[Batch, int]] = []
        self._beats: list[Heartbeat] = []

    def add(self, batch: Batch, offset: int) -> None:
        """Hold a batch."""
        self._batches.append((batch, offset))

    def beat(self, heartbeat: Heartbeat) -> None:
        """Hold a heartbeat; only the newest two are of use."""
        self._beats = [*self._beats[-1:], heartbeat]

    def has_operators(self, attempt: int) -> bool:
        """Whether operators of this attempt, or of a later one, are held."""
        return any(b.header.schema == "commops" and b.header.attempt >= attempt for b, _ in self._batches)

    def take(self) -> tuple[list[tuple[Batch, int]], list[Heartbeat]]:
        """Hand out everything."""
        batches, self._batches = self._batches, []
        beats, self._beats = self._beats, []
        return batches, beats

    def take_surplus(self) -> list[tuple[Batch, int]]:
        """Give up batches above `MAX_HELD_BATCHES`, oldest first."""
        surplus = max(len(self._batches) - MAX_HELD_BATCHES, 0)
        given_up, self._batches = self._batches[:surplus], self._batches[surplus:]
        return given_up

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays."""
        return {
            "batches": [
                [batch.header.schema, offset, np.frombuffer(encode_batch(batch), np.uint8)]
                for batch, offset in self._batches
            ],
            "heartbeats": [encode_heartbeat(beat).decode() for beat in self._beats],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> HeldMessages:
        """Restore."""
        held = cls()
        held._batches = [
            (decode_batch(value.tobytes(), schema), offset) for schema, offset, value in state["batches"]
        ]
        held._beats = [decode_heartbeat(beat.encode()) for beat in state["heartbeats"]]
        return held
