"""Train the forest that ships with us, on simulated jobs: ``python -m tests.benchmarks.train_operator_forest``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.arrays.runs import starts_of
from irregulars.detectors.plugins.forest.features import FEATURES, FeatureRows, OperatorFeatures
from irregulars.detectors.plugins.forest.random_forest import MODEL, Trees, save_trees
from irregulars.dtypes import Flags, Floats
from tests.benchmarks.operator_cases import Case, run_case, shapes_of_faults

TRAINING_JOBS = (
    (4, 2, 4, 8), (2, 4, 2, 4), (4, 4, 1, 8), (2, 2, 8, 6), (8, 1, 2, 4), (2, 8, 1, 8), (16, 2, 1, 4), (3, 3, 4, 6),
    (2, 12, 1, 8), (2, 6, 2, 8), (3, 4, 2, 6), (2, 4, 8, 4), (4, 8, 1, 16), (2, 10, 2, 10), (6, 2, 4, 4),
    (4, 2, 2, 12),
)  # fmt: skip
"""dp, pp, tp, micro-batches; none of them is among those of `tests.benchmarks.bench_operators`."""

TRAINING_SEED = 1000
_HEALTHY_EVERY = 16  # of the healthy frames so many-th teaches too: that what is regular scores low


def training_cases(count: int) -> list[Case]:
    """Return the jobs to train on: with little drift and with much, plain and untidy, in equal shares."""
    cases: list[Case] = []
    for drift_ratio, is_untidy in product((0.03, 0.15), (False, True)):
        seed, share = TRAINING_SEED + len(cases), -(-count // 4)
        cases += shapes_of_faults(seed, share, TRAINING_JOBS, drift_ratio=drift_ratio, is_untidy=is_untidy)
    return cases


def labelled_features(cases: Iterable[Case], *, most_ranks: int = 12) -> Iterator[tuple[FeatureRows, np.ndarray]]:
    """Yield features and truth of irregular frames, and of a few healthy ones."""
    for case in cases:
        for examples in run_case(case, most_ranks=most_ranks):
            features = OperatorFeatures(window=32, warm_up=20, tuning="always", most_slots=4096)
            for example in examples:
                if example.is_irregular or (
                    example.is_irregular is False and example.iteration % _HEALTHY_EVERY == 1
                ):
                    yield features.rows(example.frame), example.is_abnormal
                if example.is_irregular is False:
                    features.learn(example.frame)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=240)
    parser.add_argument("--rows", type=int, default=400_000, help="most training rows; of more a random choice")
    parser.add_argument("--out", type=Path, default=MODEL)
    options = parser.parse_args()
    started_s = time.monotonic()
    matrix, labels = gather_examples(labelled_features(training_cases(options.cases)))
    chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[: options.rows])
    print(f"{len(labels)} rows, {labels.mean():.3f} abnormal, {time.monotonic() - started_s:.0f} s", flush=True)
    save_trees(export_trees(train_forest(matrix[chosen], labels[chosen])), options.out)
    print(f"{options.out}: {options.out.stat().st_size} bytes, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
