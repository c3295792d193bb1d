"""Detectors that ship, and models, on the recordings in `bench`: ``python -m tests.benchmarks.backtest_table``.

Prints a table for each level (infra/docs/detectors.md has the most of it); ``rank`` or ``operator``: only one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from irregulars.detectors.plugins.loading import load_detector
from irregulars.detectors.plugins.protocol import Level
from irregulars.infra.runs.backtest import (
    HEAD,
    Result,
    backtest,
    cells,
    find_recordings,
    read_recording,
    shipped_detectors,
)
from irregulars.settings import JudgeSettings
from tests.benchmarks.markdown import table
from tests.conftest import RECORDINGS

MODELS: Final[dict[Level, tuple[str, ...]]] = {
    "rank": (
        "river:anomaly.HalfSpaceTrees(window_size=50)",
        "river:anomaly.GaussianScorer()",
        "river:drift.ADWIN(delta=0.01)",
        "river:drift.PageHinkley()",
        "sklearn:ensemble.IsolationForest(n_estimators=50)",
    ),
    "operator": (),
}


def markdown_table(results: Sequence[Result]) -> str:
    """Return the table of `irregulars.infra.runs.backtest` for a page."""
    return "\n".join(table(HEAD, ([f"`{name}`", *values] for name, *values in map(cells, results)))) + "\n"


def main() -> None:
    for level in sys.argv[1:] or MODELS:
        assert level in ("rank", "operator")
        detectors = shipped_detectors(level) | {name: load_detector(name, is_checked=False) for name in MODELS[level]}
        jobs = (read_recording(path, level, JudgeSettings()) for path in find_recordings([RECORDINGS / "bench"]))
        results = backtest(detectors, jobs)
        counts = results[0].counts
        print(f"\nLevel {level}: {counts.iterations:,} iterations, {counts.faults} faults.\n")
        print(markdown_table(results), flush=True)


if __name__ == "__main__":
    main()
