"""The series of a frame: how its rows become inputs of a model, and how far they lie from their own past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA
from irregulars.detectors.plugins.baseline import pack_classes
from irregulars.detectors.plugins.checks import require
from irregulars.detectors.plugins.protocol import COLUMNS, Frame, Level
from irregulars.dtypes import Floats, Ints
from irregulars.errors import PluginError

MOST_SERIES: Final = 4096
"""Series whose past is kept, or as many as a frame has, if those are more; those not seen for longest go first.

A rank or a class of operators is one.
"""

_FORGET_AFTER: Final = 100  # frames after which a series that was not seen is forgotten


class SeriesPast:
    """Median and spread of the newest values of each series.

    A model of River or scikit-learn is not fed with nanoseconds, since most need inputs of one scale: ranks of
    different stages would be strange to one another, and `HalfSpaceTrees` needs values from 0 to 1. It is fed with
    deviations from the series' own past, in spreads.

    `columns`: values of one row. `warm_up`: values that a series must have taught before it has deviations.
    `kept`: values kept of each series. `floor`: least spread, in the values' own unit.
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
        rows = np.flatnonzero(np.isfinite(values).all(axis=1))
        if not len(rows):
            return
        # One row of each series: its n-th in the n-th frame, round and round
        rows = rows[np.argsort(keys[rows], kind="stable")]
        _, first, count = np.unique(keys[rows], return_index=True, return_counts=True)
        rows = rows[first + self._frames % count]
        self._admit(keys[rows])
        at = np.searchsorted(self._keys, keys[rows])
        self._values[at, self._taught[at] % self.kept] = values[rows]
        self._taught[at] += 1
        self._seen[at] = self._frames
        known, counts = self._values[at], np.minimum(self._taught[at], self.kept)
        middles = _medians_of_known(known, counts)
        distances = np.abs(known - middles[:, None, :])
        self._median[at] = middles
        self._spread[at] = np.maximum(MAD_TO_SIGMA * _medians_of_known(distances, counts), self.floor)
        # All series of this frame stay, however many: without a past none of them would ever be judged.
        newest = np.argsort(-self._seen, kind="stable")[: max(MOST_SERIES, len(rows))]
        kept = np.sort(newest[self._seen[newest] >= self._frames - _FORGET_AFTER])
        if len(kept) < len(self._keys):
            for name in ("_keys", "_values", "_taught", "_seen", "_median", "_spread"):
                setattr(self, name, getattr(self, name)[kept])

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


