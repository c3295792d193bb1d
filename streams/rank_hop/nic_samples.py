"""Bandwidth samples of one rank's NIC, until the iterations that they fall into close."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.runs import is_ascending, places_in_runs, starts_of
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.messages.bounds import usable_rows
from irregulars.messages.records import PATHS, UNKNOWN, Batch
from irregulars.streams.rank_hop.message_rows import MessageRows, Part

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

    @property
    def rows(self) -> int:
        """How many these are."""
        return len(self.tx)

    def where(self, is_wanted: Flags) -> Samples:
        """Return some of the samples."""
        own = self.begin_ns[is_wanted], self.end_ns[is_wanted], self.tx[is_wanted], self.rx[is_wanted]
        return Samples(*own)

    def until(self, until_ns: int) -> tuple[Samples, Samples]:
        """Return the samples whose middle lies before a time, and the others."""
        is_due = self.middle_ns < until_ns
        return self.where(is_due), self.where(~is_due)


class SampleCut(NamedTuple):
    """Neighbouring samples of one device in a message, at least one, each newer than the one before it."""

    source: MessageRows
    first: int
    past: int
    before_ns: int  # when the device's sample before the first of them was taken

    @property
    def rows(self) -> int:
        """How many these are."""
        return self.past - self.first

    def until(self, until_ns: int) -> tuple[SampleCut | None, SampleCut | None]:
        """Return the samples whose middle lies before a time, and the others; None where these are none."""
        source, first, past, before_ns = self
        times_ns = source.times_ns
        if before_ns + (times_ns[first] - before_ns) // 2 >= until_ns:
            return None, self
        row = bisect_left(source.middles_ns, until_ns, first + 1, past)
        if row == past:
            return self, None
        return SampleCut(source, first, row, before_ns), SampleCut(source, row, past, times_ns[row - 1])


Piece = Samples | SampleCut


def joined_samples(pieces: Sequence[Piece]) -> Samples:
    """Join samples that came in pieces."""
    if not pieces:
        return Samples(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
    cuts = [piece for piece in pieces if isinstance(piece, SampleCut)]
    if len(cuts) == len(pieces):
        # The rows of all cuts are taken from their messages at once: numpy's cost is per call, and cuts are short.
        if len(cuts) == 1:
            return _intervals_of(cuts[0])
        sources = list({id(cut.source): cut.source for cut in cuts}.values())
        lengths = np.array([len(source.columns["time_ns"]) for source in sources])
        base = {id(source): first for source, first in zip(sources, starts_of(lengths).tolist(), strict=True)}
        counts = np.array([past - first for _, first, past, _ in cuts])
        rows = np.repeat([base[id(source)] + first for source, first, _, _ in cuts], counts) + places_in_runs(counts)
        end_ns, tx, rx = (np.concatenate([source.columns[name] for source in sources])[rows] for name in _READ)
        return Samples(_begins(end_ns, starts_of(counts), [cut.before_ns for cut in cuts]), end_ns, tx, rx)
    own = [_intervals_of(piece) if isinstance(piece, SampleCut) else piece for piece in pieces]
    return Samples(*(np.concatenate(columns) for columns in zip(*own, strict=True)))


def _intervals_of(cut: SampleCut) -> Samples:
    end_ns, tx, rx = (cut.source.columns[name][cut.first : cut.past] for name in _READ)
    return Samples(_begins(end_ns, 0, cut.before_ns), end_ns, tx, rx)


def _begins(end_ns: Ints, firsts: Ints | int, before_ns: Sequence[int] | int) -> Ints:
    """Return when intervals begin: as the one before ends, or at `before_ns` where a cut begins."""
    begin_ns = np.empty_like(end_ns)
    begin_ns[1:] = end_ns[:-1]
    begin_ns[firsts] = before_ns
    return begin_ns


class _Read(NamedTuple):
    """Samples of one device as they came, at least one."""

    name: str
    time_ns: Ints
    tx: Floats
    rx: Floats


@dataclass(frozen=True, slots=True)
class NicSamplesState:
    """State of `NicSamples`: the rank's NIC, samples of open iterations, and the newest time of each device."""

    device: str | None
    waiting: Samples
    newest_ns: Mapping[str, int]


