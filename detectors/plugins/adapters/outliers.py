"""Outlier and anomaly detectors of the two libraries, as detectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from irregulars.detectors.plugins.adapters.models import Model
from irregulars.detectors.plugins.adapters.series import AdapterOptions, SeriesPast
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Floats, Ints

_SHARED: Final = 0
_MOST_ASKED: Final = 200  # rows of a frame that are put to models: a frame has 50 ms
_MOST_MODELS: Final = 256  # where each series has its own; series that come later get none until others are gone
_FORGET_AFTER: Final = 200  # frames after which a model that was not taught is gone
_TIE: Final = 0.1  # at most so much is added for the distance: to a model all that it never saw is alike
_UNIT_SIGMAS: Final = 3.0  # from the median, in spreads, that are half-way between 0.5 and 1 in inputs of a unit


class OutlierAdapter:
    """Puts rows that lie above their own past to a model, and scores them by the model's own past scores.

    Parameters
    ----------
    name
        Of the model, under which scores are stored.
    make_model
        Makes a model; pickles.
    options
        See `AdapterOptions`.

    Notes
    -----
    Not put to a model, and NaN, are rows with unknown values and those of cold series; of frames of which more than
    200 rows lie above their past, all but the 200 furthest.
    """

    against: Against = "past"
    strange_from = 1.0

    def __init__(self, name: str, make_model: Callable[[], Model], options: AdapterOptions) -> None:
        self.name = name
        self.level: Level = options.level
        self.reads = options.reads
        self._make_model = make_model
        self._options = options
        self._past = SeriesPast(len(options.names), warm_up=options.warm_up)
        self._models: dict[int, Model] = {}
        self._taught: dict[int, int] = {}  # frame in which a model was last taught
        self._frames = 0

    def score(self, frame: Frame) -> Scores:
        """Score each row; 1: strange begins here."""
        keys, sigmas = self._sigmas(frame)
        furthest = np.max(sigmas, axis=1)
        scores = np.where(np.isnan(furthest) | (not self._models), np.nan, 0.0)
        asked = np.flatnonzero(
            furthest >= self._options.least_sigmas if self._options.least_sigmas else furthest > -np.inf
        )
        asked = asked[np.argsort(-furthest[asked], kind="stable")]
        scores[asked[_MOST_ASKED:]] = np.nan
        asked = asked[:_MOST_ASKED]
        for key, rows in self._by_model(keys, asked):
            model = self._models.get(key)
            scores[rows] = np.nan if model is None else model.score(self._inputs(sigmas[rows]))
        beyond = np.maximum(furthest[asked], 0.0)
        scores[asked] += _TIE * beyond / (self._options.least_sigmas + beyond + 1.0)
        return scores

    def learn(self, frame: Frame) -> None:
        """Teach models some of the rows, then move what is usual."""
        keys, sigmas = self._sigmas(frame)
        rows = np.flatnonzero(np.isfinite(sigmas).all(axis=1))
        if self.level == "rank":
            rows = rows[np.argsort(keys[rows], kind="stable")]  # ranks may come in any order
        for key, own in self._by_model(keys, self._in_turn(rows)):
            if key not in self._models and len(self._models) < _MOST_MODELS:
                self._models[key] = self._make_model()
            if key in self._models:
                self._models[key].learn(self._inputs(sigmas[own]))
                self._taught[key] = self._frames
        for key in [one for one, frame_number in self._taught.items() if frame_number < self._frames - _FORGET_AFTER]:
            del self._models[key], self._taught[key]
        self._past.learn(keys, self._options.values(frame))
        self._frames += 1

    def explain(self, frame: Frame, row: int) -> str:
        """Say in one line why a row is strange."""
        return self._options.explain(frame, row, self._sigmas(frame)[1][row])

    def _sigmas(self, frame: Frame) -> tuple[Ints, Floats]:
        keys = self._options.keys(frame)
        return keys, self._past.deviations(keys, self._options.values(frame))

    def _inputs(self, sigmas: Floats) -> Floats:
        if self._options.inputs == "unit":
            return np.asarray(0.5 + 0.5 * sigmas / (_UNIT_SIGMAS + np.abs(sigmas)))
        return sigmas

    def _in_turn(self, rows: Ints) -> Ints:
        """Return the rows whose turn it is, at most as many as a frame may teach."""
        most = self._options.most_taught
        if len(rows) <= most:
            return rows
        first = self._frames * most % len(rows)
        return np.sort(np.roll(rows, -first)[:most]) if self.level == "operator" else np.roll(rows, -first)[:most]

    def _by_model(self, keys: Ints, rows: Ints) -> list[tuple[int, Ints]]:
        """Return rows by the model that they go to, the first row's model first."""
        if self._options.shared:
            return [(_SHARED, rows)] if len(rows) else []
        own = keys[rows]
        first = np.sort(np.unique(own, return_index=True)[1])
        return [(int(key), rows[own == key]) for key in own[first].tolist()]