def _medians_of_known(values: Floats, counts: Ints) -> Floats:
    """Return medians along the second axis, of which each row knows some and the others are NaN."""
    # Sorting puts NaN last. `numpy.nanmedian` returns the same in ten times the time.
    ordered, rows = np.sort(values, axis=1), np.arange(len(values))
    return np.asarray((ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2)


_CLASS_COLUMNS = ("communicator", "operator", "peer", "size_bytes")
_DEFAULT_COLUMN = {"rank": "work_ns", "operator": "elapsed_ns"}
_INPUTS = ("", "unit", "sigmas")


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """How rows become inputs, and scores of a model scores of a detector."""

    # ``rank`` or ``operator``. A series is a rank, or a class of operators (communicator, operator, peer, size).
    level: Level = "rank"
    # Columns that a model sees, with commas between them: floats of the level. Default: ``work_ns`` of ranks,
    # ``elapsed_ns`` of operators.
    columns: str = ""
    # ``sigmas``: spreads from the series' own median of logarithms; ``unit``: the same pressed between 0 and 1.
    # Empty: the one that suits the model.
    inputs: str = ""
    shared: bool = True  # one model for all series; else each has its own
    warm_up: int = 20  # values of a series before there is an opinion on it, 2 to 64
    # A row that lies less above its own past in all columns is not strange, whatever the model says, and is not put
    # to it: its score is 0. 0: every row is. Models are uncertain about the edge of what they saw. 5: a spread from
    # 64 values is known to a sixth, and 4 true ones are one healthy row in 30,000.
    least_sigmas: float = 5.0
    window: int = 500  # bound: rows that a scikit-learn model is fitted on, and past scores that are kept of any
    refit: int = 50  # frames after which a scikit-learn model is fitted anew
    # Most rows of a frame that a model learns, ever others; 0: 16 for a shared model, else 256. River's cost 10 to
    # 100 µs a row.
    taught_rows: int = 0
    # Share of past scores that are as high as a strange one. 0.05: an opinion begins with 50 past scores, which know
    # one of twenty and not one of a hundred; `least_sigmas` keeps the rest quiet.
    strange_share: float = 0.05
    # Drift detectors: a row is strange if the detector would report a drift within as many frames like this one, and
    # for as many frames after it reported one
    hold: int = 10

    def __post_init__(self) -> None:
        for one in fields(self):
            value, kind = getattr(self, one.name), type(one.default)
            is_number = kind is float and isinstance(value, int | float) and not isinstance(value, bool)
            wanted = "a number" if kind is float else kind.__name__
            require(is_number or type(value) is kind, f"{one.name} must be {wanted}; got {value!r}")
        require(self.level in COLUMNS, f"level must be {' or '.join(COLUMNS)}; got {self.level!r}")
        require(self.inputs in _INPUTS, f"inputs must be unit or sigmas; got {self.inputs!r}")
        require(0 < self.strange_share < 1, f"strange_share must lie between 0 and 1; got {self.strange_share!r}")
        require(self.least_sigmas >= 0, f"least_sigmas must be 0 or more; got {self.least_sigmas!r}")
        for name, least in (("window", 100), ("refit", 1), ("taught_rows", 0), ("hold", 1)):
            value = getattr(self, name)
            require(value >= least, f"{name} must be {least} or more; got {value!r}")
        known = [name for name, column in COLUMNS[self.level].items() if column.dtype == "float64"]
        wrong = [name for name in self.names if name not in known]
        require(not wrong, f"columns must be of {', '.join(known)}; got {', '.join(wrong)!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a model sees."""
        return tuple(name.strip() for name in (self.columns or _DEFAULT_COLUMN[self.level]).split(","))

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns that the detector needs."""
        of_series = ("rank",) if self.level == "rank" else _CLASS_COLUMNS
        return tuple(dict.fromkeys((*of_series, *self.names)))

    @property
    def most_taught(self) -> int:
        """Most rows of a frame that models learn."""
        return self.taught_rows or (16 if self.shared else 256)

    def keys(self, frame: Frame) -> Ints:
        """Return the series of each row."""
        if self.level == "rank":
            return frame["rank"].astype(np.int64)
        return pack_classes(frame).view(np.int64)

    def values(self, frame: Frame) -> Floats:
        """Return logarithms of the columns, shape (rows, columns); NaN: unknown. Less than 1 counts as 1."""
        columns = np.stack([np.asarray(frame[name], dtype=np.float64) for name in self.names], axis=1)
        is_usable = np.isfinite(columns) & (columns >= 0)
        return np.where(is_usable, np.log(np.where(is_usable, np.maximum(columns, 1.0), 1.0)), np.nan)

    def explain(self, frame: Frame, row: int, sigmas: Floats) -> str:
        """Explain in one line why a row is strange whose columns lie `sigmas` spreads above their own past.

        Empty for a row of which nothing is known.
        """
        if np.isnan(sigmas).any():
            return ""
        column = self.names[int(np.argmax(sigmas))]
        return f"{column} {float(frame[column][row]):.4g}, {float(np.max(sigmas)):.1f} spreads above its own past"


def adapter_options(values: Mapping[str, Any]) -> AdapterOptions:
    """Check options by name.

    Raises `PluginError` if one is unknown or has an unusable value.
    """
    known = [one.name for one in fields(AdapterOptions)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise PluginError(f"adapter options must be of {', '.join(known)}; got {unknown[0]!r}")
    return AdapterOptions(**values)
