"""Bandwidth samples of one rank's NIC, until the iterations that they fall into close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.streams.messages.records import PATHS, UNKNOWN, Batch

MOST_SAMPLES: Final = 100_000
"""Samples kept for iterations that have not closed; if there are more, the oldest ones are dropped."""

_NIC: Final = PATHS.index("nic")


class Samples(NamedTuple):
    """Rates over intervals: when each began and ended, ns, and bytes per second sent and received in it."""

    begin_ns: Ints
    end_ns: Ints
    tx: Floats
    rx: Floats

    @property
    def middle_ns(self) -> Ints:
        """Middle of each interval; a sample belongs to the iteration in which its middle lies."""
        return self.begin_ns + (self.end_ns - self.begin_ns) // 2

    def where(self, is_wanted: Flags) -> Samples:
        """Return some of the samples."""
        own = self.begin_ns[is_wanted], self.end_ns[is_wanted], self.tx[is_wanted], self.rx[is_wanted]
        return Samples(*own)

    def peaks(self, start_ns: Ints, end_ns: Ints) -> tuple[Floats, Floats]:
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


@dataclass(frozen=True, slots=True)
class NicSamplesState:
    """What `NicSamples` keeps: the rank's NIC, samples of open iterations, and the newest time of each device."""

    device: str | None
    waiting: Samples
    newest_ns: Mapping[str, int]


class NicSamples:
    """Gathers the samples of a rank's NIC; each is the mean rate since the device's sample before it.

    Parameters
    ----------
    device
        The rank's NIC. None: the rank did not announce it, and samples of any NIC are taken.
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

    def _add(self, name: str, columns: Mapping[str, Column], rows: Ints) -> None:
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
        due, self._waiting = self._waiting.where(is_due), self._waiting.where(~is_due)
        return due

    def state(self) -> NicSamplesState:
        """Everything that `from_state` needs."""
        return NicSamplesState(self._device, self._waiting, dict(self._newest_ns))

    @classmethod
    def from_state(cls, state: NicSamplesState) -> NicSamples:
        """Restore."""
        samples = cls(state.device)
        samples._waiting = state.waiting
        samples._newest_ns = dict(state.newest_ns)
        return samples
