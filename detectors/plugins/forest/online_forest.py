"""The alternative that needs no training in advance: River's adaptive random forest learns what operators say."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from irregulars.detectors.plugins.forest.features import READS, OperatorFeatures, Tuning
from irregulars.detectors.plugins.forest.matrix import FEATURES
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Flags, Floats

_LEAST_LABELS: Final = 100  # rows of each sort (abnormal, regular) before the forest is asked; chosen
_MOST_MIB: Final = 4.0  # memory of each tree, MiB; chosen
_RULE: Final = ("excess_share", 0.006)  # the best single threshold on simulated jobs: F1 0.80, the forest's is 0.94


class OnlineModel:
    """River's ARFClassifier on matrices: 385 µs per row learned, some 60 µs per row predicted.

    Until it has seen enough of both sorts, the excess as a part of the iteration stands in for a probability.

    Parameters
    ----------
    trees
        Number of trees.
    seed
        Of the forest's own random numbers.
    """

    def __init__(self, *, trees: int = 10, seed: int = 0) -> None:
        self.trees = trees
        self.seed = seed
        self._labels = [0, 0]
        self._forest: Any = None

    def predict(self, matrix: Floats) -> Floats:
        """Return the probability of each row to be abnormal."""
        if min(self._labels) < _LEAST_LABELS:
            name, half = _RULE
            return np.asarray(1.0 / (1.0 + (half / np.maximum(matrix[:, FEATURES.index(name)], half * 1e-6)) ** 2))
        found = [self._forest.predict_proba_one(row) for row in _as_dicts(matrix)]
        return np.array([float(one.get(True, 0.0)) for one in found], dtype=np.float64)

    def learn(self, matrix: Floats, labels: Flags) -> None:
        """Learn rows in their order; one bool per row."""
        if self._forest is None:
            self._forest = self._new_forest()
        for row, label in zip(_as_dicts(matrix), labels.tolist(), strict=True):
            self._forest.learn_one(row, bool(label))
            self._labels[bool(label)] += 1

    def _new_forest(self) -> Any:
        from river import forest  # 0.7 s: not for those who only import the module

        return forest.ARFClassifier(n_models=self.trees, max_size=_MOST_MIB, seed=self.seed)


class OnlineForest:
    """Probability that an operator is abnormal, from a forest that learns from feedback while it runs.

    Same features and same first test as `detectors.plugins.forest.random_forest.OperatorForest`.

    Parameters
    ----------
    window, warm_up, tuning, most_slots
        As of `detectors.plugins.forest.features.OperatorFeatures`.
    trees
        Number of trees.
    most_scored
        Rows of a frame that the forest is asked for, the largest excesses first; the others score 0.
    most_learned
        Rows that one call of `feedback` learns, spread evenly over those that it is told.
    seed
        Of the forest's own random numbers.

    Examples
    --------
    >>> from irregulars.detectors.plugins.sample_frames import sample_frame
    >>> detector = OnlineForest()
    >>> for iteration in range(40):
    ...     detector.learn(sample_frame("operator", iteration))
    >>> slow = sample_frame("operator", 50, is_faulty=True)
    >>> detector.feedback(slow, np.where(slow["communicator"] == 2, 1.0, np.nan))
    >>> bool(detector.score(slow)[slow["communicator"] == 2].min() > 0.5)
    True

    References
    ----------
    Gomes et al.: Adaptive random forests for evolving data stream classification, Machine Learning 106, 2017.
    """

    level: ClassVar[Level] = "operator"
    against: ClassVar[Against] = "past"
    reads: ClassVar[tuple[str, ...]] = READS
    strange_from: ClassVar[float] = 0.5

    def __init__(
        self, *, window: int = 32, warm_up: int = 20, tuning: Tuning = "always", most_slots: int = 4096,
        trees: int = 10, most_scored: int = 128, most_learned: int = 64, seed: int = 0,
    ) -> None:  # fmt: skip
        self.most_scored = most_scored
        self.most_learned = most_learned
        self._features = OperatorFeatures(window=window, warm_up=warm_up, tuning=tuning, most_slots=most_slots)
        self._model = OnlineModel(trees=trees, seed=seed)

    def score(self, frame: Frame) -> Scores:
        """Score each operator; NaN: its class is cold, or it did not end."""
        found = self._features.rows(frame)
        seen = np.flatnonzero(found.is_suspicious())
        excess = found.column("excess_share")[seen]
        seen = seen[np.argsort(-excess, kind="stable")[: self.most_scored]]
        known = np.zeros(len(found.rows))
        if len(seen):
            known[seen] = self._model.predict(found.matrix[seen])
        scores = np.full(len(frame["elapsed_ns"]), np.nan)
        scores[found.rows] = known
        return scores

    def learn(self, frame: Frame) -> None:
        """Take in a regular frame as the past of later ones; the forest stays as it is."""
        self._features.learn(frame)

    def feedback(self, frame: Frame, labels: Floats) -> None:
        """Learn what somebody says of a frame, before it is learned as regular.

        Parameters
        ----------
        frame
            As it was scored.
        labels
            One float per row: 1 abnormal, 0 regular, NaN nothing said.
        """
        found = self._features.rows(frame)
        told = np.flatnonzero(found.is_suspicious() & ~np.isnan(labels[found.rows]))
        if len(told) > self.most_learned:
            told = told[np.linspace(0, len(told) - 1, self.most_learned).astype(np.int64)]
        self._model.learn(found.matrix[told], labels[found.rows[told]] > 0.5)


def _as_dicts(matrix: Floats) -> list[dict[str, float]]:
    """River's form of rows."""
    return [dict(zip(FEATURES, row, strict=True)) for row in matrix.tolist()]
