"""The past of a rank's operators: which operators are the same thing, the last values of each, and their statistics.

A training loop calls the same operators in the same order in each iteration. The 5th all_reduce of a tensor parallel
group waits for something else than the 6th does, and so has another usual length: a slot (class and place) is far
more alike from iteration to iteration than a class as a whole.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import medians
from irregulars.detectors.arrays.runs import run_lengths, run_numbers, run_starts
from irregulars.detectors.plugins.baseline import Codes, mix_codes, pack_classes
from irregulars.detectors.plugins.protocol import Frame
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.records import UNKNOWN

_MOST_PLACES: Final = 1 << 20  # further places share one: a sequence that jumps makes no sense as a place


class Slots(NamedTuple):
    """Codes of the rows of a frame: ``slot`` (class and place) and ``class_``, both uint64."""

    slot: Codes
    class_: Codes


class Places:
    """Numbers the operators of each series (communicator, operator, peer) within the iteration, from 0.

    The place is the distance to the first of the series in the frame. If the frame lacks the first rows, all others
    would seem to have moved: where its last row is the one that the series' length leads to expect, the first is
    taken to be the expected one too.

    `most_series`: bound of the state; the series that were not seen for longest go first.
    """

    def __init__(self, *, most_series: int = 1024) -> None:
        self.most_series = most_series
        self._series = np.zeros(0, dtype=np.uint64)  # sorted; the arrays below run beside it
        self._first = np.zeros(0, dtype=np.int64)
        self._length = np.zeros(0, dtype=np.int64)
        self._iteration = np.zeros(0, dtype=np.int64)

    def number(self, frame: Frame) -> Ints:
        """Return the place of each row, int64; -1 where its sequence is not known."""
        series, row = np.unique(_pack_series(frame), return_inverse=True)
        firsts, _ = self._range(frame, series, row)
        places = np.clip(frame["sequence"] - firsts[row], 0, _MOST_PLACES)
        return np.where(frame["sequence"] == UNKNOWN, -1, places)

    def learn(self, frame: Frame) -> None:
        """Remember where each series of the frame began and how long it was."""
        is_known = frame["sequence"] != UNKNOWN
        if not is_known.any():
            return
        known = {
            name: frame[name][is_known] for name in ("communicator", "operator", "peer", "sequence", "iteration")
        }
        series, row = np.unique(_pack_series(known), return_inverse=True)
        firsts, pasts = self._range(known, series, row)
        new = series[~np.isin(series, self._series)]
        at = np.searchsorted(self._series, new)
        self._series = np.insert(self._series, at, new)
        for name in ("_first", "_length", "_iteration"):
            setattr(self, name, np.insert(getattr(self, name), at, 0))
        at = np.searchsorted(self._series, series)
        self._first[at], self._length[at] = firsts, pasts - firsts
        self._iteration[at] = known["iteration"][0]
        if len(self._series) > self.most_series:
            kept = np.sort(np.argsort(-self._iteration, kind="stable")[: self.most_series])
            for name in ("_series", "_first", "_length", "_iteration"):
                setattr(self, name, getattr(self, name)[kept])

    def _range(self, frame: Frame, series: Codes, row: Ints) -> tuple[Ints, Ints]:
        """First sequence of each series, present or lost, and the one past its last."""
        sequence = frame["sequence"]
        is_known = sequence != UNKNOWN
        firsts = np.full(len(series), np.iinfo(np.int64).max)
        pasts = np.zeros(len(series), dtype=np.int64)
        np.minimum.at(firsts, row[is_known], sequence[is_known])
        np.maximum.at(pasts, row[is_known], sequence[is_known] + 1)
        if not len(self._series) or not len(series):
            return firsts, pasts
        at = np.minimum(np.searchsorted(self._series, series), len(self._series) - 1)
        expected = self._first[at] + (frame["iteration"][0] - self._iteration[at]) * self._length[at]
        is_cut = (self._series[at] == series) & (expected < firsts) & (expected + self._length[at] == pasts)
        return np.where(is_cut, expected, firsts), pasts


def pack_slots(frame: Frame, places: Ints) -> Slots:
    """Code the slot and the class of each row; two share a code with a chance of 1 in 2^64."""
    classes = pack_classes(frame)
    return Slots(mix_codes(classes + places.astype(np.int64).view(np.uint64)), classes)


def _pack_series(frame: Frame) -> Codes:
    mixed = mix_codes(frame["operator"].astype(np.uint64))
    mixed = mix_codes(mixed + frame["communicator"].astype(np.int64).view(np.uint64))
    return mix_codes(mixed + frame["peer"].astype(np.int64).view(np.uint64))


class Statistics(NamedTuple):
    """Usual values, one per slot or class: Holmes's families on the logarithm of elapsed."""

    median: Floats
    low_quartile: Floats
    high_quartile: Floats
    mean: Floats
    deviation: Floats

    def take(self, rows: Ints) -> Statistics:
        """Pick rows by index."""
        return Statistics(*(column[rows] for column in self))


class Usual(NamedTuple):
    """The usual values when they were last computed; codes are sorted, statistics run beside them."""

    slots: Codes
    of_slot: Statistics
    gap_ns: Floats
    classes: Codes
    of_class: Statistics