class NicSamples:
    """Gathers the samples of a rank's NIC; each is the mean rate since the device's sample before it.

    `device`: the rank's NIC. None: the rank did not announce it, and samples of any NIC are taken.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._waiting = joined_samples([])
        self._newest_ns: dict[str, int] = {}  # of each device, end of its last interval
        self._read: list[_Read] = []  # not yet intervals: samples of one iteration are turned into them at once
        self._cuts: list[SampleCut] = []  # came after all that was read
        self._rows = 0  # of both

    def add(self, part: Part) -> int:
        """Take in a rank's rows of ``bandwidth``; return how many of them no honest producer sends.

        A device's first sample has an unknown beginning and is left out.
        """
        device = part.summary.device
        if device is not None and not self._read and self._add_cut(part, part.names[device]):
            return 0
        batch = part.batch()
        is_usable = None if part.summary.is_usable else usable_rows("bandwidth", batch.columns)
        if is_usable is not None:
            batch = Batch(batch.header, {name: column[is_usable] for name, column in batch.columns.items()})
        if self._cuts:
            self._look()
        for code, name in enumerate(batch.header.names):
            if self._device not in (name, None):
                continue
            is_own = (batch.columns["device"] == code) & (batch.columns["path"] == _NIC)
            if is_own.any():
                self._read.append(_Read(name, *(batch.columns[column][is_own] for column in _READ)))
                self._rows += len(self._read[-1].time_ns)
        if self._rows > MOST_SAMPLES:
            self._look()
        return part.cut.rows - len(batch)

    def _add_cut(self, part: Part, name: str) -> bool:
        """Take in samples of one device without examining each; return whether they follow those before them."""
        # Samples of another NIC: there is nothing to take, nor to examine.
        if self._device not in (name, None):
            return True
        source, first, past = part.cut
        times_ns = source.times_ns
        before_ns = self._newest_ns.get(name, UNKNOWN)
        # Not newer, or more than may be kept: these are examined row by row.
        if before_ns >= times_ns[first] or self._rows + past - first > MOST_SAMPLES:
            return False
        self._newest_ns[name] = times_ns[past - 1]
        if before_ns == UNKNOWN:
            before_ns, first = times_ns[first], first + 1
        if first < past:
            self._cuts.append(SampleCut(source, first, past, before_ns))
            self._rows += past - first
        return True

    def _look(self) -> None:
        """Make intervals of the samples that were read."""
        if not self._read and not self._cuts:
            return
        read, self._read = self._read, []
        cuts, self._cuts = self._cuts, []
        self._rows = 0
        # Neighbours of one device whose times ascend throughout are like one batch.
        if len(read) > 1 and all(one.name == read[0].name for one in read):
            time_ns, tx, rx = (np.concatenate(columns) for columns in list(zip(*read, strict=True))[1:])
            read = [_Read(read[0].name, time_ns, tx, rx)] if is_ascending(time_ns) else read
        pieces: list[Piece] = [self._waiting]
        for one in read:
            # An interval begins at the newest sample before it: one not newer came twice, or out of order.
            known_ns = np.concatenate([[self._newest_ns.get(one.name, UNKNOWN)], one.time_ns])
            newest_ns = np.maximum.accumulate(known_ns)
            self._newest_ns[one.name] = int(newest_ns[-1])
            before_ns = newest_ns[:-1]
            samples = Samples(before_ns, one.time_ns, one.tx, one.rx)
            is_known = (before_ns != UNKNOWN) & (before_ns < one.time_ns)
            pieces.append(samples if is_known.all() else samples.where(is_known))
        waiting = joined_samples([*pieces, *cuts])
        is_kept = np.arange(waiting.rows) >= waiting.rows - MOST_SAMPLES
        self._waiting = waiting if is_kept.all() else waiting.where(is_kept)

    def take(self, until_ns: int) -> list[Piece]:
        """Take out the samples whose middle lies before a time."""
        if self._read:
            self._look()
        due: list[Piece] = []
        if self._waiting.rows:
            own, self._waiting = self._waiting.until(until_ns)
            due.append(own)
        cuts, self._cuts, self._rows = self._cuts, [], 0
        for cut in cuts:
            own_cut, left = cut.until(until_ns)
            if own_cut is not None:
                due.append(own_cut)
            if left is not None:
                self._cuts.append(left)
                self._rows += left.rows
        return due

    def state(self) -> NicSamplesState:
        """Everything that `from_state` needs."""
        if self._read:
            self._look()
        return NicSamplesState(self._device, joined_samples([self._waiting, *self._cuts]), dict(self._newest_ns))

    @classmethod
    def from_state(cls, state: NicSamplesState) -> NicSamples:
        """Restore."""
        samples = cls(state.device)
        samples._waiting = state.waiting
        samples._newest_ns = dict(state.newest_ns)
        return samples
