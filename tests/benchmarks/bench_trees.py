"""What scoring with our plain arrays costs, and what it would with scikit-learn: the same forest, the same rows.

    python -m tests.benchmarks.bench_trees

A forest of the shipped one's size is trained on random rows of its width. Times are medians of processor time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from irregulars.detectors.plugins.forest.features import FEATURES
from tests.benchmarks.train_operator_forest import export_trees, train_forest

ROWS: Final = (1, 10, 100, 1_000, 10_000)
"""Rows of a call: a frame has those of one rank in one iteration that passed the first test, most often under 100."""

_TRAINED: Final = 20_000
_LEAST_S: Final = 0.5
_COST: Final = (
    "import time\nbegin = time.process_time()\nimport {}\n"
    "(kib,) = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')]\n"
    "print(time.process_time() - begin, int(kib) / 1024)"
)


def main() -> None:
    """Print the table, and what each import costs."""
    random = np.random.default_rng(0)
    matrix = random.normal(size=(_TRAINED, len(FEATURES))).astype(np.float32)
    labels = matrix[:, 0] + matrix[:, 1] * matrix[:, 2] + random.normal(size=_TRAINED) > 1
    forest = train_forest(matrix, labels)
    trees = export_trees(forest)
    print("| rows of a call | plain arrays, µs a row | scikit-learn, µs a row |\n|---|---|---|")
    for count in ROWS:
        rows = matrix[:count]
        assert np.allclose(trees.predict(rows), forest.predict_proba(rows)[:, 1], atol=1e-6)
        ours, theirs = (_seconds(one, rows) / count * 1e6 for one in (trees.predict, forest.predict_proba))
        print(f"| {count:,} | {ours:,.1f} | {theirs:,.1f} |")
    for name in ("numpy", "sklearn.ensemble"):
        seconds, mib = _import_cost(name)
        print(f"import {name}: {seconds:.2f} s, {mib:.0f} MiB resident")


def _seconds(predict: Callable[[Any], Any], rows: Any) -> float:
    """Median processor time of a call."""
    taken: list[float] = []
    while len(taken) < 5 or (sum(taken) < _LEAST_S and len(taken) < 1000):
        begin = time.process_time()
        predict(rows)
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def _import_cost(name: str) -> tuple[float, float]:
    command = [sys.executable, "-c", _COST.format(name)]
    seconds, mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(mib)


if __name__ == "__main__":
    main()
