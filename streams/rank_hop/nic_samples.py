"""Bandwidth samples of one rank's NIC, until the iterations that they fall into close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.runs import is_ascending
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.streams.messages.records import PATHS, UNKNOWN, Batch

MOST_SAMPLES: Final = 100_000
"""Samples kept for iterations that have not closed; if there are more, the oldest ones are dropped."""

_NIC: Final = PATHS.index("nic")
_READ: Final = ("time_ns", "tx_bytes_per_s", "rx_bytes_per_s")


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


class _Read(NamedTuple):
    """Samples of one device as they came, at least one."""

    name: str
    time_ns: Ints
    tx: Floats
    rx: Floats


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
        self._read: list[_Read] = []  # and not looked at yet: what comes within an iteration is looked at once
        self._read_rows = 0

    def add(self, batch: Batch) -> None:
        """Take in a batch of ``bandwidth``; a device's first sample has an unknown beginning and is left out."""
        columns, names = batch.columns, batch.header.names
        wanted = range(len(names)) if self._device is None else _place_of(self._device, names)
        for code in wanted:
            is_own = (columns["device"] == code) & (columns["path"] == _NIC)
            if is_own.any():
                self._read.append(_Read(names[code], *(columns[name][is_own] for name in _READ)))
                self._read_rows += len(self._read[-1].time_ns)
        if self._read_rows > MOST_SAMPLES:
            self._look()

    def _look(self) -> None:
        """Make intervals of what was read."""
        read, self._read, self._read_rows = self._read, [], 0
        found: list[Samples] = [self._waiting, *(self._intervals(one) for one in _joined(read))]
        if len(found) > 1:
            joined = [np.concatenate(columns) for columns in zip(*found, strict=True)]
            self._waiting = Samples(*(column[-MOST_SAMPLES:] for column in joined))

    def _intervals(self, read: _Read) -> Samples:
        time_ns = read.time_ns
        before_ns = np.concatenate([[self._newest_ns.get(read.name, UNKNOWN)], time_ns[:-1]])
        self._newest_ns[read.name] = int(time_ns.max())
        samples = Samples(before_ns, time_ns, read.tx, read.rx)
        is_known = (before_ns != UNKNOWN) & (before_ns < time_ns)
        return samples if is_known.all() else samples.where(is_known)

    def take(self, until_ns: int) -> Samples:
        """Take out the samples whose middle lies before a time."""
        self._look()
        is_due = self._waiting.middle_ns < until_ns
        due, self._waiting = self._waiting.where(is_due), self._waiting.where(~is_due)
        return due

    def state(self) -> NicSamplesState:
        """Everything that `from_state` needs."""
        self._look()
        return NicSamplesState(self._device, self._waiting, dict(self._newest_ns))

    @classmethod
    def from_state(cls, state: NicSamplesState) -> NicSamples:
        """Restore."""
        samples = cls(state.device)
        samples._waiting = state.waiting
        samples._newest_ns = dict(state.newest_ns)
        return samples


def _place_of(name: str, names: Sequence[str]) -> Sequence[int]:
    return [names.index(name)] if name in names else []


def _joined(read: Sequence[_Read]) -> Sequence[_Read]:
    """Join neighbours of one device whose times go on and on: then nothing tells them from one batch."""
    if len(read) < 2 or any(one.name != read[0].name for one in read):
        return read
    time_ns, tx, rx = (np.concatenate(columns) for columns in list(zip(*read, strict=True))[1:])
    return [_Read(read[0].name, time_ns, tx, rx)] if is_ascending(time_ns) else read
