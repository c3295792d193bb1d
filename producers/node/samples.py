"""Samples of one device, on their way from a feed to the batches of its rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from irregulars.producers.node.roster import Owner


@dataclass(frozen=True, slots=True)
class Samples:
    """Mean rates of one device, each over the interval since the sample before.

    Parameters
    ----------
    owner
        The rank that the samples are of.
    device, path
        Name of the device; index into `messages.records.PATHS`.
    times_ns
        int64, shape (n,), growing: ends of the intervals.
    rates
        float64, shape (n, 2): bytes/s sent and received; NaN: not known.
    """

    owner: Owner
    device: str
    path: int
    times_ns: np.ndarray
    rates: np.ndarray


@dataclass(frozen=True, slots=True)
class HealthSample:
    """State of one GPU at `time_ns`; ``values`` are columns of ``gpu_health`` by name, those not known are absent."""

    owner: Owner
    device: str
    time_ns: int
    values: dict[str, float]


class Feed(Protocol):
    """Where `DeviceSource` gets samples from; no base class is needed. Is asked from one thread."""

    def take(self) -> list[Samples]:
        """Take the samples since the last call; those of one device are later than all before. Never blocks."""

    def close(self) -> None:
        """Stop sampling; called once at least, and a second time does nothing."""
