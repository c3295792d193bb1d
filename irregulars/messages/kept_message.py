"""A message of Kafka as it was read, kept in case it must be buried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class KeptMessage:
    """What the dead letters want to know of it: see `kafka.dead_letters.InputMessage`.

    Parameters
    ----------
    topic
        With its prefix.
    timestamp
        Seconds since the epoch.
    """

    topic: str
    partition: int
    offset: int
    timestamp: float
    key: bytes | None
    value: bytes | None
