"""The usual of many series at once: a short window of each, and how far a value lies from it."""

from __future__ import annotations

from typing import Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA
from irregulars.dtypes import Floats, Ints
from irregulars.errors import PluginError

MOST_SERIES: Final = 4096
"""Series whose past is kept; those that were not seen for longest go first. A rank or a class of operators is one."""

_FORGET_AFTER: Final = 100  # frames after which a series that was not seen is forgotten


class SeriesPast:
    """Median and spread of the newest values of each series.

    A model of River or scikit-learn is not fed with nanoseconds, since most need inputs of one scale: ranks of
    different stages would be strange to one another, and `HalfSpaceTrees` needs values from 0 to 1. It is fed with
    deviations from the series' own past, in spreads.

    Parameters
    ----------
    columns
        Values of one row.
    warm_up
        Values that a series must have taught before anything is said about it.
    kept
        Values kept of each series.
    floor
        Least spread, in the values' own unit.
    """

    def __init__(self, columns: int, *, warm_up: int = 10, kept: int = 64, floor: float = 0.02) -> None:
        if not 2 <= warm_up <= kept:
            raise PluginError(f"warm_up must be 2 to {kept}, the values kept of a series; got {warm_up!r}")
        self.warm_up, self.kept, self.floor = warm_up, kept, floor
        self._frames = 0
        self._keys: Ints = np.zeros(0, dtype=np.int64)  # ascending; the arrays below run beside it
        self._values: Floats = np.zeros((0, kept, columns))
        self._taught: Ints = np.zeros(0, dtype=np.int64)
        self._seen: Ints = np.zeros(0, dtype=np.int64)
        self._median: Floats = np.zeros((0, columns))
        self._spread: Floats = np.zeros((0, columns))

    def usual(self, key: int) -> tuple[float, float]:
        """Return median and spread of the first column of a series that is there."""
        at = int(np.searchsorted(self._keys, key))
        return float(self._median[at, 0]), float(self._spread[at, 0])

    def deviations(self, keys: Ints, values: Floats) -> Floats:
        """Return how far rows lie from their series' median, in spreads; NaN where one is cold or a value unknown."""
        if not len(self._keys) or not len(keys):
            return np.full(values.shape, np.nan)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_warm = (self._keys[at] == keys) & (self._taught[at] >= self.warm_up)
        return np.where(is_warm[:, None], (values - self._median[at]) / self._spread[at], np.nan)

    def learn(self, keys: Ints, values: Floats) -> None:
        """Take one row of each series that has one without unknown values; of several rows ever another one."""
        self._frames += 1
        rows = self._picked(keys, np.flatnonzero(np.isfinite(values).all(axis=1)))
        if not len(rows):
            return
        self._admit(keys[rows])
        at = np.searchsorted(self._keys, keys[rows])
        self._values[at, self._taught[at] % self.kept] = values[rows]
        self._taught[at] += 1
        self._seen[at] = self._frames
        self._measure(at)
        self._forget()

    def _picked(self, keys: Ints, rows: Ints) -> Ints:
        """Return one row of each series: its n-th in the n-th frame, round and round."""
        order = rows[np.argsort(keys[rows], kind="stable")]
        _, first, count = np.unique(keys[order], return_index=True, return_counts=True)
        return np.asarray(order[first + self._frames % count]) if len(order) else order

    def _admit(self, keys: Ints) -> None:
        new = keys[~np.isin(keys, self._keys)]
        if not len(new):
            return
        at = np.searchsorted(self._keys, new)
        self._keys = np.insert(self._keys, at, new)
        for name, start in (
            ("_values", np.nan),
            ("_median", np.nan),
            ("_spread", np.nan),
            ("_taught", 0),
            ("_seen", 0),
        ):
            setattr(self, name, np.insert(getattr(self, name), at, start, axis=0))

    def _measure(self, at: Ints) -> None:
        values, counts = self._values[at], np.minimum(self._taught[at], self.kept)
        middles = _medians_of_known(values, counts)
        distances = np.abs(values - middles[:, None, :])
        self._median[at] = middles
        self._spread[at] = np.maximum(MAD_TO_SIGMA * _medians_of_known(distances, counts), self.floor)

    def _forget(self) -> None:
        newest = np.argsort(-self._seen, kind="stable")[:MOST_SERIES]
        kept = np.sort(newest[self._seen[newest] >= self._frames - _FORGET_AFTER])
        if len(kept) < len(self._keys):
            for name in ("_keys", "_values", "_taught", "_seen", "_median", "_spread"):
                setattr(self, name, getattr(self, name)[kept])


def _medians_of_known(values: Floats, counts: Ints) -> Floats:
    """Return medians along the second axis, of which each row knows some and the others are NaN.

    `numpy.nanmedian` says the same in ten times the time: sorting puts NaN last.
    """
    ordered, rows = np.sort(values, axis=1), np.arange(len(values))
    return np.asarray((ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2)
