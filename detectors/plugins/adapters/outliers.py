"""Outlier and anomaly detectors of the two libraries, as detectors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np

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

    `name`: of the model, under which scores are stored. `make_model`: makes a model; pickles. `options`: see
    `AdapterOptions`.

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
        # With a limit of 0 every row that is known is put to the model.
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
        """Teach models some of the rows, then move the usual values."""
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
        # Last: rows are held against the past before them.
        self._past.learn(keys, self._options.values(frame))
        self._frames += 1

    def explain(self, frame: Frame, row: int) -> str:
        """Explain in one line why a row is strange."""
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
        # Operators stay in the order of time, which models that learn row by row see; ranks have no order.
        return np.sort(np.roll(rows, -first)[:most]) if self.level == "operator" else np.roll(rows, -first)[:most]

    def _by_model(self, keys: Ints, rows: Ints) -> list[tuple[int, Ints]]:
        """Return rows by the model that they go to, the first row's model first."""
        if self._options.shared:
            return [(_SHARED, rows)] if len(rows) else []
        own = keys[rows]
        first = np.sort(np.unique(own, return_index=True)[1])
        return [(int(key), rows[own == key]) for key in own[first].tolist()]


# --------------------------------------------------------------------------------------------------------------------
# Models of the two libraries, each behind two methods: learn rows, and score others.


_CONSTANT: Final = 5  # equal scores that no warm model gives to different rows


class PastScores:
    """The newest scores that a model gave to the values it learned.

    Scores of models have no common scale: `HalfSpaceTrees` gives 0.9 to nearly all, an isolation forest -0.4. So a
    score is replaced by the share of past scores that were as high: ``log(share) / log(strange_share)``, which is 0
    for the lowest score, and 1 where it is `strange_share` (one of twenty). A score above all kept ones counts as one
    of them more, so the scale ends at 2.1 for 500 scores and 0.05.

    `kept`: scores kept. `strange_share`: share of past scores that are as high as one that is strange, 0 to 1.
    """

    LEAST = 50  # scores before anything is said: of fewer, one of ten is not known

    def __init__(self, *, kept: int, strange_share: float) -> None:
        self._scores: Floats = np.full(kept, np.nan)  # round and round
        self._count = 0
        self._strange_share = strange_share

    def add(self, score: float) -> None:
        """Take a score; a model that gives the same to all is cold, and those scores do not count."""
        if not math.isfinite(score):
            return
        if self._is_constant and score != self._scores[0]:
            self._count = 0
        self._scores[self._count % len(self._scores)] = score
        self._count += 1

    @property
    def _past(self) -> Floats:
        return self._scores[: min(self._count, len(self._scores))]

    @property
    def _is_constant(self) -> bool:
        past = self._past
        return len(past) >= _CONSTANT and past[0] == past[-1] and bool((past == past[0]).all())

    def scaled(self, scores: Floats) -> Floats:
        """Return scores on the scale; NaN while there are too few, or all the same."""
        if len(self._past) < self.LEAST or self._is_constant:
            return np.full(len(scores), np.nan)
        past = np.sort(self._past)
        as_high = len(past) - np.searchsorted(past, scores, side="left")
        share = (as_high + 1) / (len(past) + 1)
        return np.where(np.isfinite(scores), np.log(share) / math.log(self._strange_share), np.nan)


SEED: Final = 7  # given to models that draw and were given no seed: two detectors made alike must agree
_SCORED_TAUGHT: Final = 16  # rows learned in a frame whose scores are kept: a score costs a River model as much again


class Model(Protocol):
    """Learns inputs, shape (rows, columns), and scores them on the scale of `PastScores`."""

    def learn(self, inputs: Floats) -> None:
        """Take rows that have no unknown values."""

    def score(self, inputs: Floats) -> Floats:
        """Return one score a row, NaN while cold; changes nothing."""


def make_seeded(make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Make a model with options that it takes and was not given: a seed, novelty, ADWIN's test after each value."""
    taken = inspect.signature(make).parameters
    added = {"seed": SEED, "random_state": SEED, "novelty": True, "clock": 1}
    return make(**{name: value for name, value in added.items() if name in taken} | dict(options))


class RiverModel:
    """An anomaly detector of River, which learns row by row.

    Those of River's supervised kind (`GaussianScorer`, `StandardAbsoluteDeviation`, `PredictiveAnomalyDetection`)
    judge the first column as the target, given all columns.
    """

    def __init__(self, model: Any, past: PastScores) -> None:
        from river.base import SupervisedAnomalyDetector

        self._model = model
        self._past = past
        self._is_supervised = isinstance(model, SupervisedAnomalyDetector)

    def learn(self, inputs: Floats) -> None:
        """Learn rows in their order; scores of the first ones, taken before, are kept for the scale."""
        for number, values in enumerate(inputs.tolist()):
            if number < _SCORED_TAUGHT:
                self._past.add(self._score_one(values))
            self._model.learn_one(*self._arguments(values))

    def score(self, inputs: Floats) -> Floats:
        """Score rows; see `Model`."""
        raw = np.array([self._score_one(values) for values in inputs.tolist()], dtype=np.float64)
        return self._past.scaled(raw)

    def _score_one(self, values: list[float]) -> float:
        return float(self._model.score_one(*self._arguments(values)))

    def _arguments(self, values: list[float]) -> tuple[Any, ...]:
        features = {str(number): value for number, value in enumerate(values)}
        return (features, values[0]) if self._is_supervised else (features,)


class SklearnModel:
    """An outlier detector of scikit-learn, fitted on a window of rows.

    It is fitted when the window has doubled or is full, and every so often.

    `make`: makes one that is not fitted. `window`: rows that are kept, and fitted on. `refit`: calls of `learn` from
    one fit to the next.
    """

    LEAST_ROWS = 100  # before the first fit

    def __init__(
        self, make: Callable[[], Any], make_past: Callable[[], PastScores], *, window: int, refit: int
    ) -> None:
        self._make, self._make_past, self._refit = make, make_past, refit
        self._window = window
        self._rows: Floats = np.zeros((0, 0))  # round and round; as large from the first row on as it will ever be
        self._taught = 0
        self._since_fit = 0
        self._fitted_rows = 0
        self._model: Any = None
        self._past = make_past()

    def learn(self, inputs: Floats) -> None:
        """Keep rows; fit when it is time."""
        if not len(self._rows):
            self._rows = np.zeros((self._window, inputs.shape[1]))
        self._rows[(self._taught + np.arange(len(inputs))) % self._window] = inputs
        self._taught += len(inputs)
        self._since_fit += 1
        rows = min(self._taught, self._window)
        has_grown = self._fitted_rows < rows >= min(2 * self._fitted_rows, self._window)
        if rows >= self.LEAST_ROWS and (self._since_fit >= self._refit or has_grown):
            self._model = self._make().fit(self._rows[:rows])
            self._since_fit, self._fitted_rows = 0, rows
            self._past = self._make_past()
            for score in (-self._model.score_samples(self._rows[:rows])).tolist():
                self._past.add(score)

    def score(self, inputs: Floats) -> Floats:
        """Score rows; see `Model`."""
        if self._model is None or not len(inputs):
            return np.full(len(inputs), np.nan)
        return self._past.scaled(-np.asarray(self._model.score_samples(inputs), dtype=np.float64))
