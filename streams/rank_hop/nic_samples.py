"""Bandwidth samples of one rank's NIC, until the iterations that they fall into close."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.streams.messages.records import PATHS, UNKNOWN, Batch

Array = np.ndarray

MOST_SAMPLES: Final = 100_000
"""Samples kept for iterations that have not closed; the oldest ones go."""

_NIC: Final = PATHS.index("nic")


class Samples(NamedTuple):
    """Rates over intervals: when each began and ended, ns, and bytes per second sent and received in it."""

    begin_ns: Array
    end_ns: Array
    tx: Array
    rx: Array

    @property
    def middle_ns(self) -> Array:
        """Middle of each interval: a sample belongs to the iteration in which it lies."""
        return self.begin_ns + (self.end_ns - self.begin_ns) // 2

    def peaks(self, start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
        """Return the highest rates, sent and received, of each iteration; NaN where no sample falls into it.

        Parameters
        ----------
        start_ns, end_ns
            Of the iterations, ascending.
        """
        found = np.full((2, len(start_ns)), np.nan)
        middle_ns = self.middle_ns
        at = np.searchsorted(start_ns, middle_ns, side="right") - 1
        is_inside = (at >= 0) & (middle_ns < end_ns[np.maximum(at, 0)])
        for peak, rate in zip(found, (self.tx, self.rx), strict=True):
            np.fmax.at(peak, at[is_inside], rate[is_inside])
        return found[0], found[1]


class NicSamples:
    """Gathers samples; a sample is the mean rate since the device's sample before.

    Parameters
    ----------
    device
        The rank's NIC; None, if nobody said, takes those of any.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._waiting = Samples(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
        self._newest_ns: dict[str, int] = {}  # of each device, end of its last interval

    def add(self, batch: Batch) -> None:
        """Take in a batch of ``bandwidth``; a device's first sample has an unknown beginning and is left out."""
        columns = batch.columns
        for code, name in enumerate(batch.header.names):
            if self._device in (None, name):
                self._add(name, columns, np.flatnonzero((columns["device"] == code) & (columns["path"] == _NIC)))

    def _add(self, name: str, columns: Mapping[str, Array], rows: Array) -> None:
        if not len(rows):
            return
        time_ns = columns["time_ns"][rows]
        before_ns = np.concatenate([[self._newest_ns.get(name, UNKNOWN)], time_ns[:-1]])
        self._newest_ns[name] = int(time_ns.max())
        is_known = (before_ns != UNKNOWN) & (before_ns < time_ns)
        rates = [columns[rate][rows][is_known].astype(np.float64) for rate in ("tx_bytes_per_s", "rx_bytes_per_s")]
        own = (before_ns[is_known], time_ns[is_known], *rates)
        joined = [np.concatenate(pair) for pair in zip(self._waiting, own, strict=True)]
        self._waiting = Samples(*(column[-MOST_SAMPLES:] for column in joined))

    def take(self, until_ns: int) -> Samples:
        """Take out the samples whose middle lies before a time."""
        is_due = self._waiting.middle_ns < until_ns
        due = Samples(*(column[is_due] for column in self._waiting))
        self._waiting = Samples(*(column[~is_due] for column in self._waiting))
        return due

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays."""
        return {"device": self._device, "waiting": list(self._waiting), "newest_ns": dict(self._newest_ns)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NicSamples:
        """Restore."""
        samples = cls(state["device"])
        samples._waiting = Samples(*state["waiting"])
        samples._newest_ns = dict(state["newest_ns"])
        return samples
