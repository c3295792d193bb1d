"""Which operators of an iteration are the same thing: classes, and their places in the iteration.

A training loop calls the same operators in the same order in each iteration. The 5th all_reduce of a tensor parallel
group waits for something else than the 6th does, and so has another usual length: a slot (class and place) is far
more alike from iteration to iteration than a class as a whole.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.plugins.baseline import Codes, mix_codes, pack_classes
from irregulars.detectors.plugins.protocol import Frame
from irregulars.dtypes import Ints
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

    Parameters
    ----------
    most_series
        Bound of the state; the series that were not seen for longest go first.
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
        self._admit(series)
        at = np.searchsorted(self._series, series)
        self._first[at], self._length[at] = firsts, pasts - firsts
        self._iteration[at] = known["iteration"][0]
        self._forget()

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

    def _admit(self, series: Codes) -> None:
        new = series[~np.isin(series, self._series)]
        at = np.searchsorted(self._series, new)
        self._series = np.insert(self._series, at, new)
        for name in ("_first", "_length", "_iteration"):
            setattr(self, name, np.insert(getattr(self, name), at, 0))

    def _forget(self) -> None:
        if len(self._series) <= self.most_series:
            return
        kept = np.sort(np.argsort(-self._iteration, kind="stable")[: self.most_series])
        for name in ("_series", "_first", "_length", "_iteration"):
            setattr(self, name, getattr(self, name)[kept])


def pack_slots(frame: Frame, places: Ints) -> Slots:
    """Code the slot and the class of each row; two share a code with a chance of 1 in 2^64."""
    classes = pack_classes(frame)
    return Slots(mix_codes(classes + places.astype(np.int64).view(np.uint64)), classes)


def _pack_series(frame: Frame) -> Codes:
    mixed = mix_codes(frame["operator"].astype(np.uint64))
    mixed = mix_codes(mixed + frame["communicator"].astype(np.int64).view(np.uint64))
    return mix_codes(mixed + frame["peer"].astype(np.int64).view(np.uint64))
