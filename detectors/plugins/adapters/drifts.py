"""Drift detectors of River, as detectors: which series have gone to another level."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import medians
from irregulars.detectors.plugins.adapters.series import AdapterOptions, SeriesPast
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Floats

_MOST_ASKED: Final = 64  # rows of a frame for which a drift detector is copied and fed: up to 0.7 ms each
_MOST_SERIES: Final = 2048  # with a drift detector of their own: each takes 10 to 100 µs of an iteration
_FORGET_AFTER: Final = 50  # frames after which a series that was not seen is forgotten
# Inputs that a detector has seen when a fresh one takes over, which is fed the newest half of them
_REACH: Final = 128
_BINARY_SIGMAS: Final = 3.0  # deviation that is an error to detectors of errors (DDM and its like)


@dataclass(slots=True)
class _Watch:
    detector: Any
    middle: float  # of the series when it became warm, and its spread: inputs keep their scale
    spread: float
    inputs: Floats  # the newest ones, round and round
    fed: int = 0
    seen: int = 0
    told: int = -(10**9)  # frame in which a drift upwards was last reported


class DriftAdapter:
    """Scores a row that lies above its past by whether the detector would report a drift if it stayed so.

    A drift detector takes one value after the other and judges no single one, and irregular iterations are not taught
    to detectors of ranks. So a row is scored on a copy of its series' detector, which is fed the row's value up to
    ``hold`` times: 1 where a drift is reported by then, more where sooner, 0 where it is not. Beside that a series
    scores 1 for ``hold`` frames after its own detector reported a drift upwards while it learned: so slow drifts are
    found that no row shows. Of more than `_MOST_SERIES` series the first that came have a detector; the others have
    no scores (NaN) until one of those is gone.

    `name`: of the drift detector, under which scores are stored. `make_detector`: makes a drift detector of River;
    pickles. `is_binary`: it takes errors (0 or 1), not numbers: a row is an error from 3 spreads on. `options`: see
    `AdapterOptions`; only the first column is watched.
    """

    against: Against = "past"
    strange_from = 1.0

    def __init__(
        self, name: str, make_detector: Callable[[], Any], options: AdapterOptions, *, is_binary: bool
    ) -> None:
        self.name = name
        self.level: Level = options.level
        self.reads = options.reads
        self._make, self._options, self._is_binary = make_detector, options, is_binary
        self._past = SeriesPast(1, warm_up=options.warm_up)
        self._watches: dict[int, _Watch] = {}
        self._frames = 0

    def score(self, frame: Frame) -> Scores:
        """Score each row; 1: strange begins here."""
        keys, values = self._options.keys(frame), self._options.values(frame)[:, :1]
        sigmas = self._past.deviations(keys, values)[:, 0]
        watches = [self._watches.get(key) for key in keys.tolist()]
        scores = np.array(
            [
                np.nan if one is None else (1.0 if self._frames - one.told < self._options.hold else 0.0)
                for one in watches
            ],
            dtype=np.float64,
        )
        scores[np.isnan(sigmas)] = np.nan
        asked = np.flatnonzero(sigmas >= self._options.least_sigmas)
        for row in asked[np.argsort(-sigmas[asked], kind="stable")][:_MOST_ASKED].tolist():
            watch = watches[row]
            if watch is not None:
                asked_score = self._ask(watch, values[row, 0])
                # Many take equally long to show a drift: a row further away scores a little more, 0.1 at most.
                tie = 0.1 * sigmas[row] / (sigmas[row] + 10.0)
                scores[row] = max(scores[row], asked_score + tie if asked_score else 0.0)
        return scores

    def learn(self, frame: Frame) -> None:
        """Feed each series' detector the median of the series' rows."""
        self._frames += 1
        keys, values = self._options.keys(frame), self._options.values(frame)[:, :1]
        self._past.learn(keys, values)
        is_known = np.isfinite(values[:, 0])
        series, group = np.unique(keys[is_known], return_inverse=True)
        middles = medians(group, values[is_known, 0]) if len(series) else np.zeros(0)
        is_warm = np.isfinite(self._past.deviations(series, middles[:, None])[:, 0])
        for key, value in zip(series[is_warm].tolist(), middles[is_warm].tolist(), strict=True):
            watch = self._watches.get(key)
            if watch is None:
                # A new series waits for room: if it took another's, each would have lost its own before it knew much.
                if len(self._watches) >= _MOST_SERIES:
                    continue
                watch = self._watches[key] = _Watch(self._make(), *self._past.usual(key), np.zeros(_REACH // 2))
            fed, half = self._input(watch, value), len(watch.inputs)
            watch.inputs[watch.fed % half] = fed
            watch.fed += 1
            watch.seen = self._frames
            watch.detector.update(fed)
            if watch.detector.drift_detected:
                # Detectors report drifts in both directions, and a rank that works less is not strange.
                size = len(watch.inputs)
                newest = [watch.inputs[(watch.fed - 1 - back) % size] for back in range(min(watch.fed, 5))]
                if np.median(newest) > np.median(watch.inputs[: min(watch.fed, size)]):
                    watch.told = self._frames
            if watch.fed % half == 0 and watch.fed >= _REACH:
                # Bound the state: some detectors remember the more the longer they live.
                watch.detector = self._make()
                for one in watch.inputs.tolist():  # the oldest is first: their number is a multiple of all that fit
                    watch.detector.update(one)
        oldest = self._frames - _FORGET_AFTER
        self._watches = {key: one for key, one in self._watches.items() if one.seen >= oldest}

    def explain(self, frame: Frame, row: int) -> str:
        """Explain in one line why a row is strange."""
        keys, values = self._options.keys(frame), self._options.values(frame)[:, :1]
        return self._options.explain(frame, row, self._past.deviations(keys, values)[row])

    def _input(self, watch: _Watch, value: float) -> float:
        sigmas = (value - watch.middle) / watch.spread
        return float(sigmas >= _BINARY_SIGMAS) if self._is_binary else float(sigmas)

    def _ask(self, watch: _Watch, value: float) -> float:
        # A copy, since `score` changes nothing.
        asked, fed = copy.deepcopy(watch.detector), self._input(watch, value)
        for number in range(1, self._options.hold + 1):
            asked.update(fed)
            if asked.drift_detected:
                return 1.0 + 0.5 * (self._options.hold - number) / self._options.hold
        return 0.0
