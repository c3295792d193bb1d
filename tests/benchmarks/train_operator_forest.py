"""Train the forest that ships with us, on simulated jobs: ``python -m tests.benchmarks.train_operator_forest``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from irregulars.detectors.plugins.forest.features import FeatureRows, OperatorFeatures
from irregulars.detectors.plugins.forest.random_forest import MODEL
from irregulars.detectors.plugins.forest.train import export_trees, gather_examples, train_forest
from irregulars.detectors.plugins.forest.trees import save_trees
from tests.benchmarks.operator_cases import Case, Example, run_case, shapes_of_faults

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
            yield from _follow(examples)


def _follow(examples: Iterable[Example]) -> Iterator[tuple[FeatureRows, np.ndarray]]:
    features = OperatorFeatures(window=32, warm_up=20, tuning="always", most_slots=4096)
    for example in examples:
        if example.is_irregular or (example.is_irregular is False and example.iteration % _HEALTHY_EVERY == 1):
            yield features.rows(example.frame), example.is_abnormal
        if example.is_irregular is False:
            features.learn(example.frame)


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
