"""Holmes's detector: a random forest judges the operators of a rank, with a model that serves all jobs."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.plugins.forest.features import FEATURES, READS, OperatorFeatures, Tuning
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Column, Floats
from irregulars.errors import PluginError

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
        A file of `save_trees`; empty: ours.

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
        """Return the trees, which all detectors of the process share, and no pickle holds."""
        return load_trees(Path(self.model) if self.model else MODEL, FEATURES)


# --------------------------------------------------------------------------------------------------------------------
# A trained forest as plain arrays: no pickle, no scikit-learn at run time, one file of some hundred kilobytes.
# Why: a fitted forest of scikit-learn can only be stored as a pickle, and where a call has few rows, as here, its own
# cost of a call is many times that of these arrays.


VERSION: Final = 1
_LEAF: Final = -1  # feature of a node that is a leaf


@dataclass(frozen=True, slots=True)
class Trees:
    """Binary trees; the nodes of all trees stand one after the other."""

    names: tuple[str, ...]  # features, in the order of the columns that the trees were trained on
    roots: NDArray[np.int32]  # index of each tree's first node
    feature: NDArray[np.int8]  # per node: the feature that it asks for, -1 in a leaf
    # Per node: values up to it go left. float32, and compared with float32, as scikit-learn does.
    threshold: NDArray[np.float32]
    # Per node: indices of its children; of a leaf its own
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    probability: NDArray[np.float32]  # per node: part of the abnormal among the training rows that came here
    depth: int  # most questions from a root to a leaf

    def predict(self, matrix: Floats | NDArray[np.float32]) -> Column:
        """Return the probability that each row of `matrix` is abnormal: the mean of the trees.

        All rows go down all trees together, one level per step: `depth` steps, whatever the number of rows.
        """
        values = matrix.astype(np.float32)
        at = np.repeat(self.roots[:, None], len(values), axis=1)  # trees x rows
        row = np.arange(len(values))
        for _ in range(self.depth):
            feature = self.feature[at]
            # Of a leaf (-1) any column does: its answer is not used.
            is_left = values[row, np.maximum(feature, 0)] <= self.threshold[at]
            at = np.where(feature == _LEAF, at, np.where(is_left, self.left[at], self.right[at]))
        return np.asarray(self.probability[at].mean(axis=0))


def save_trees(trees: Trees, file: Path | BinaryIO) -> None:
    """Write trees as a compressed ``.npz``."""
    arrays: dict[str, Any] = {field.name: np.asarray(getattr(trees, field.name)) for field in fields(trees)}
    np.savez_compressed(file, version=np.asarray(VERSION), **arrays)


@lru_cache(maxsize=8)
def load_trees(path: Path, names: tuple[str, ...]) -> Trees:
    """Read trees; those of one file are shared by all who ask in this process.

    Raises
    ------
    PluginError
        If the file can't be read, is of another version, or was trained on other features.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise PluginError(f"forest must be a readable .npz file; got {error} ({path})") from error
    if int(arrays.get("version", -1)) != VERSION:
        found = arrays.get("version")
        raise PluginError(f"forest must be of version {VERSION}; got {found!r} ({path}): train it anew")
    trained_on = tuple(str(name) for name in arrays["names"])
    if trained_on != names:
        other = sorted(set(trained_on) ^ set(names)) or "another order"
        raise PluginError(f"forest must be trained on today's features; got {other} ({path}): train it anew")
    nodes = {name: arrays[name] for name in ("roots", "feature", "threshold", "left", "right", "probability")}
    return Trees(names=trained_on, depth=int(arrays["depth"]), **nodes)
