"""Holds the messages of a start whose announcement has not come yet: topics have no order among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from irregulars.messages.announcements import Heartbeat
from irregulars.messages.records import Batch, decode_batch, encode_batch

MAX_HELD_BATCHES: Final = 1000
"""Batches held for a rank that was not announced yet; `HeldMessages.take_surplus` hands back what is above."""


class HeldBatch(NamedTuple):
    """A batch as it came: its schema, its offset and its message."""

    schema: str
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class HeldState:
    """What `HeldMessages` keep."""

    batches: tuple[HeldBatch, ...]
    heartbeats: tuple[Heartbeat, ...]


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

    @property
    def has_batches(self) -> bool:
        """Whether any are held."""
        return bool(self._batches)

    def has_operators(self, attempt: int, start: str | None) -> bool:
        """Whether operators of this start, or of a later attempt, are held."""
        held = (batch.header for batch, _ in self._batches if batch.header.schema == "commops")
        return any(one.attempt > attempt or (one.attempt == attempt and one.start in (None, start)) for one in held)

    def drop_before(self, schema: str, attempt: int, since_ns: int | None) -> int:
        """Drop batches of a schema that are of no later attempt or place, as rows came that were sent after them.

        Returns
        -------
        How many operators were in them.
        """
        gone = [
            batch
            for batch, _ in self._batches
            if (own := batch.header).schema == schema
            and own.attempt <= attempt
            and (own.since_ns or 0) <= (since_ns or 0)
        ]
        if gone:
            self._batches = [held for held in self._batches if not any(held[0] is one for one in gone)]
        return sum(map(len, gone)) if schema == "commops" else 0

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

    def state(self) -> HeldState:
        """Everything that `from_state` needs."""
        batches = tuple(
            HeldBatch(batch.header.schema, offset, encode_batch(batch)) for batch, offset in self._batches
        )
        return HeldState(batches, tuple(self._beats))

    @classmethod
    def from_state(cls, state: HeldState) -> HeldMessages:
        """Restore."""
        held = cls()
        held._batches = [(decode_batch(one.value, one.schema), one.offset) for one in state.batches]
        held._beats = list(state.heartbeats)
        return held
