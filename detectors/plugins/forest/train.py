"""Train a forest on frames whose abnormal operators are known. Not needed at run time, and needs the extra ``train``.

`tests/benchmarks/train_operator_forest.py` made the forest that ships with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.arrays.runs import starts_of
from irregulars.detectors.plugins.forest.features import FeatureRows
from irregulars.detectors.plugins.forest.matrix import FEATURES
from irregulars.detectors.plugins.forest.trees import Trees
from irregulars.dtypes import Flags, Floats

Singles: TypeAlias = NDArray[np.float32]

_LEAF: Final = -1
_ABNORMAL_WEIGHT: Final = 1.3  # of an abnormal row: moves the threshold of the best F1 from 0.43 to 0.5


def gather_examples(frames: Iterable[tuple[FeatureRows, Flags]]) -> tuple[Singles, Flags]:
    """Stack the rows that pass the first test.

    Parameters
    ----------
    frames
        Features of a frame, and for each row of the frame whether it is abnormal.

    Returns
    -------
    Array ``(rows, features)``, float32, and one bool per row.
    """
    matrices, labels = [np.zeros((0, len(FEATURES)), dtype=np.float32)], [np.zeros(0, dtype=np.bool_)]
    for found, is_abnormal in frames:
        is_seen = found.is_suspicious()
        matrices.append(found.matrix[is_seen].astype(np.float32))
        labels.append(is_abnormal[found.rows][is_seen])
    return np.concatenate(matrices), np.concatenate(labels)


def train_forest(
    matrix: Singles, labels: Flags, *, trees: int = 40, depth: int = 10, least_leaf: int = 20, seed: int = 0
) -> Any:
    """Train scikit-learn's forest; the same arguments give the same forest.

    Parameters
    ----------
    matrix, labels
        As `gather_examples` returns them.
    trees, depth, least_leaf
        Number of trees, their depth, and the fewest training rows in a leaf.
    seed
        Of scikit-learn's random numbers.
    """
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(
        trees, max_depth=depth, min_samples_leaf=least_leaf, max_features=10, random_state=seed,
        class_weight={False: 1.0, True: _ABNORMAL_WEIGHT},
    )  # fmt: skip
    return forest.fit(matrix, labels)


def export_trees(forest: Any, names: tuple[str, ...] = FEATURES) -> Trees:
    """Turn scikit-learn's fitted forest of two classes into plain arrays."""
    fitted = [one.tree_ for one in forest.estimators_]
    counts = np.array([tree.node_count for tree in fitted])
    roots = starts_of(counts)
    feature = np.concatenate([tree.feature for tree in fitted])
    is_leaf = np.concatenate([tree.children_left for tree in fitted]) == _LEAF
    own = np.arange(len(feature))
    base = np.repeat(roots, counts)
    children = [
        np.where(is_leaf, own, base + np.concatenate([getattr(tree, name) for tree in fitted]))
        for name in ("children_left", "children_right")
    ]
    return Trees(
        names=names,
        roots=roots.astype(np.int32),
        feature=np.where(is_leaf, _LEAF, feature).astype(np.int8),
        threshold=_round_down(np.concatenate([tree.threshold for tree in fitted])),
        left=children[0].astype(np.int32),
        right=children[1].astype(np.int32),
        probability=np.concatenate([_probability(tree.value) for tree in fitted]).astype(np.float32),
        depth=max(int(tree.max_depth) for tree in fitted),
    )


def _round_down(threshold: Floats) -> Singles:
    """Largest float32 that is not above: a float32 is at most the one exactly if it is at most the other."""
    rounded = threshold.astype(np.float32)
    return np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)


def _probability(value: Floats) -> Floats:
    weights = value[:, 0, :]
    return np.asarray(weights[:, 1] / weights.sum(axis=1))
