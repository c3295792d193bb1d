"""Holmes's detector: a random forest judges the operators of a rank, with a model that serves all jobs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from irregulars.detectors.plugins.forest.features import FEATURES, READS, OperatorFeatures, Tuning
from irregulars.detectors.plugins.forest.trees import Trees, load_trees
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores

MODEL: Final = Path(__file__).with_name("operators-v1.npz")
"""The forest that ships with us, trained on simulated jobs."""


class OperatorForest:
    """Probability, 0 to 1, that an operator takes more than 1.1 times as long as it should.

    A threshold of 0.5 gives the best F1. Operators that do not pass the first test (longer than usual, in an
    iteration that is) score 0. Who waits for a late rank is abnormal too, the late rank's own operators are not: who
    is to blame is not for this detector to say.

    Parameters
    ----------
    window
        Iterations that count as the past.
    warm_up
        Iterations before there is an opinion.
    tuning
        How the normalisation follows a job that drifts: ``always``, ``drift`` (when River's ADWIN notices it) or
        ``off``; see `detectors.plugins.forest.features.OperatorFeatures`.
    most_slots
        Bound of the state; operators of one iteration beyond it are compared with their class.
    model
        A file of `detectors.plugins.forest.trees.save_trees`; empty: ours.

    Examples
    --------
    >>> from irregulars.detectors.plugins.sample_frames import sample_frame
    >>> detector = OperatorForest()
    >>> for iteration in range(40):
    ...     detector.learn(sample_frame("operator", iteration))
    >>> slow = sample_frame("operator", 50, is_faulty=True)
    >>> set(slow["communicator"][detector.score(slow) > 0.5].tolist())
    {2}

    References
    ----------
    Holmes, NSDI 2025: the forest, its features and the shift of its thresholds.
    """

    level: ClassVar[Level] = "operator"
    against: ClassVar[Against] = "past"
    reads: ClassVar[tuple[str, ...]] = READS
    strange_from: ClassVar[float] = 0.5

    def __init__(
        self, *, window: int = 32, warm_up: int = 20, tuning: Tuning = "always", most_slots: int = 4096,
        model: str = "",
    ) -> None:  # fmt: skip
        self.model = model
        self._features = OperatorFeatures(window=window, warm_up=warm_up, tuning=tuning, most_slots=most_slots)
        self._load()  # a model that can't be read is found at the start

    def score(self, frame: Frame) -> Scores:
        """Score each operator; NaN: its class is cold, or it did not end."""
        found = self._features.rows(frame)
        is_seen = found.is_suspicious()
        known = np.zeros(len(found.rows))
        if is_seen.any():
            known[is_seen] = self._load().predict(found.matrix[is_seen])
        scores = np.full(len(frame["elapsed_ns"]), np.nan)
        scores[found.rows] = known
        return scores

    def learn(self, frame: Frame) -> None:
        """Take in a regular frame as the past of later ones; the forest stays as it is."""
        self._features.learn(frame)

    def _load(self) -> Trees:
        """Shared by all detectors of the process, and no part of what is pickled."""
        return load_trees(Path(self.model) if self.model else MODEL, FEATURES)