class OperatorPast:
    """Keeps the last `window` values of each slot in a ring, float32.

    That is 8 bytes per value of elapsed and gap: 64 operators an iteration keep 16 KiB, 1,000 keep 256 KiB.

    `window`: iterations that count as the past. `warm_up`: values that a slot must have before it, and its class, are
    known. `most_slots`: bound of the state; the slots that were not seen for longest go first.
    """

    def __init__(self, *, window: int, warm_up: int, most_slots: int) -> None:
        self.window = window
        self.warm_up = warm_up
        self.most_slots = most_slots
        self._frames = 0
        self._slots = np.zeros(0, dtype=np.uint64)  # sorted; the arrays below run beside it
        self._class = np.zeros(0, dtype=np.uint64)
        self._taught = np.zeros(0, dtype=np.int64)
        self._seen = np.zeros(0, dtype=np.int64)
        self._values = np.zeros((0, window), dtype=np.float32)
        self._gaps_ns = np.zeros((0, window), dtype=np.float32)

    def learn(self, slots: Slots, values: Floats, gaps_ns: Floats) -> bool:
        """Add one value to the ring of each slot; of a slot that occurs twice the last row counts.

        Returns whether a slot has become known with it.
        """
        self._frames += 1
        # `unique` returns the first row of a slot: backwards that is the last one.
        codes, backward = np.unique(slots.slot[::-1], return_index=True)
        rows = len(values) - 1 - backward
        self._admit(codes, slots.class_[rows])
        at = np.searchsorted(self._slots, codes)
        place = self._taught[at] % self.window
        self._values[at, place], self._gaps_ns[at, place] = values[rows], gaps_ns[rows]
        self._taught[at] += 1
        self._seen[at] = self._frames
        has_new = bool((self._taught[at] == self.warm_up).any())
        self._forget()
        return has_new

    def usual(self) -> Usual:
        """Compute the usual values of all rings: one sort of everything, about 3 ms for 1,000 slots."""
        known = np.flatnonzero(self._taught >= self.warm_up)
        values, gaps_ns = self._values[known].astype(np.float64), self._gaps_ns[known]
        is_known = ~np.isnan(values)
        owner, own = np.repeat(self._class[known], self.window)[is_known.ravel()], values[is_known]
        order = np.lexsort((own, owner))
        classes, firsts, counts = np.unique(owner[order], return_index=True, return_counts=True)
        of_class = _statistics(own[order], firsts, counts)
        return Usual(self._slots[known], _by_row(values), _row_medians(gaps_ns), classes, of_class)

    def _admit(self, slots: Codes, classes: Codes) -> None:
        is_new = ~np.isin(slots, self._slots)
        if not is_new.any():
            return
        at = np.searchsorted(self._slots, slots[is_new])
        self._slots = np.insert(self._slots, at, slots[is_new])
        self._class = np.insert(self._class, at, classes[is_new])
        self._taught = np.insert(self._taught, at, 0)
        self._seen = np.insert(self._seen, at, self._frames)
        self._values = np.insert(self._values, at, np.nan, axis=0)
        self._gaps_ns = np.insert(self._gaps_ns, at, np.nan, axis=0)

    def _forget(self) -> None:
        if len(self._slots) <= self.most_slots:
            return
        kept = np.sort(np.argsort(-self._seen, kind="stable")[: self.most_slots])
        for name in ("_slots", "_class", "_taught", "_seen", "_values", "_gaps_ns"):
            setattr(self, name, getattr(self, name)[kept])


def _by_row(values: Floats) -> Statistics:
    """Statistics of each row of a matrix, NaN left out."""
    values = np.sort(values, axis=1)  # NaN to the end
    counts = (~np.isnan(values)).sum(axis=1)
    firsts = np.arange(len(values)) * values.shape[1]
    return _statistics(values.ravel(), firsts, counts)


def _statistics(values: Floats, firsts: Ints, counts: Ints) -> Statistics:
    """Statistics of runs of sorted values, each with one value or more; between the runs NaN may lie."""
    if not len(firsts):
        return Statistics(*np.zeros((5, 0)))
    low, median, high = (_quantile(values, firsts, counts, share) for share in (0.25, 0.5, 0.75))
    is_known = ~np.isnan(values)
    # About the median: the square of a difference of large numbers loses nothing.
    run = np.repeat(np.arange(len(firsts)), run_lengths(firsts, len(values)))
    distance = np.where(is_known, values - median[run], 0.0)
    shift = np.bincount(run, distance, minlength=len(firsts)) / counts
    square = np.bincount(run, distance**2, minlength=len(firsts)) / counts
    return Statistics(median, low, high, median + shift, np.sqrt(np.maximum(square - shift**2, 0.0)))


def _quantile(values: Floats, firsts: Ints, counts: Ints, share: float) -> Floats:
    place = (counts - 1) * share
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, counts - 1)
    return np.asarray(values[firsts + below] + (place - below) * (values[firsts + above] - values[firsts + below]))


def _row_medians(values: Column) -> Floats:
    """Median of each row, NaN left out; NaN where all are."""
    row, column = np.nonzero(~np.isnan(values))  # row by row
    found = np.full(len(values), np.nan)
    found[row[run_starts(row)]] = medians(run_numbers(row), values[row, column].astype(np.float64))
    return found
